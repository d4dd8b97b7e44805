//! The sending side of a ring.

use super::record::{Header, RECORD_ALIGN, max_frame_limit, record_bytes};
use super::{Broken, Memory, Ordering, POLLING, is_asleep};

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
    /// Where the next record goes.
    tail: u64,
    /// The tail that the consumer knows.
    published: u64,
    /// The consumer's head when it was last read.
    head: u64,
    /// The sleep word that was last seen: the sleep that was ended last, or [`POLLING`].
    sleep_word: u64,
}

impl<M: Memory> Producer<M> {
    /// The only producer of the fresh ring in `memory`.
    ///
    /// # Panics
    /// When `max_frame_bytes` is 0 or exceeds [`max_frame_limit`].
    pub fn new(memory: M, max_frame_bytes: usize) -> Self {
        assert!((1..=max_frame_limit(memory.capacity())).contains(&max_frame_bytes));
        Self { memory, max_frame_bytes, tail: 0, published: 0, head: 0, sleep_word: 0 }
    }

    /// Writes a frame of two parts behind the others. It is not seen before [`Producer::publish`].
    ///
    /// # Errors
    /// See [`PushError`]. Nothing is written then.
    #[inline]
    pub fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), PushError> {
        let length = head.len().checked_add(body.len()).ok_or(PushError::Length)?;
        if length == 0 || length > self.max_frame_bytes {
            return Err(PushError::Length);
        }
        let record = record_bytes(length);
        let skipped = self.bytes_to_skip(record);
        self.make_room(skipped + record)?;
        if skipped > 0 {
            self.write_header(Header::Skip);
            self.tail = self.tail.wrapping_add(skipped as u64);
        }
        self.write_header(Header::Frame { length });
        let offset = self.offset() + super::RECORD_HEADER_BYTES;
        // SAFETY: `record_bytes(length)` bytes from the tail are free (`make_room`) and lie before
        // the end of the ring (`bytes_to_skip`); the header takes the first 8 of them.
        unsafe { self.memory.store_frame(offset, head, body) };
        self.tail = self.tail.wrapping_add(record as u64);
        Ok(())
    }

    /// Shows the consumer everything written so far. Returns whether there was anything new.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let is_new = self.tail != self.published;
        if is_new {
            // Pairs with the acquire in `Consumer::refresh_tail`: the records are complete.
            self.memory.control().tail.0.store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
        is_new
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
        self.sleep_word = sleep_word;
        is_new && is_asleep(sleep_word)
    }

    /// Bytes before the end of the ring that a record of `record` bytes cannot use.
    #[inline]
    fn bytes_to_skip(&self, record: usize) -> usize {
        let to_end = self.memory.capacity() - self.offset();
        if record <= to_end { 0 } else { to_end }
    }

    #[inline]
    fn make_room(&mut self, needed: usize) -> Result<(), PushError> {
        if self.free_bytes() >= needed {
            return Ok(());
        }
        self.refresh_head().map_err(|Broken| PushError::Broken)?;
        if self.free_bytes() >= needed { Ok(()) } else { Err(PushError::Full) }
    }

    #[inline]
    fn free_bytes(&self) -> usize {
        self.memory.capacity() - self.tail.wrapping_sub(self.head) as usize
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
    fn write_header(&self, header: Header) {
        // SAFETY: the tail is a multiple of 8 and at least 8 bytes from there are free: the caller
        // made room for them.
        unsafe { self.memory.store_word(self.offset(), header.encode(self.tail)) }
    }

    #[inline]
    fn offset(&self) -> usize {
        self.tail as usize & (self.memory.capacity() - 1)
    }
}
