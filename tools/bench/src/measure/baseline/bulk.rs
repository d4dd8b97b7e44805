//! Shared memory, large messages: a ring between a copying producer and a copying consumer.
//!
//! Messages are copied from the calling end's memory into the answering end's, in chunks of 8 KiB. The calling end has
//! as many messages as the library has calls in flight, and sends them in turn. Both sides continue without a pause
//! between messages.
//!
//! # Why the unsafe code is sound
//!
//! A chunk belongs to the producer while `consumed + CHUNKS > number >= produced`, and to the consumer while `consumed
//! <= number < produced`. `produced` is stored (release) after the producer's last write to a chunk and loaded
//! (acquire) before the consumer's first read of the chunk; `consumed` likewise in the other direction. There is a
//! single producer and a single consumer, and neither is `Clone`: neither accesses a chunk owned by its peer.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use petrel_transport::clock;
use petrel_transport::shm::DEFAULT_RING_BYTES;

use super::super::ends::{ClientEnd, ServerEnd};
use super::super::window::Window;
use super::WindowCounts;

/// Bytes copied at once.
const CHUNK_BYTES: usize = 8 << 10;

/// Chunks in the ring: 1 MiB, as large as the library's. With a smaller ring the ratio would compare
/// ring sizes: the size decides the cache level of the lines when the reading core needs data.
/// `bench/bare/ring.c` measures a sweep of sizes.
const CHUNKS: u64 = 128;

const _: () = assert!(CHUNKS as usize * CHUNK_BYTES == DEFAULT_RING_BYTES);

#[repr(align(128))]
struct Index(AtomicU64);

#[repr(align(4096))]
struct Chunk(UnsafeCell<[u8; CHUNK_BYTES]>);

struct Ring {
    produced: Index,
    consumed: Index,
    chunks: Box<[Chunk]>,
    /// Chunks whose mark differed from their number.
    mismatched: AtomicU64,
}

// SAFETY: see the module's documentation: a chunk is used by one thread at a time.
unsafe impl Sync for Ring {}

/// The calling end: copies into the ring.
pub(in super::super) struct Producer {
    ring: Arc<Ring>,
    /// As many messages as the library has in flight, sent in turn: both sides read equally large memory.
    messages: Vec<Box<[u8]>>,
    produced: u64,
    /// The consumer's index as last loaded.
    consumed: u64,
    /// `consumed` when the window began.
    base: u64,
    mismatched_before: u64,
    started_ns: u64,
    end_ns: u64,
    is_stopping: bool,
}

/// The answering end: copies out of the ring.
pub(in super::super) struct Consumer {
    ring: Arc<Ring>,
    message: Box<[u8]>,
    consumed: u64,
}

/// Returns the two ends, for `in_flight` messages of `size` bytes, rounded up to whole chunks.
pub(in super::super) fn ends(size: usize, in_flight: u16) -> (Producer, Consumer) {
    let chunk = || Chunk(UnsafeCell::new([0; CHUNK_BYTES]));
    let ring = Arc::new(Ring {
        produced: Index(AtomicU64::new(0)),
        consumed: Index(AtomicU64::new(0)),
        chunks: std::iter::repeat_with(chunk).take(CHUNKS as usize).collect(),
        mismatched: AtomicU64::new(0),
    });
    let message = || vec![0x5a; size.max(1).next_multiple_of(CHUNK_BYTES)].into_boxed_slice();
    let consumer = Consumer { ring: Arc::clone(&ring), message: message(), consumed: 0 };
    let producer = Producer {
        ring,
        messages: std::iter::repeat_with(message).take(in_flight.max(1).into()).collect(),
        produced: 0,
        consumed: 0,
        base: 0,
        mismatched_before: 0,
        started_ns: 0,
        end_ns: 0,
        is_stopping: true,
    };
    (producer, consumer)
}

impl Ring {
    #[inline]
    fn chunk(&self, number: u64) -> *mut [u8; CHUNK_BYTES] {
        self.chunks[(number % CHUNKS) as usize].0.get()
    }
}

/// Returns the part of a message that a chunk carries.
#[inline]
fn part(message: &mut [u8], number: u64) -> &mut [u8; CHUNK_BYTES] {
    let (parts, _) = message.as_chunks_mut();
    let count = parts.len() as u64;
    &mut parts[(number % count) as usize]
}

impl ClientEnd for Producer {
    fn begin(&mut self, end_ns: u64) {
        (self.end_ns, self.is_stopping) = (end_ns, false);
        self.base = self.produced;
        self.mismatched_before = self.ring.mismatched.load(Ordering::Relaxed);
        self.started_ns = clock::now_ns();
    }

    #[inline]
    fn poll_once(&mut self) {
        if self.is_stopping || self.produced - self.consumed >= CHUNKS {
            self.consumed = self.ring.consumed.0.load(Ordering::Acquire);
            return;
        }
        let chunks_per_message = (self.messages[0].len() / CHUNK_BYTES) as u64;
        let message = (self.produced / chunks_per_message % self.messages.len() as u64) as usize;
        let part = part(&mut self.messages[message], self.produced);
        part[..8].copy_from_slice(&self.produced.to_le_bytes());
        // SAFETY: the consumer is done with the chunk's former content, as `consumed` says, and learns
        // of the new content below.
        unsafe { *self.ring.chunk(self.produced) = *part };
        self.produced += 1;
        self.ring.produced.0.store(self.produced, Ordering::Release);
        if self.produced.is_multiple_of(CHUNKS) {
            self.is_stopping = clock::now_ns() >= self.end_ns;
        }
    }

    #[inline]
    fn is_over(&self) -> bool {
        self.is_stopping && self.consumed == self.produced
    }

    fn give_up(&mut self, _: Duration) {
        // The answering end copies without waiting, so it must have ended.
        (self.is_stopping, self.consumed) = (true, self.produced);
    }

    fn finish(&mut self) -> Window {
        let consumed = self.ring.consumed.0.load(Ordering::Acquire);
        let mismatched = self.ring.mismatched.load(Ordering::Relaxed) - self.mismatched_before;
        let chunks = consumed - self.base;
        let window = WindowCounts {
            calls: self.produced - self.base,
            answered: chunks,
            mismatched,
            lost: self.produced - consumed,
            bytes: chunks * CHUNK_BYTES as u64,
        };
        window.finish(self.started_ns, None)
    }
}

impl ServerEnd for Consumer {
    #[inline]
    fn poll_once(&mut self) {
        if self.ring.produced.0.load(Ordering::Acquire) == self.consumed {
            return;
        }
        let part = part(&mut self.message, self.consumed);
        // SAFETY: `produced` says that the chunk was written, and the producer does not access the chunk until the store below frees it.
        unsafe { *part = *self.ring.chunk(self.consumed) };
        if part[..8] != self.consumed.to_le_bytes() {
            self.ring.mismatched.fetch_add(1, Ordering::Relaxed);
        }
        self.consumed += 1;
        self.ring.consumed.0.store(self.consumed, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn ends__move_every_byte_between_two_threads() {
        let (mut producer, mut consumer) = ends(100_000, 3);
        for message in &mut producer.messages {
            assert_eq!(message.len(), 13 * CHUNK_BYTES);
            message.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        }
        producer.begin(clock::now_ns() + 2_000_000);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    consumer.poll_once();
                }
            });
            while !producer.is_over() {
                producer.poll_once();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let window = producer.finish();
        assert!(window.calls > 0 && window.calls == window.checked, "{}", window.calls);
        assert_eq!((window.mismatched, window.lost), (0, 0));
        let stamps = |at: &usize| at % CHUNK_BYTES < 8;
        assert!((0..100_000).filter(|at| !stamps(at)).all(|at| consumer.message[at] == at as u8));
    }

    #[test]
    fn poll_once__notices_a_chunk_of_another_number() {
        let (mut producer, mut consumer) = ends(1, 1);
        producer.begin(0);
        producer.poll_once();
        // A second chunk, which was never written.
        producer.produced = 2;
        producer.ring.produced.0.store(2, Ordering::Release);
        consumer.poll_once();
        consumer.poll_once();
        assert_eq!(producer.finish().mismatched, 1);
    }
}
