//! The sending side of a ring.

use petrel_planted::planted;

use super::record::{
    Header, LAST, NOTHING, RECORD_ALIGN, RECORD_HEADER_BYTES, max_frame_limit, position,
    record_bytes,
};
use crate::copy::INLINE_BYTES_MAX;

use super::{Broken, Memory, Ordering, POLLING, RingFrame, is_asleep};

/// Lengths of frames that [`Producer::push_line`] takes: from a header alone to what fills a line.
const LINE_FRAME_BYTES_MIN: usize = 16;
const LINE_FRAME_BYTES_MAX: usize = RECORD_ALIGN - RECORD_HEADER_BYTES;

/// No position, as it is odd.
const NOWHERE: u64 = u64::MAX;

/// Why a frame was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The consumer has not yet released enough. Publish, and offer the frame again later.
    Full,
    /// The frame is empty or longer than agreed.
    Length,
    /// See [`Broken`].
    Broken,
}

/// Writes records; see the [module](super).
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    max_frame_bytes: usize,
    /// Largest frame that is copied without a call.
    small_bytes_max: usize,
    /// How many lengths [`Producer::push_line`] takes.
    line_frame_lengths: usize,
    /// Where the next record goes.
    tail: u64,
    /// Where the first record goes that the consumer is not to see yet.
    published: u64,
    /// A position at which [`NOTHING`] stands, if there is no record yet; or [`NOWHERE`].
    cleared: u64,
    /// The header of that record, if there is one.
    first_header: u64,
    /// The header of the last record.
    last_header: u64,
    /// The consumer's head when it was last read.
    head: u64,
    /// Bytes from the tail that are known to be free and come before the end of the ring.
    writable_bytes: usize,
    /// The sleep word that was last seen: the sleep that was ended last, or [`POLLING`].
    sleep_word: u64,
}

impl<M: Memory> Producer<M> {
    /// The only producer of the fresh ring in `memory`, whose bytes are all 0.
    ///
    /// # Panics
    /// When `max_frame_bytes` is 0 or exceeds [`max_frame_limit`].
    pub fn new(memory: M, max_frame_bytes: usize) -> Self {
        assert!((1..=max_frame_limit(memory.capacity())).contains(&max_frame_bytes));
        Self {
            memory,
            max_frame_bytes,
            small_bytes_max: max_frame_bytes.min(INLINE_BYTES_MAX),
            line_frame_lengths: (max_frame_bytes.min(LINE_FRAME_BYTES_MAX) + 1)
                .saturating_sub(LINE_FRAME_BYTES_MIN),
            tail: 0,
            published: 0,
            cleared: NOWHERE,
            first_header: NOTHING,
            last_header: NOTHING,
            head: 0,
            writable_bytes: 0,
            sleep_word: 0,
        }
    }

    /// Writes a frame of two parts behind the others. It is not seen before [`Producer::publish`].
    ///
    /// # Errors
    /// See [`PushError`]. Nothing is written then.
    #[inline]
    pub fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), PushError> {
        let length = head.len() + body.len();
        // Both ends of the range of lengths in one comparison.
        if length.wrapping_sub(1) >= self.max_frame_bytes {
            return Err(PushError::Length);
        }
        if record_bytes(length) > self.writable_bytes {
            self.make_room(record_bytes(length))?;
        }
        self.write(head, body);
        Ok(())
    }

    /// [`Producer::push`] of a small frame for which nothing has to be looked up; false if it is
    /// not so. There is no call in it, so that the caller has nothing to save and restore.
    #[inline]
    pub fn push_at_once(&mut self, head: &[u8], body: &[u8]) -> bool {
        let length = head.len() + body.len();
        if length.wrapping_sub(1) >= self.small_bytes_max
            || record_bytes(length) > self.writable_bytes
        {
            return false;
        }
        // SAFETY: `new` bounds `small_bytes_max` by this, and nobody changes it. The compiler leaves
        // the copy of large frames out, 14 instructions to prepare for its call included.
        unsafe { std::hint::assert_unchecked(length <= INLINE_BYTES_MAX) };
        self.write(head, body);
        true
    }

    /// [`Producer::push`] of a frame whose record has one line, as most small calls have, if nothing
    /// has to be looked up; false if it is not so. So short that it is inlined wherever it is used.
    #[inline(always)]
    pub fn push_line(&mut self, frame: &[u8]) -> bool {
        let length = frame.len();
        let Some(left) = self.writable_bytes.checked_sub(RECORD_ALIGN) else { return false };
        // Both ends of the range of lengths in one comparison.
        if length.wrapping_sub(LINE_FRAME_BYTES_MIN) >= self.line_frame_lengths {
            return false;
        }
        self.writable_bytes = left;
        let tail = self.tail;
        self.tail = tail.wrapping_add(RECORD_ALIGN as u64);
        let word = Header::Frame { length }.encode(tail);
        self.last_header = word;
        let at = self.offset(tail);
        let memory = self.memory.view();
        // SAFETY: a line from the tail on is free and lies before the end of the ring, and the record
        // has no more: `new` bounds the lengths so.
        unsafe {
            std::hint::assert_unchecked(length <= LINE_FRAME_BYTES_MAX);
            memory.store_line(at + RECORD_HEADER_BYTES, frame);
            // As in `write_header`.
            if tail != self.published {
                memory.store_word(at, word);
                return true;
            }
        }
        drop(memory);
        self.first_header = word;
        true
    }

    /// Leads every [`Producer::push`] to look for room first.
    pub fn forget_room(&mut self) {
        self.writable_bytes = 0;
    }

    /// Writes the record of a frame of a possible length, for which there are writable bytes.
    #[inline(always)]
    fn write(&mut self, head: &[u8], body: &[u8]) {
        let length = head.len() + body.len();
        let record = record_bytes(length);
        debug_assert!(record <= self.writable_bytes);
        let tail = self.tail;
        // SAFETY: `record` bytes from the tail are free and lie before the end of the ring: no more
        // than `writable_bytes`. The header takes the first of them.
        unsafe {
            self.write_header(Header::Frame { length });
            self.memory.store_frame(self.offset(tail) + RECORD_HEADER_BYTES, head, body);
        }
        self.tail = tail.wrapping_add(record as u64);
        self.writable_bytes -= record;
    }

    /// Writes the header of the record at the tail, or keeps it back if it is the one by which all
    /// that follow are published.
    ///
    /// # Safety
    /// The line at the tail is free.
    #[inline(always)]
    unsafe fn write_header(&mut self, header: Header) {
        let word = header.encode(self.tail);
        self.last_header = word;
        if self.tail == self.published {
            self.first_header = word;
        } else {
            // SAFETY: the tail is a multiple of `RECORD_ALIGN`, and the caller says that the line
            // is free.
            unsafe { self.memory.store_word(self.offset(self.tail), word) };
        }
    }

    /// Shows the consumer everything written so far. Returns whether there was anything new.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.publish_with(LAST)
    }

    /// As [`Producer::publish`], in the middle of a burst: more follows at once, so that the consumer
    /// had better look behind what it sees.
    pub fn publish_part(&mut self) -> bool {
        self.publish_with(0)
    }

    #[inline(always)]
    fn publish_with(&mut self, mark: u64) -> bool {
        let is_new = self.tail != self.published;
        if is_new {
            let (first, last) =
                (self.offset(self.published), self.offset(position(self.last_header)));
            let last_header = self.last_header | mark;
            // SAFETY: all positions are multiples of `RECORD_ALIGN`. `make_room` leaves the line at
            // the tail free; those of the records are still ours.
            unsafe {
                if self.tail != self.cleared {
                    self.memory.store_word(self.offset(self.tail), NOTHING);
                }
                // Pairs with the acquire in `Consumer::receive`: what was stored before is seen.
                if first == last {
                    self.memory.publish_word(first, last_header);
                } else {
                    self.memory.store_word(last, last_header);
                    self.memory.publish_word(first, self.first_header);
                }
            }
            self.published = self.tail;
            self.clear_ahead();
        }
        is_new
    }

    /// Writes [`NOTHING`] where the end will be after one more record of a line, now that nobody
    /// waits: before a publication the consumer, which polls the line of the record, would take that
    /// line back while the store waits for the other one.
    #[inline]
    fn clear_ahead(&mut self) {
        let ahead = self.tail.wrapping_add(RECORD_ALIGN as u64);
        if self.writable_bytes > RECORD_ALIGN {
            if !planted("shm_old_record_stays") {
                // SAFETY: more than the line at the tail is writable: the next one too is free.
                unsafe { self.memory.store_word(self.offset(ahead), NOTHING) };
            }
            self.cleared = ahead;
        }
    }

    /// Bytes that are written, and that the consumer does not know of.
    #[inline]
    pub fn unpublished_bytes(&self) -> usize {
        self.tail.wrapping_sub(self.published) as usize
    }

    /// Whether a [`sleep_fence`](super::sleep_fence) and [`Producer::take_sleeper`] are due after
    /// publishing: not for a consumer that never sleeps.
    #[inline]
    pub fn consumer_may_sleep(&self) -> bool {
        self.sleep_word != POLLING
    }

    /// Whether the consumer is to be woken, which the caller must then do. To be called after
    /// [`Producer::publish`] and a [`sleep_fence`](super::sleep_fence).
    #[inline]
    pub fn take_sleeper(&mut self) -> bool {
        let sleep_word = self.memory.control().sleep.0.load(Ordering::Relaxed);
        let is_new = sleep_word != self.sleep_word;
        self.sleep_word = if planted("shm_wakes_again_and_again") { 0 } else { sleep_word };
        is_new && is_asleep(sleep_word)
    }

    /// Takes [`Producer::take_sleeper`] back: the consumer could not be woken, and the next call says so again.
    #[cold]
    pub fn forget_sleeper(&mut self) {
        if !planted("shm_refused_wake_is_lost") {
            self.sleep_word = 0;
        }
    }

    /// Where the next record goes, counted through all laps.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Shows the frames that were written from `position` on, of which none is published: for simulators, which
    /// see all that leaves.
    ///
    /// # Panics
    /// When some are published, and so may be the consumer's.
    pub fn look_back(&self, position: u64, mut on_frame: impl FnMut(RingFrame<'_>)) {
        let written = self.tail.wrapping_sub(position) as usize;
        assert!(written <= self.unpublished_bytes(), "only what is still the producer's");
        let mut at = position;
        while at != self.tail {
            let word = match at == self.published {
                true => self.first_header,
                // SAFETY: a record of ours begins there, and its header was written.
                false => unsafe { self.memory.load_word(self.offset(at)) },
            };
            let length = ((word ^ Header::check_bits(at)) & !LAST) as usize;
            if length > self.max_frame_bytes {
                at = at.wrapping_add((self.memory.capacity() - self.offset(at)) as u64);
                continue;
            }
            let start = self.offset(at) + RECORD_HEADER_BYTES;
            // SAFETY: the record was written there in whole, and nobody else accesses it before it is published.
            unsafe { self.memory.with_frame(start, length, &mut on_frame) };
            at = at.wrapping_add(record_bytes(length) as u64);
        }
    }

    /// Writes the header of a record that is not there to where the consumer looks next: a frame of so many bytes,
    /// for a position that is further by `off`. For simulators of bad producers. False if something is written, so that
    /// the consumer looks elsewhere, or if this header says that nothing is there.
    pub(in super::super) fn forge_header(&self, off: u64, length: usize) -> bool {
        let word = length as u64 | Header::check_bits(self.tail.wrapping_add(off));
        let is_next = self.unpublished_bytes() == 0 && word != NOTHING;
        if is_next {
            // SAFETY: the line at the tail is free.
            unsafe { self.memory.publish_word(self.offset(self.tail), word) };
        }
        is_next
    }

    /// Makes room for a record at the tail and for [`NOTHING`] behind it, by looking how far the
    /// consumer is and by going to the start of the ring.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, record: usize) -> Result<(), PushError> {
        let to_end = self.bytes_to_end();
        let skipped = if record <= to_end { 0 } else { to_end };
        let counted = if planted("shm_skip_is_not_counted") { 0 } else { skipped };
        if self.free_bytes() < counted + record {
            self.refresh_head().map_err(|Broken| PushError::Broken)?;
        }
        if self.free_bytes() < counted + record {
            return Err(PushError::Full);
        }
        if skipped > 0 {
            // SAFETY: `skipped` bytes from the tail are free.
            unsafe { self.write_header(Header::Skip) };
            self.tail = self.tail.wrapping_add(skipped as u64);
        }
        self.writable_bytes = self.free_bytes().min(self.bytes_to_end());
        Ok(())
    }

    /// From the tail to where the ring begins again.
    #[inline]
    pub(in super::super) fn bytes_to_end(&self) -> usize {
        self.memory.capacity() - self.offset(self.tail)
    }

    /// Bytes for records: all that are not in use, but for one line.
    #[inline]
    fn free_bytes(&self) -> usize {
        let kept_back = if planted("shm_ring_without_a_gap") { 0 } else { RECORD_ALIGN };
        self.memory.capacity() - kept_back - self.tail.wrapping_sub(self.head) as usize
    }

    /// Reads how far the consumer is: between where it was and what it can have seen.
    fn refresh_head(&mut self) -> Result<(), Broken> {
        // Pairs with the release in `Consumer::release`: the consumer has done with the bytes.
        let head = self.memory.control().head.0.load(Ordering::Acquire);
        let released = head.wrapping_sub(self.head);
        if released > self.published.wrapping_sub(self.head)
            || !head.is_multiple_of(RECORD_ALIGN as u64)
        {
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    #[inline]
    fn offset(&self, position: u64) -> usize {
        position as usize & (self.memory.capacity() - 1)
    }
}
