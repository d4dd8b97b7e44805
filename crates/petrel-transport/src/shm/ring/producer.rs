//! The sending side of a ring.

use petrel_planted::planted;

use super::record::{
    Header, LAST, LINE_FRAME_BYTES_MAX, NOTHING, RECORD_ALIGN, RECORD_HEADER_BYTES,
    max_frame_limit, position, record_bytes,
};
use crate::copy::INLINE_BYTES_MAX;

use super::{Broken, Memory, Ordering, POLLING, Passed, RingFrame, is_asleep};

/// The shortest frame that [`Producer::push_line`] accepts: a header alone.
const LINE_FRAME_BYTES_MIN: usize = 16;

/// How far ahead of a record of one line the producer fetches a line to write: four records. The
/// line was last in the consumer's cache, and a store to it would wait for the hand-over, and every
/// later store with it. 60 calls in flight were 1.2 to 2.0 times as fast between two distant cores
/// (a line's round trip of 480 ns), and 1.04 between near ones (130 ns). Eight records ahead were as
/// good, 16 were not, and two were half as good.
const FETCHED_AHEAD_BYTES: usize = 4 * RECORD_ALIGN;

/// An impossible position: it is odd.
const NOWHERE: u64 = u64::MAX;

/// Why a frame was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The consumer has not released enough bytes yet. Publish, and offer the frame again later.
    Full,
    /// The frame is empty or longer than agreed.
    Length,
    /// See [`Broken`].
    Broken,
}

/// Writes records; see the [module](super).
#[derive(Debug)]
#[repr(C)]
pub struct Producer<M> {
    /// Frames written so far.
    frames: u64,
    memory: M,
    max_frame_bytes: usize,
    /// Largest frame that is copied without a call.
    small_bytes_max: usize,
    /// The number of lengths that [`Producer::push_line`] accepts.
    line_frame_lengths: usize,
    /// Position of the next record.
    tail: u64,
    /// Position of the first record that is not published yet.
    published: u64,
    /// A position with [`NOTHING`], unless already overwritten by a record; or [`NOWHERE`].
    cleared: u64,
    /// The header of the first unpublished record, if any.
    first_header: u64,
    last_header: u64,
    /// The consumer's head when it was last read.
    head: u64,
    /// The bytes from the tail up to this position are known to be free, and lie before the end of
    /// the ring. A multiple of [`RECORD_ALIGN`], like the tail.
    writable_end: u64,
    /// The last sleep word seen: the last sleep that was ended, or [`POLLING`].
    sleep_word: u64,
    /// Bytes of the frames. Not next to `frames`: the compiler would then update the two at once, in
    /// more instructions.
    bytes: u64,
    publications: u64,
}

impl<M: Memory> Producer<M> {
    /// Creates the only producer of the fresh ring in `memory`, whose bytes are all 0.
    ///
    /// # Panics
    /// When `max_frame_bytes` is 0 or exceeds [`max_frame_limit`].
    pub fn new(memory: M, max_frame_bytes: usize) -> Self {
        assert!((1..=max_frame_limit(memory.capacity())).contains(&max_frame_bytes));
        Self {
            frames: 0,
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
            writable_end: 0,
            sleep_word: 0,
            bytes: 0,
            publications: 0,
        }
    }

    /// Appends a frame of two parts. [`Producer::publish`] makes the frame visible.
    ///
    /// # Errors
    /// See [`PushError`]. Nothing is written then.
    #[inline]
    pub fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), PushError> {
        let length = head.len() + body.len();
        // Checks the two ends of the range of lengths in one comparison.
        if length.wrapping_sub(1) >= self.max_frame_bytes {
            return Err(PushError::Length);
        }
        if record_bytes(length) > self.writable_bytes() {
            self.make_room(record_bytes(length))?;
        }
        self.write(head, body);
        Ok(())
    }

    /// [`Producer::push`] of a small frame into room that is known to be free; returns false
    /// otherwise. The function contains no call, so the caller has nothing to save and restore.
    #[inline]
    pub fn push_at_once(&mut self, head: &[u8], body: &[u8]) -> bool {
        let length = head.len() + body.len();
        if length.wrapping_sub(1) >= self.small_bytes_max
            || record_bytes(length) > self.writable_bytes()
        {
            return false;
        }
        // SAFETY: `new` bounds `small_bytes_max` by this value, and `small_bytes_max` never
        // changes. The compiler thus omits the copy of large frames, with 14 instructions to
        // prepare for its call.
        unsafe { std::hint::assert_unchecked(length <= INLINE_BYTES_MAX) };
        self.write(head, body);
        true
    }

    /// [`Producer::push`] of a frame with a record of one line, as in most small calls, into known
    /// free room; returns false otherwise. Short enough to be inlined at every call.
    #[inline(always)]
    pub fn push_line(&mut self, frame: &[u8]) -> bool {
        let length = frame.len();
        // Checks the two ends of the range of lengths in one comparison.
        if length.wrapping_sub(LINE_FRAME_BYTES_MIN) >= self.line_frame_lengths {
            return false;
        }
        let Some(at) = self.begin_line(length) else { return false };
        // SAFETY: the line is free. The frame fits into it: `new` bounds the lengths accordingly.
        unsafe {
            std::hint::assert_unchecked(length <= LINE_FRAME_BYTES_MAX);
            self.memory.view().store_line(at, frame);
        }
        true
    }

    /// [`Producer::push_line`] of a header of 16 bytes, as two words in little-endian order, and a
    /// message.
    #[inline(always)]
    pub fn push_message(&mut self, header: [u64; 2], message: &[u8]) -> bool {
        if message.len() >= self.line_frame_lengths {
            return false;
        }
        let length = LINE_FRAME_BYTES_MIN + message.len();
        let Some(at) = self.begin_line(length) else { return false };
        // SAFETY: as in `push_line`.
        unsafe {
            std::hint::assert_unchecked(length <= LINE_FRAME_BYTES_MAX);
            self.memory.view().store_message(at, header, message);
        }
        true
    }

    /// Begins a record of one line for a frame of this length, if there is known free room: all but
    /// the copy of the frame, so that the copy needs few registers. Returns the offset of the
    /// record.
    #[inline(always)]
    fn begin_line(&mut self, length: usize) -> Option<usize> {
        let tail = self.tail;
        // The two are multiples of a line, and the tail is not beyond.
        if tail == self.writable_end {
            return None;
        }
        self.tail = tail.wrapping_add(RECORD_ALIGN as u64);
        self.count(length);
        let word = Header::Frame { length }.encode(tail);
        self.last_header = word;
        let at = self.offset(tail);
        // As in `write_header`.
        if tail != self.published {
            // Not for the first record: it would delay a record that is alone. Without a mask: at the
            // end of the ring, some lines behind it are fetched in vain.
            self.memory.view().prefetch_write::<FETCHED_AHEAD_BYTES>(at);
            // SAFETY: the line from the former tail on is free.
            unsafe { self.memory.view().store_word(at, word) };
        } else {
            self.first_header = word;
        }
        Some(at)
    }

    #[inline(always)]
    fn count(&mut self, length: usize) {
        self.frames += 1;
        self.bytes += length as u64;
    }

    /// Returns what was written in the producer's life.
    pub fn counts(&self) -> Passed {
        let Self { frames, bytes, publications, .. } = *self;
        Passed { frames, bytes, publications }
    }

    /// Makes the next [`Producer::push`] check for room first.
    pub fn forget_room(&mut self) {
        self.writable_end = self.tail;
    }

    /// Writes the record of a frame of a valid length into writable bytes.
    #[inline(always)]
    fn write(&mut self, head: &[u8], body: &[u8]) {
        let length = head.len() + body.len();
        let record = record_bytes(length);
        debug_assert!(record <= self.writable_bytes());
        let tail = self.tail;
        // SAFETY: `record` bytes from the tail are free and lie before the end of the ring: no more
        // than `writable_bytes`. The header occupies the first of them.
        unsafe {
            self.write_header(Header::Frame { length });
            self.memory.store_frame(self.offset(tail) + RECORD_HEADER_BYTES, head, body);
        }
        self.tail = tail.wrapping_add(record as u64);
        self.count(length);
    }

    /// Writes the header of the record at the tail. The first header of a burst is kept back
    /// instead, since its later store publishes the burst.
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
            // SAFETY: the tail is a multiple of `RECORD_ALIGN`, and the line is free by this
            // function's contract.
            unsafe { self.memory.store_word(self.offset(self.tail), word) };
        }
    }

    /// Publishes all written records to the consumer. Returns true if there was a new record.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.publish_with(LAST)
    }

    /// [`Producer::publish`] in the middle of a burst: more records follow at once, so the consumer
    /// had better look behind the visible records.
    pub fn publish_part(&mut self) -> bool {
        self.publish_with(0)
    }

    #[inline(always)]
    fn publish_with(&mut self, mark: u64) -> bool {
        let is_new = self.tail != self.published;
        if is_new {
            let first = self.offset(self.published);
            let last_header = self.last_header | mark;
            // SAFETY: all positions are multiples of `RECORD_ALIGN`. `make_room` leaves the line at
            // the tail free; the lines of the records still belong to the producer.
            unsafe {
                if self.tail != self.cleared {
                    self.memory.store_word(self.offset(self.tail), NOTHING);
                }
                // Pairs with the acquire in `Consumer::receive`, which makes all earlier stores
                // visible.
                // Headers differ by their positions.
                if self.last_header == self.first_header {
                    self.memory.publish_word(first, last_header);
                } else {
                    let last = self.offset(position(self.last_header));
                    self.memory.store_word(last, last_header);
                    self.memory.publish_word(first, self.first_header);
                }
            }
            self.published = self.tail;
            self.publications += 1;
            self.clear_ahead();
        }
        is_new
    }

    /// Writes [`NOTHING`] in advance, to the place behind the next one-line record, while no peer
    /// waits for the store. Just before a publication, the consumer, which polls the record's line,
    /// would take that line back while the store waits for the line behind.
    #[inline]
    fn clear_ahead(&mut self) {
        let ahead = self.tail.wrapping_add(RECORD_ALIGN as u64);
        if self.writable_bytes() > RECORD_ALIGN {
            if !planted("shm_old_record_stays") {
                // SAFETY: more than the line at the tail is writable, so the next line is free too.
                unsafe { self.memory.store_word(self.offset(ahead), NOTHING) };
            }
            self.cleared = ahead;
        }
    }

    /// Bytes written but not yet published to the consumer.
    #[inline]
    pub fn unpublished_bytes(&self) -> usize {
        self.tail.wrapping_sub(self.published) as usize
    }

    /// Returns true if a [`sleep_fence`](super::sleep_fence) and [`Producer::take_sleeper`] are due
    /// after publishing: not for a consumer that never sleeps.
    #[inline]
    pub fn consumer_may_sleep(&self) -> bool {
        self.sleep_word != POLLING
    }

    /// Returns true if the caller must now wake the consumer. To be called after
    /// [`Producer::publish`] and a [`sleep_fence`](super::sleep_fence).
    #[inline]
    pub fn take_sleeper(&mut self) -> bool {
        let sleep_word = self.memory.control().sleep.0.word.load(Ordering::Relaxed);
        let is_new = sleep_word != self.sleep_word;
        self.sleep_word = if planted("shm_wakes_again_and_again") { 0 } else { sleep_word };
        is_new && is_asleep(sleep_word)
    }

    /// Notes the time of a wake-up that the caller is about to send, by a clock that the consumer shares.
    pub fn note_wake(&mut self, now_ns: u64) {
        self.memory.control().sleep.0.rung_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Revokes [`Producer::take_sleeper`]: the consumer could not be woken, and the next call
    /// reports the sleep again.
    #[cold]
    pub fn forget_sleeper(&mut self) {
        if !planted("shm_refused_wake_is_lost") {
            self.sleep_word = 0;
        }
    }

    /// Bytes from the tail that are known to be free and lie before the end of the ring.
    #[inline]
    fn writable_bytes(&self) -> usize {
        self.writable_end.wrapping_sub(self.tail) as usize
    }

    /// Position of the next record, counted through all laps.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Shows the frames written from `position` on, all still unpublished: for simulators, which
    /// see every sent frame.
    ///
    /// # Panics
    /// When some are published, and may already belong to the consumer.
    pub fn look_back(&self, position: u64, mut on_frame: impl FnMut(RingFrame<'_>)) {
        let written = self.tail.wrapping_sub(position) as usize;
        assert!(written <= self.unpublished_bytes(), "only what is still the producer's");
        let mut at = position;
        while at != self.tail {
            let word = match at == self.published {
                true => self.first_header,
                // SAFETY: a record of the producer begins at `at`, with a written header.
                false => unsafe { self.memory.load_word(self.offset(at)) },
            };
            let length = ((word ^ Header::check_bits(at)) & !LAST) as usize;
            if length > self.max_frame_bytes {
                at = at.wrapping_add((self.memory.capacity() - self.offset(at)) as u64);
                continue;
            }
            let start = self.offset(at) + RECORD_HEADER_BYTES;
            // SAFETY: the whole record was written there, and only the producer accesses it before
            // publication.
            unsafe { self.memory.with_frame(start, length, &mut on_frame) };
            at = at.wrapping_add(record_bytes(length) as u64);
        }
    }

    /// Writes the header of a missing record at the consumer's next place: a frame of `length`
    /// bytes, for a position that is further by `off`. For simulators of bad producers. Returns
    /// false if unpublished records make the consumer look elsewhere, or if the header would equal
    /// [`NOTHING`].
    pub(in super::super) fn forge_header(&self, off: u64, length: usize) -> bool {
        let word = length as u64 | Header::check_bits(self.tail.wrapping_add(off));
        let is_next = self.unpublished_bytes() == 0 && word != NOTHING;
        if is_next {
            // SAFETY: the line at the tail is free.
            unsafe { self.memory.publish_word(self.offset(self.tail), word) };
        }
        is_next
    }

    /// Makes room for a record at the tail and for [`NOTHING`] behind it, by reading the consumer's
    /// head and by skipping to the start of the ring.
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
        let writable = self.free_bytes().min(self.bytes_to_end());
        self.writable_end = self.tail.wrapping_add(writable as u64);
        Ok(())
    }

    /// Bytes from the tail to the end of the ring.
    #[inline]
    pub(in super::super) fn bytes_to_end(&self) -> usize {
        self.memory.capacity() - self.offset(self.tail)
    }

    /// Bytes for records: all unused bytes, except one line.
    #[inline]
    fn free_bytes(&self) -> usize {
        let kept_back = if planted("shm_ring_without_a_gap") { 0 } else { RECORD_ALIGN };
        self.memory.capacity() - kept_back - self.tail.wrapping_sub(self.head) as usize
    }

    /// Reads the consumer's head, which must lie between the last known head and the published
    /// position.
    fn refresh_head(&mut self) -> Result<(), Broken> {
        // Pairs with the release in `Consumer::release`: the consumer has finished with the bytes.
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
        position as usize & self.memory.mask()
    }
}
