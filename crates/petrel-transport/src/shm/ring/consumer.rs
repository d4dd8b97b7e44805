//! The receiving side of a ring.

use super::record::{
    Header, RECORD_ALIGN, RECORD_HEADER_BYTES, check, max_frame_limit, record_bytes,
};
use super::{Broken, Memory, Ordering, POLLING, is_asleep};

/// What one call of [`Consumer::receive`] brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames delivered.
    pub frames: usize,
    /// Bytes in them.
    pub bytes: usize,
    /// Whether a publication was seen that was not known before.
    pub is_new: bool,
    /// The ring is [`Broken`]. Frames before the broken place were delivered.
    pub is_broken: bool,
}

/// Reads records; see the [module](super).
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    max_frame_bytes: usize,
    /// The next record.
    head: u64,
    /// The head that the producer knows.
    released: u64,
    /// The producer's tail when it was last read.
    tail: u64,
    /// What the sleep word holds.
    sleep_word: u64,
}

impl<M: Memory> Consumer<M> {
    /// The only consumer of the fresh ring in `memory`.
    ///
    /// # Panics
    /// When `max_frame_bytes` is 0 or exceeds [`max_frame_limit`].
    pub fn new(memory: M, max_frame_bytes: usize) -> Self {
        assert!((1..=max_frame_limit(memory.capacity())).contains(&max_frame_bytes));
        Self { memory, max_frame_bytes, head: 0, released: 0, tail: 0, sleep_word: 0 }
    }

    /// Lends up to `budget` frames to `on_frame`, oldest first, then gives their bytes back to the
    /// producer.
    #[inline]
    pub fn receive(&mut self, budget: usize, mut on_frame: impl FnMut(&[u8])) -> Received {
        let mut received = Received::default();
        if self.head == self.tail {
            match self.refresh_tail() {
                Ok(is_new) => received.is_new = is_new,
                Err(Broken) => received.is_broken = true,
            }
        }
        let (mut frames, mut bytes) = (0, 0);
        while frames < budget && self.head != self.tail {
            // In registers, as the compiler cannot know what `on_frame` does to `self`.
            let (mut head, end, pause) = (self.head, self.end_of_run(), self.end_of_release_run());
            while frames < budget && head != end {
                let Some(length) = self.frame_at(head, end) else { break };
                let offset = self.offset(head) + RECORD_HEADER_BYTES;
                // SAFETY: `frame_at` found the record before the tail and before the end of the
                // ring, and its bytes are released only after this.
                unsafe { self.memory.with_frame(offset, length, &mut on_frame) };
                head = head.wrapping_add(record_bytes(length) as u64);
                frames += 1;
                bytes += length;
                if head.wrapping_sub(pause) as i64 >= 0 {
                    break;
                }
            }
            let is_stuck = head == self.head;
            self.release(head);
            if is_stuck && self.skip_to_start() == Err(Broken) {
                received.is_broken = true;
                break;
            }
        }
        self.release(self.head);
        (received.frames, received.bytes) = (frames, bytes);
        received
    }

    /// Lends up to `budget` of the frames that [`Consumer::receive`] would, and leaves them in the
    /// ring: those before the end of its memory, and before any place that is broken. Tells whether
    /// a publication was seen that was not known before.
    #[inline]
    pub fn look_ahead(&mut self, budget: usize, mut on_frame: impl FnMut(&[u8])) -> bool {
        let is_new = self.head == self.tail && self.refresh_tail() == Ok(true);
        let (mut head, end) = (self.head, self.end_of_run());
        for _ in 0..budget {
            let length = if head == end { None } else { self.frame_at(head, end) };
            let Some(length) = length else { break };
            let offset = self.offset(head) + RECORD_HEADER_BYTES;
            // SAFETY: `frame_at` found the record before the tail and before the end of the ring,
            // and nothing is released here.
            unsafe { self.memory.with_frame(offset, length, &mut on_frame) };
            head = head.wrapping_add(record_bytes(length) as u64);
        }
        is_new
    }

    /// Whether [`Consumer::receive`] would find something, be it a broken ring.
    #[inline]
    pub fn has_data(&self) -> bool {
        self.head != self.tail
            // Pairs with the release in `Producer::publish`.
            || self.memory.control().tail.0.load(Ordering::Acquire) != self.tail
    }

    /// Tells the producer for all time that no wake-up is needed.
    pub fn declare_polling(&mut self) {
        self.declare(POLLING);
    }

    /// Tells the producer that a wake-up is needed from now on. The caller goes on with a
    /// [`sleep_fence`](super::sleep_fence), and sleeps only if [`Consumer::has_data`] is false then.
    #[inline]
    pub fn declare_sleep(&mut self) {
        if self.sleep_word != POLLING && !is_asleep(self.sleep_word) {
            self.declare(self.sleep_word + 1);
        }
    }

    /// Takes [`Consumer::declare_sleep`] back.
    #[inline]
    pub fn declare_awake(&mut self) {
        if is_asleep(self.sleep_word) {
            self.declare(self.sleep_word + 1);
        }
    }

    #[inline]
    fn declare(&mut self, sleep_word: u64) {
        self.sleep_word = sleep_word;
        // Nothing is published by this word; the sleep fence orders it where it matters.
        self.memory.control().sleep.0.store(sleep_word, Ordering::Relaxed);
    }

    /// Reads how far the producer is: not behind where it was, and at most a ring ahead of us.
    #[inline]
    fn refresh_tail(&mut self) -> Result<bool, Broken> {
        // Pairs with the release in `Producer::publish`: records before the tail are complete.
        let tail = self.memory.control().tail.0.load(Ordering::Acquire);
        let used = tail.wrapping_sub(self.head);
        if used > self.memory.capacity() as u64 || !tail.is_multiple_of(RECORD_ALIGN as u64) {
            return Err(Broken);
        }
        let is_new = tail != self.tail;
        self.tail = tail;
        Ok(is_new)
    }

    /// How far records can be read without going to the start of the ring.
    #[inline]
    fn end_of_run(&self) -> u64 {
        let to_end = (self.memory.capacity() - self.offset(self.head)) as u64;
        self.head.wrapping_add(to_end.min(self.tail.wrapping_sub(self.head)))
    }

    /// Where the producer gets its bytes back before the burst ends.
    #[inline]
    fn end_of_release_run(&self) -> u64 {
        self.released.wrapping_add(self.memory.capacity() as u64 / 8)
    }

    /// Length of the frame whose record is at `head`, if it is a possible one and ends before
    /// `end`, which differs.
    #[inline]
    fn frame_at(&self, head: u64, end: u64) -> Option<usize> {
        // SAFETY: the head is a multiple of 8, and at least 8 bytes from there are published: the
        // end is aligned too and differs.
        let word = unsafe { self.memory.load_word(self.offset(head)) };
        let length = word as u32 as usize;
        // A skip is no possible length. No overflow: a length has 32 bits.
        let is_frame = word >> 32 == check(head)
            && length.wrapping_sub(1) < self.max_frame_bytes
            && record_bytes(length) as u64 <= end.wrapping_sub(head);
        is_frame.then_some(length)
    }

    /// Goes to the start of the ring, if that is where the record at the head leads. A skip is
    /// shorter than a record, and the record that made it necessary follows.
    #[cold]
    #[inline(never)]
    fn skip_to_start(&mut self) -> Result<(), Broken> {
        let (head, offset) = (self.head, self.offset(self.head));
        // SAFETY: as in `frame_at`.
        let word = unsafe { self.memory.load_word(offset) };
        let to_end = (self.memory.capacity() - offset) as u64;
        let is_short =
            to_end < self.tail.wrapping_sub(head) && to_end <= self.memory.capacity() as u64 / 2;
        if word != Header::Skip.encode(head) || !is_short {
            return Err(Broken);
        }
        self.head = head.wrapping_add(to_end);
        Ok(())
    }

    /// Gives everything before `head` back to the producer.
    #[inline]
    fn release(&mut self, head: u64) {
        self.head = head;
        if head != self.released {
            // Pairs with the acquire in `Producer::refresh_head`: the reads are done.
            self.memory.control().head.0.store(head, Ordering::Release);
            self.released = head;
        }
    }

    #[inline]
    fn offset(&self, position: u64) -> usize {
        position as usize & (self.memory.capacity() - 1)
    }
}
