//! A ring of variable-length records, for one producer and one consumer with shared memory but no
//! trust.
//!
//! # The simple algorithm
//!
//! A ring is `capacity` bytes (a power of two) and two positions, `tail` and `head`, that count
//! bytes and only grow. The producer copies a record to `tail`, then stores `tail + record` with
//! release. The consumer loads `tail` with acquire, reads the records between `head` and `tail` in
//! place, then stores its new `head` with release. The producer loads `head` with acquire before it
//! overwrites the released bytes. `tail - head` bytes are in use, which distinguishes a full ring
//! from an empty one.
//!
//! A record never crosses the end of the ring, hence the consumer can lend any record in one piece.
//! If too few bytes remain for the next record, a marker skips them.
//!
//! # Departures from the simple algorithm
//!
//! 1. *No shared tail.* A record begins with a header word, and the consumer polls the place of its
//!    next record instead of a tail: 0 means no record yet. A record then costs the consumer one
//!    cache line, where a tail and a record cost two. See below.
//! 2. *Private positions.* Either side keeps its position in private memory, and only reports the
//!    position in the shared word. Writes of the peer to the shared words thus cannot move our
//!    position.
//! 3. *A cached head.* The producer remembers the last head it read, and reads the shared word
//!    again only if the old head leaves too little room.
//! 4. *Batched publication.* [`Producer::push`] writes records, and [`Producer::publish`] makes all
//!    of them visible at once. Heads are released once per burst, and at the end of each eighth of
//!    the ring, so a long burst of large frames does not starve the producer.
//! 5. *Sleep by declaration.* The consumer declares in a word of its own whether it sleeps. The
//!    producer reads the word after publishing. See below.
//!
//! # Publication by the first header
//!
//! The producer writes all of a burst except the header of the first record, and keeps that header.
//! To publish, the producer writes 0 to the start of the next burst, and then the kept header with
//! release. The consumer loads headers with acquire, and thus sees the burst in whole, and 0 behind
//! the burst. One line behind the records is always free for the 0. Every place is therefore 0
//! before the consumer's first look, and bytes of an earlier lap are never taken for a record.
//!
//! Records are aligned to cache lines ([`RECORD_ALIGN`]): a small frame and the header share a
//! line, and the polled place lies in a line of no earlier record.
//!
//! The last record of a burst is marked, to spare the consumer a look behind the record. The look
//! would fetch the very line the producer fills next, and the burst's answers would wait for the
//! fetch.
//!
//! Measured between two cores, baseline ping-pong of 48 B, best of seven: tail and records aligned
//! to 8 bytes 525 ns, to 64 bytes 430; header instead of tail, 64 bytes 300; the last with a look
//! behind the record before the answer 370. Calls of 32 B went from 0.65 to 0.45 µs, of which the
//! baseline takes 0.32. Calls with 60 in flight lost 6 to 9 % of their rate, and 12 % when the
//! consumer always looked for more behind a burst it had not waited for. Bulk was unchanged.
//!
//! # Both sides work at once
//!
//! With few calls in flight the two sides would work by turns: all requests come as one burst, and
//! all answers as another. A consumer that has waited for longer than it worked before therefore
//! takes only a few frames of the next burst ([`Consumer::begin_burst`]), whose answers leave before the
//! others are handled. A wait is measured in empty looks, and the work in lines.
//!
//! A line last used by the other side takes a hand-over, which a program would wait for at every
//! record. The producer fetches the lines of later records to write them, and a consumer at the
//! begin of an awaited burst the lines of the next records. `PERFORMANCE.md` has the attempts and
//! their gains ("The ring's hand-over").
//!
//! # Sleeping without losing a wake-up
//!
//! The sleep word counts the consumer's transitions: odd for asleep, even for awake. The consumer
//! makes the word odd, executes a sequentially consistent [`fence`](sleep_fence), and looks once
//! more at the place of its next record. It sleeps only if there is none. The producer publishes a
//! header, executes the same fence, and loads the sleep word. In the total order of fences, one of
//! the two comes first: either the consumer then sees the header, or the producer sees the sleep.
//!
//! The producer remembers the last ended sleep. A sleep thus costs the producer a single system
//! call, and the word has a single writer. Later records, published before the consumer's next
//! sleep, are found by the check before that sleep: had the producer seen that sleep, the producer
//! would have ended it.
//!
//! (An earlier form had the producer swap the word to "awake". It was no simpler, let a bad
//! producer write to the consumer's word, and loom could not follow it: loom does not model that
//! nothing can come between the value a swap reads and the value it writes in the order of a word's
//! values.)
//!
//! The fence waits until the producer's stores have left the store buffer, including the fetch of
//! the header's cache line from the consumer's core. Measured (with a tail) between two cores of a
//! small virtual machine, best of 25 windows: 9 instead of 16 million frames of 64 bytes per second
//! with a publication for each, 13 instead of 39 with a publication for two, and no difference from
//! 16 up. Therefore one fence serves all the rings of a burst. A consumer that polls for ever
//! declares so at the start with [`Consumer::declare_polling`], which cannot be revoked, and its
//! producer omits the fence. (`membarrier` would move the cost to the sleeper, but interrupts every
//! polling thread of every such process on the host at every sleep.)
//!
//! # Untrusted values
//!
//! Any value read from shared memory may be garbage: the peer may have crashed, be another version,
//! or be hostile. A head must lie between the last known head and the published position, and be
//! aligned. A record's header word is read once. It must carry the check value of its own position
//! and a length from 1 to the agreed maximum, and its record must lie in whole before the end of
//! the ring. The record then also ends within a ring's length of the released head, as a record has
//! at most half of the ring and heads are released every eighth. A skip must lead over at most half
//! of the ring, so that no two skips can follow one another. Any other value makes the ring
//! [`Broken`]; no access depends on an unchecked value. The budget of the call bounds every loop.
//!
//! The core is generic over [`Memory`]: the same code runs in a mapped segment and, with tracked
//! cells, under loom (`tests/loom_ring.rs`).

mod consumer;
mod producer;
mod record;

#[cfg(all(test, not(loom)))]
mod heap;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod words;

pub use consumer::{Consumer, Received, TakeFrames};
pub use producer::{Producer, PushError};
pub use record::{RECORD_ALIGN, RECORD_HEADER_BYTES, max_frame_limit};

use super::sync::{AtomicU64, Ordering, fence};
pub use crate::shared::RingFrame;

/// The sleep word of a consumer that never sleeps. Even, and not reached by counting.
const POLLING: u64 = u64::MAX - 1;

/// Returns true if the sleep word declares that the consumer sleeps, or is about to.
#[inline]
fn is_asleep(sleep_word: u64) -> bool {
    sleep_word % 2 == 1
}

/// The sums of an end of a ring since it was made: written by a producer, delivered by a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Frames.
    pub frames: u64,
    /// Bytes of the frames.
    pub bytes: u64,
    /// Publications; at the consumer those whose last frame was delivered.
    pub publications: u64,
}

/// The peer wrote a value no correct peer writes. The ring is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// One shared word alone in a pair of cache lines. 128 bytes: the prefetcher of common x86 cores
/// fetches lines in pairs.
#[repr(C, align(128))]
#[derive(Debug)]
struct Line<T>(T);

/// The words shared by the two sides, with one writer per word.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// Position of the first record still in use. Written by the consumer.
    head: Line<AtomicU64>,
    sleep: Line<Sleep>,
}

/// The words of the consumer's sleep.
#[repr(C)]
#[derive(Debug)]
struct Sleep {
    /// Odd while the consumer sleeps, or [`POLLING`]. Written by the consumer.
    word: AtomicU64,
    /// When the producer sent its latest wake-up, by a clock that both sides share; 0 before the first. Written by the producer.
    rung_ns: AtomicU64,
}

impl Control {
    /// The state of a fresh ring, which is all zeros.
    #[expect(clippy::new_without_default, reason = "not a value to have by default")]
    pub fn new() -> Self {
        let sleep = Sleep { word: AtomicU64::new(0), rung_ns: AtomicU64::new(0) };
        Self { head: Line(AtomicU64::new(0)), sleep: Line(sleep) }
    }
}

/// The bytes of a ring and its control words.
///
/// # Safety
/// `capacity` is a power of two, at least two times [`RECORD_ALIGN`], and never changes. Accesses
/// at offsets below it that meet the methods' conditions are valid for the life of the value. All
/// bytes of a fresh ring are 0.
pub unsafe trait Memory {
    /// The same memory, borrowed. In a loop, the address and capacity of a view stay in registers,
    /// although the compiler does not know the writes in between.
    type View<'a>: Memory
    where
        Self: 'a;

    /// See [`Memory::View`].
    fn view(&self) -> Self::View<'_>;

    /// The shared words.
    fn control(&self) -> &Control;

    /// Size of the ring in bytes.
    fn capacity(&self) -> usize;

    /// The capacity less 1: masks a position to an offset.
    #[inline(always)]
    fn mask(&self) -> usize {
        self.capacity() - 1
    }

    /// Starts to load the line at `offset`, which the consumer reads soon. A hint: any offset is
    /// allowed, and an offset beyond the capacity loads a line that is not needed.
    #[inline(always)]
    fn prefetch(&self, _offset: usize) {}

    /// [`Memory::prefetch`] of a line that the producer writes soon: the one `AHEAD_BYTES` behind
    /// `offset`.
    #[inline(always)]
    fn prefetch_write<const AHEAD_BYTES: usize>(&self, _offset: usize) {}

    /// Writes a record's header, atomically and without order.
    ///
    /// # Safety
    /// `offset` is a multiple of [`RECORD_ALIGN`] below the capacity. Only the producer calls this,
    /// for a free line.
    unsafe fn store_word(&self, offset: usize, word: u64);

    /// Writes a record's header, atomically and with release: all earlier stores come before it.
    ///
    /// # Safety
    /// As for [`Memory::store_word`]. The consumer may be looking at the word.
    unsafe fn publish_word(&self, offset: usize, word: u64);

    /// Reads the word at a place for a record's header, once, atomically and with acquire.
    ///
    /// # Safety
    /// `offset` is a multiple of [`RECORD_ALIGN`] below the capacity. Only the consumer calls this,
    /// for the place of the next record: no frame's bytes are being written there.
    unsafe fn load_word(&self, offset: usize) -> u64;

    /// Copies a frame's two parts into the ring, without a gap.
    ///
    /// # Safety
    /// `offset` is a multiple of 8, and `offset` plus the two lengths is at most the capacity. Only
    /// the producer calls this, for free bytes.
    unsafe fn store_frame(&self, offset: usize, head: &[u8], body: &[u8]);

    /// [`Memory::store_frame`] of one part of 16 to [`RECORD_ALIGN`] − [`RECORD_HEADER_BYTES`]
    /// bytes, behind the header at `offset`.
    ///
    /// # Safety
    /// As for [`Memory::store_frame`] behind the header, and `frame` has a length in that range.
    #[inline(always)]
    unsafe fn store_line(&self, offset: usize, frame: &[u8]) {
        // SAFETY: the caller's conditions are those of `store_frame`.
        unsafe { self.store_frame(offset + RECORD_HEADER_BYTES, frame, &[]) }
    }

    /// [`Memory::store_line`] of a frame of two words in little-endian order and a message.
    ///
    /// # Safety
    /// As for [`Memory::store_line`].
    #[inline(always)]
    unsafe fn store_message(&self, offset: usize, header: [u64; 2], message: &[u8]) {
        let head: [[u8; 8]; 2] = header.map(u64::to_le_bytes);
        // SAFETY: the caller's conditions are those of `store_frame`.
        unsafe { self.store_frame(offset + RECORD_HEADER_BYTES, head.as_flattened(), message) }
    }

    /// Lends a frame to `f`.
    ///
    /// # Safety
    /// `offset` is a multiple of 8, and `offset + length` is at most the capacity. Only the
    /// consumer calls this, for published and unreleased bytes.
    unsafe fn with_frame<R>(
        &self,
        offset: usize,
        length: usize,
        f: impl FnOnce(RingFrame<'_>) -> R,
    ) -> R;
}

/// Orders earlier stores before later loads: the only place that needs sequential consistency. One
/// fence serves any number of rings.
#[inline]
pub fn sleep_fence() {
    fence(Ordering::SeqCst);
}
