//! The receiving side of a ring.

use super::record::{Header, RECORD_ALIGN, RECORD_HEADER_BYTES, max_frame_limit, record_bytes};
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
        while received.frames < budget && self.head != self.tail {
            match self.next_frame() {
                Ok(Some(length)) => {
                    self.deliver(length, &mut on_frame);
                    received.frames += 1;
                    received.bytes += length;
                }
                Ok(None) => {}
                Err(Broken) => {
                    received.is_broken = true;
                    break;
                }
            }
        }
        self.release();
        received
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

    /// Length of the frame at the head; `None` if there was only a skip to the start of the ring,
    /// which was made.
    #[inline]
    fn next_frame(&mut self) -> Result<Option<usize>, Broken> {
        // SAFETY: the head is a multiple of 8, and at least 8 bytes from there are published: the
        // tail is aligned too and differs.
        let word = unsafe { self.memory.load_word(self.offset()) };
        match Header::decode(word, self.head)? {
            Header::Skip => self.skip_to_start().map(|()| None),
            Header::Frame { length } => self.check_length(length).map(Some),
        }
    }

    /// A skip is shorter than a record, and the record that made it necessary follows.
    fn skip_to_start(&mut self) -> Result<(), Broken> {
        let to_end = (self.memory.capacity() - self.offset()) as u64;
        if to_end >= self.readable_bytes() || to_end > self.memory.capacity() as u64 / 4 {
            return Err(Broken);
        }
        self.head = self.head.wrapping_add(to_end);
        Ok(())
    }

    #[inline]
    fn check_length(&self, length: usize) -> Result<usize, Broken> {
        let is_agreed = (1..=self.max_frame_bytes).contains(&length);
        // No overflow: the length was compared with the largest frame first.
        let fits = || {
            let record = record_bytes(length);
            record as u64 <= self.readable_bytes()
                && record <= self.memory.capacity() - self.offset()
        };
        if is_agreed && fits() { Ok(length) } else { Err(Broken) }
    }

    #[inline]
    fn deliver(&mut self, length: usize, on_frame: impl FnOnce(&[u8])) {
        let offset = self.offset() + RECORD_HEADER_BYTES;
        // SAFETY: `check_length` found the record before the tail and before the end of the ring,
        // and its bytes are released only after this.
        unsafe { self.memory.with_frame(offset, length, on_frame) };
        self.head = self.head.wrapping_add(record_bytes(length) as u64);
        if self.head.wrapping_sub(self.released) >= self.memory.capacity() as u64 / 8 {
            self.release();
        }
    }

    /// Gives everything before the head back to the producer.
    #[inline]
    fn release(&mut self) {
        if self.head != self.released {
            // Pairs with the acquire in `Producer::refresh_head`: the reads are done.
            self.memory.control().head.0.store(self.head, Ordering::Release);
            self.released = self.head;
        }
    }

    #[inline]
    fn readable_bytes(&self) -> u64 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    fn offset(&self) -> usize {
        self.head as usize & (self.memory.capacity() - 1)
    }
}
