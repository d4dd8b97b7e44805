//! The receiving side of a ring.

use std::cell::Cell;

use petrel_planted::planted;

use super::record::{
    Header, LAST, LINE_FRAME_BYTES_MAX, NOTHING, RECORD_ALIGN, RECORD_HEADER_BYTES,
    max_frame_limit, record_bytes,
};
use super::{Broken, Memory, Ordering, POLLING, Passed, RingFrame, is_asleep};

/// An impossible position: it is odd.
const NOWHERE: u64 = u64::MAX;

/// Number of frames after which [`Consumer::receive`] stops at the next end of a publication: few
/// enough to stop behind most bursts, and enough to share the costs of a turn.
///
/// After a wait, one frame is enough: the awaited publication rarely has a successor yet. A look for
/// a successor would fetch the line the producer is about to fill, and the answers to the frames
/// would wait for the fetch. If publications were already waiting, a call takes several small ones,
/// and their answers leave in one burst; otherwise bursts would stay small for ever.
const ENOUGH_FRAMES: usize = 4;

/// [`ENOUGH_FRAMES`] of a consumer that has not waited for [`BACKLOG_LINES`]. Such a consumer is the slower
/// side, and publications wait for its turns. The peer publishes parts ([`Consumer::begin_burst`]) and works meanwhile; a turn for
/// each part would only take the slower side's time. With 60 calls in flight, a client that took four frames
/// had 0.8 of the rate between near cores, and 0.7 between distant ones; sixteen frames were no better than
/// eight, and worse with 24 and 32 calls in flight.
const BACKLOG_FRAMES: usize = 8;

/// Lines that a consumer takes without a wait before it counts as the slower side: several bursts.
const BACKLOG_LINES: u64 = 64;

/// The frames of a burst that [`Consumer::begin_burst`] allows when the two sides work by turns: the
/// consumer has waited for longer than it works. The answers to these frames then leave before the
/// others are handled, and the peer works meanwhile. Two frames were a little slower, eight much.
const PART_FRAMES: usize = 4;

/// Looks at a ring that take the time of a record's line, or somewhat less: a look takes some 6 ns,
/// a small call some 45. By turns, the consumer waits for as long as the peer works on as many
/// frames, and for a line's round trip. If it waits for less, small parts would only cost more
/// turns and publications, which took 15 % of the rate of 60 calls in flight.
const LOOKS_PER_LINE: u64 = 6;

/// The result of one call of [`Consumer::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames delivered.
    pub frames: usize,
    /// Bytes of the delivered frames.
    pub bytes: usize,
    /// Publications whose last frame was delivered.
    pub publications: usize,
    /// The ring is [`Broken`]. Frames before the broken place were delivered.
    pub is_broken: bool,
}

/// Takes the frames of a [`Consumer`]. Short frames and longer ones come by different methods,
/// since the consumer has compared the length already.
pub trait TakeFrames {
    /// Takes a frame with a record of one line.
    fn line(&mut self, frame: RingFrame<'_>);

    /// Takes a frame with a longer record.
    fn long(&mut self, frame: RingFrame<'_>);
}

/// Reads records; see the [module](super).
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    max_frame_bytes: usize,
    /// The longest frame with a record of a single line.
    line_bytes_max: usize,
    /// Position of the next record.
    head: u64,
    /// The head the producer knows.
    released: u64,
    wait: Wait,
    sleep_word: u64,
    counts: Passed,
}

/// The consumer's last wait for a record, of one empty look or more.
#[derive(Debug)]
struct Wait {
    /// The head at which [`Consumer::has_data`] last found nothing, unless a sleep came in between.
    at: Cell<u64>,
    /// Empty looks there.
    looks: Cell<u64>,
    /// Lines taken between the previous wait and the last.
    lines_before: Cell<u64>,
    /// The head of this wait, or of the last one before a sleep.
    last_at: Cell<u64>,
}

impl Default for Wait {
    fn default() -> Self {
        Self {
            at: Cell::new(NOWHERE),
            looks: Cell::new(0),
            lines_before: Cell::new(0),
            last_at: Cell::new(0),
        }
    }
}

impl Wait {
    #[inline]
    fn note_look(&self, head: u64) {
        if self.at.get() != head {
            self.at.set(head);
            self.looks.set(0);
            self.lines_before.set(self.lines_since(head));
            self.last_at.set(head);
        }
        self.looks.set(self.looks.get() + 1);
    }

    /// Returns true if the record at `head` has been waited for.
    #[inline]
    fn is_over(&self, head: u64) -> bool {
        self.at.get() == head
    }

    #[inline]
    fn lines_since(&self, head: u64) -> u64 {
        head.wrapping_sub(self.last_at.get()) / RECORD_ALIGN as u64
    }

    /// Returns true if the wait took longer than the work before it.
    fn is_long(&self) -> bool {
        self.looks.get() > LOOKS_PER_LINE * self.lines_before.get()
    }

    /// Forgets the wait: many records may have come since.
    fn forget(&self) {
        self.at.set(NOWHERE);
    }
}

impl<M: Memory> Consumer<M> {
    /// Creates the only consumer of the fresh ring in `memory`, whose bytes were all 0 when the
    /// producer began.
    ///
    /// # Panics
    /// When `max_frame_bytes` is 0 or exceeds [`max_frame_limit`].
    pub fn new(memory: M, max_frame_bytes: usize) -> Self {
        assert!((1..=max_frame_limit(memory.capacity())).contains(&max_frame_bytes));
        Self {
            memory,
            max_frame_bytes,
            line_bytes_max: max_frame_bytes.min(LINE_FRAME_BYTES_MAX),
            head: 0,
            released: 0,
            wait: Wait::default(),
            sleep_word: 0,
            counts: Passed::default(),
        }
    }

    /// Prepares the next call of [`Consumer::receive`], and returns the budget for it: `budget`, or a
    /// part of it when the two sides would work by turns.
    #[inline]
    pub fn begin_burst(&self, budget: usize) -> usize {
        if self.wait.is_over(self.head) { self.begin_awaited(budget) } else { budget }
    }

    /// [`Consumer::begin_burst`] of records that the consumer has waited for.
    #[inline(never)]
    fn begin_awaited(&self, budget: usize) -> usize {
        let memory = self.memory.view();
        let at = offset(&memory, self.head);
        // SAFETY: `self.head` is the place of the next record.
        if unsafe { memory.load_word(at) } & LAST != 0 {
            return budget;
        }
        // More records are there, each in a line of the producer's cache: as many as last time, with
        // the same calls in flight. A line behind them is about to be written.
        let lines = PART_FRAMES.min(self.wait.lines_before.get() as usize);
        (1..lines).for_each(|line| memory.prefetch(at + line * RECORD_ALIGN));
        if self.wait.is_long() { budget.min(PART_FRAMES) } else { budget }
    }

    /// Lends up to `budget` frames to `on_frame`, oldest first, then releases their bytes to the
    /// producer.
    #[inline]
    pub fn receive(&mut self, budget: usize, on_frame: impl FnMut(RingFrame<'_>)) -> Received {
        let before = self.counts;
        let (frames, is_broken) = self.receive_by(budget, &mut Each(on_frame));
        let bytes = (self.counts.bytes - before.bytes) as usize;
        let publications = (self.counts.publications - before.publications) as usize;
        Received { frames, bytes, publications, is_broken }
    }

    /// [`Consumer::receive`] for a taker that tells frames of one line from longer ones. Returns
    /// the number of frames, and true if the ring is [`Broken`]; [`Consumer::counts`] has the rest.
    #[inline(always)]
    pub fn receive_by<T: TakeFrames>(&mut self, budget: usize, taker: &mut T) -> (usize, bool) {
        let mut is_broken = false;
        let mut left = budget;
        // Enough frames are delivered when no more than these are left.
        let enough_left = budget.saturating_sub(self.enough_frames());
        'burst: while left > 0 {
            let (mut head, pause_after) = (self.head, self.pause_after());
            loop {
                let memory = self.memory.view();
                let at = offset(&memory, head);
                // SAFETY: `head` is the place of the next record.
                let word = unsafe { memory.load_word(at) };
                let length = checked_length(word, head);
                if length.wrapping_sub(1) < self.line_bytes_max {
                    head = head.wrapping_add(RECORD_ALIGN as u64);
                    self.counts.bytes += length as u64;
                    // SAFETY: `new` bounds `line_bytes_max` by this value. The record is the line
                    // at `at`, which lies in the ring. A header is published with all of its
                    // record, and the bytes are released only afterwards.
                    unsafe {
                        std::hint::assert_unchecked(length <= LINE_FRAME_BYTES_MAX);
                        memory.with_frame(at + RECORD_HEADER_BYTES, length, |it| taker.line(it));
                    }
                } else if is_frame(&memory, length, at, self.max_frame_bytes) {
                    head = head.wrapping_add(record_bytes(length) as u64);
                    self.counts.bytes += length as u64;
                    // SAFETY: `is_frame` found that the record ends before the end of the ring; the
                    // rest is as above.
                    unsafe {
                        memory.with_frame(at + RECORD_HEADER_BYTES, length, |it| taker.long(it));
                    }
                } else {
                    drop(memory);
                    self.release(head);
                    match self.pass(word) {
                        Ok(true) => continue 'burst,
                        Ok(false) => break 'burst,
                        Err(Broken) => {
                            is_broken = true;
                            break 'burst;
                        }
                    }
                }
                left -= 1;
                if word & LAST != 0 {
                    self.counts.publications += 1;
                    if left <= enough_left {
                        self.head = head;
                        break 'burst;
                    }
                }
                if left == 0 || (pause_after.wrapping_sub(head) as i64) < 0 {
                    break;
                }
            }
            self.release(head);
        }
        self.release(self.head);
        let frames = budget - left;
        self.counts.frames += frames as u64;
        (frames, is_broken)
    }

    /// Returns what was delivered in the consumer's life.
    pub fn counts(&self) -> Passed {
        self.counts
    }

    /// Lends the frames of the next [`Consumer::receive`] with this `budget`, and leaves them in the
    /// ring. Stops at the end of the ring's memory, and before any broken place; a publication that
    /// comes later may be received, too.
    #[inline]
    pub fn look_ahead(&mut self, budget: usize, mut on_frame: impl FnMut(RingFrame<'_>)) {
        let mut head = self.head;
        let enough = self.enough_frames();
        for shown in 1..=budget {
            let memory = self.memory.view();
            let at = offset(&memory, head);
            // SAFETY: `head` is the place of the next record.
            let word = unsafe { memory.load_word(at) };
            let length = checked_length(word, head);
            if !is_frame(&memory, length, at, self.max_frame_bytes) {
                break;
            }
            // SAFETY: as in `receive_by`; no bytes are released here.
            unsafe { memory.with_frame(at + RECORD_HEADER_BYTES, length, &mut on_frame) };
            head = head.wrapping_add(record_bytes(length) as u64);
            if word & LAST != 0 && shown >= enough {
                break;
            }
        }
    }

    /// Returns true if [`Consumer::receive`] would find a frame or a broken ring.
    #[inline]
    pub fn has_data(&self) -> bool {
        // SAFETY: `self.head` is the place of the next record.
        let word = unsafe { self.memory.load_word(self.offset(self.head)) };
        if word == NOTHING {
            self.wait.note_look(self.head);
        }
        word != NOTHING
    }

    /// Declares to the producer for all time that no wake-up is needed.
    pub fn declare_polling(&mut self) {
        self.declare(POLLING);
    }

    /// Declares to the producer that a wake-up is needed from now on. The caller then executes a
    /// [`sleep_fence`](super::sleep_fence), and sleeps only if [`Consumer::has_data`] is false
    /// afterwards.
    #[inline]
    pub fn declare_sleep(&mut self) {
        if self.sleep_word != POLLING && !is_asleep(self.sleep_word) {
            self.declare(self.sleep_word + 1);
        }
    }

    /// Revokes [`Consumer::declare_sleep`].
    #[inline]
    pub fn declare_awake(&mut self) {
        if is_asleep(self.sleep_word) {
            self.declare(self.sleep_word + 1);
            // Many records may arrive until a sleeper is awake.
            self.wait.forget();
        }
    }

    /// When the producer sent its latest wake-up, as [`Producer::note_wake`](super::Producer::note_wake) has it: any value of a
    /// hostile producer.
    pub fn rung_ns(&self) -> u64 {
        // A wake-up orders the store before the consumer's first look.
        self.memory.control().sleep.0.rung_ns.load(Ordering::Relaxed)
    }

    /// The number of declared sleeps so far: the producer wakes at most once per sleep.
    pub fn sleep_count(&self) -> u64 {
        if self.sleep_word == POLLING { 0 } else { self.sleep_word.div_ceil(2) }
    }

    /// Reports a false head to the producer: `lie` of the released head and of the ring's capacity.
    /// For simulators of bad consumers.
    pub(in super::super) fn lie_about_head(&self, lie: impl FnOnce(u64, usize) -> u64) {
        let head = lie(self.released, self.memory.capacity());
        self.memory.control().head.0.store(head, Ordering::Release);
    }

    #[inline]
    fn declare(&mut self, sleep_word: u64) {
        self.sleep_word = sleep_word;
        // The word publishes no further bytes; the sleep fence orders the store where necessary.
        self.memory.control().sleep.0.word.store(sleep_word, Ordering::Relaxed);
    }

    /// See [`ENOUGH_FRAMES`] and [`BACKLOG_FRAMES`].
    #[inline]
    fn enough_frames(&self) -> usize {
        if self.wait.is_over(self.head) {
            1
        } else if self.wait.lines_since(self.head) < BACKLOG_LINES {
            ENOUGH_FRAMES
        } else {
            BACKLOG_FRAMES
        }
    }

    /// The last position in this eighth of the ring: behind it the consumer releases bytes, even if
    /// the burst goes on. The end of the ring is the end of an eighth.
    #[inline]
    fn pause_after(&self) -> u64 {
        self.head | (self.memory.capacity() as u64 / 8 - 1)
    }

    /// Handles a `word` at the head that is no frame's header. Returns true after a skip to the
    /// start of the ring, and false if there is no record yet.
    #[inline]
    fn pass(&mut self, word: u64) -> Result<bool, Broken> {
        if word == NOTHING {
            return Ok(false);
        }
        let skipped = self.skip_to_start(word);
        if skipped.is_err() && planted("shm_bad_header_is_waited_for") {
            return Ok(false);
        }
        skipped.map(|()| true)
    }

    /// Moves the head to the start of the ring if `word` is a skip. A skip is shorter than any
    /// record, and never occurs at the start.
    #[cold]
    #[inline(never)]
    fn skip_to_start(&mut self, word: u64) -> Result<(), Broken> {
        let to_end = self.memory.capacity() - self.offset(self.head);
        if word != Header::Skip.encode(self.head) || to_end > self.memory.capacity() / 2 {
            return Err(Broken);
        }
        self.head = self.head.wrapping_add(to_end as u64);
        Ok(())
    }

    /// Releases everything before `head` to the producer.
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
        offset(&self.memory, position)
    }
}

/// Each frame to the same closure.
struct Each<F>(F);

impl<F: FnMut(RingFrame<'_>)> TakeFrames for Each<F> {
    #[inline]
    fn line(&mut self, frame: RingFrame<'_>) {
        self.0(frame);
    }

    #[inline]
    fn long(&mut self, frame: RingFrame<'_>) {
        self.0(frame);
    }
}

#[inline(always)]
fn offset(memory: &impl Memory, position: u64) -> usize {
    position as usize & memory.mask()
}

/// Returns the length in a header for the position `head`. For an empty word, a skip, or a header
/// of another position, returns a length that no frame has.
#[inline(always)]
fn checked_length(word: u64, head: u64) -> usize {
    ((word ^ Header::check_bits(head)) & !LAST) as usize
}

/// Returns true if a [`checked_length`] is possible, and a record of this length at the offset `at`
/// ends at or before the end of the ring.
#[inline(always)]
fn is_frame(memory: &impl Memory, length: usize, at: usize, max_bytes: usize) -> bool {
    // No overflow: a possible length has 31 bits.
    length.wrapping_sub(1) < max_bytes && at + record_bytes(length) <= memory.capacity()
}
