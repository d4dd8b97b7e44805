//! The shared-memory ring under every interleaving and every memory order loom can produce:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p petrel-transport --test loom_ring --release
//! ```
//!
//! The ring's bytes are cells watched by loom. The model fails if a write is not ordered after the
//! last read of its word, or a read not after its write. The first word of each line, the place of
//! a header, is an atomic; loom returns every value the memory order allows, earlier laps included.
//! The model thus checks that records are complete when seen and untouched until released, across
//! the end of the ring and when it is full. It also checks that no old record is delivered and no
//! wake-up is lost.
#![cfg(loom)]
#![allow(non_snake_case)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use petrel_transport::shm::ring::{
    Consumer, Control, Memory, Producer, PushError, RECORD_ALIGN, RingFrame, max_frame_limit,
    sleep_fence,
};

/// Four lines, of which three can be full: small, so few frames fill the ring.
const CAPACITY: usize = 4 * RECORD_ALIGN;
/// The longest frame in two lines.
const MAX_FRAME: usize = max_frame_limit(CAPACITY);
/// The longest frame in one line.
const LINE_FRAME: usize = MAX_FRAME - RECORD_ALIGN;

const LINE_WORDS: usize = RECORD_ALIGN / 8;

#[derive(Clone)]
struct Watched(Arc<Ring>);

struct Ring {
    control: Control,
    lines: Vec<Line>,
}

struct Line {
    /// A header, or bytes of a frame of several lines.
    first: AtomicU64,
    others: Vec<UnsafeCell<u64>>,
}

impl Line {
    fn new() -> Self {
        let others = (1..LINE_WORDS).map(|_| UnsafeCell::new(0)).collect();
        Line { first: AtomicU64::new(0), others }
    }
}

impl Watched {
    fn new() -> Self {
        let lines = (0..CAPACITY / RECORD_ALIGN).map(|_| Line::new()).collect();
        Watched(Arc::new(Ring { control: Control::new(), lines }))
    }

    fn header(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(RECORD_ALIGN));
        &self.0.lines[offset / RECORD_ALIGN].first
    }

    /// Writes a word of a frame. The first word of a line has no order of its own: before
    /// publication, a reader may see an older word.
    fn store(&self, index: usize, word: u64) {
        let line = &self.0.lines[index / LINE_WORDS];
        match index % LINE_WORDS {
            0 => line.first.store(word, Ordering::Relaxed),
            // SAFETY: loom fails the model upon any concurrent access.
            at => line.others[at - 1].with_mut(|cell| unsafe { *cell = word }),
        }
    }

    fn load(&self, index: usize) -> u64 {
        let line = &self.0.lines[index / LINE_WORDS];
        match index % LINE_WORDS {
            0 => line.first.load(Ordering::Relaxed),
            // SAFETY: loom fails the model upon any concurrent write.
            at => line.others[at - 1].with(|cell| unsafe { *cell }),
        }
    }
}

// SAFETY: the capacity is constant, and cells check bounds and races themselves.
unsafe impl Memory for Watched {
    type View<'a> = Watched;

    fn view(&self) -> Watched {
        self.clone()
    }

    fn control(&self) -> &Control {
        &self.0.control
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    unsafe fn store_word(&self, offset: usize, word: u64) {
        self.header(offset).store(word, Ordering::Relaxed);
    }

    unsafe fn publish_word(&self, offset: usize, word: u64) {
        self.header(offset).store(word, Ordering::Release);
    }

    unsafe fn load_word(&self, offset: usize) -> u64 {
        self.header(offset).load(Ordering::Acquire)
    }

    unsafe fn store_frame(&self, offset: usize, head: &[u8], body: &[u8]) {
        let bytes = [head, body].concat();
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.store(offset / 8 + index, u64::from_ne_bytes(word));
        }
    }

    unsafe fn with_frame<R>(
        &self,
        offset: usize,
        length: usize,
        f: impl FnOnce(RingFrame<'_>) -> R,
    ) -> R {
        let words = 0..length.div_ceil(8);
        let load = |index| self.load(offset / 8 + index);
        let mut copy: Vec<u64> = words.map(load).collect();
        // A record has whole lines.
        copy.resize(copy.len().max(LINE_WORDS - 1), 0);
        // SAFETY: the copy has the frame's bytes, and at least those of a line behind a header.
        f(unsafe { RingFrame::new(std::ptr::NonNull::from(&copy[..]).cast(), length) })
    }
}

/// A frame with its own number in every byte.
fn frame(number: u8, length: usize) -> Vec<u8> {
    vec![number + 1; length]
}

/// The two ends, after `records` records of `length` bytes have passed.
fn ends_after(records: usize, length: usize) -> (Producer<Watched>, Consumer<Watched>) {
    let memory = Watched::new();
    let mut producer = Producer::new(memory.clone(), MAX_FRAME);
    let mut consumer = Consumer::new(memory, MAX_FRAME);
    for _ in 0..records {
        producer.push(&vec![0xee; length], &[]).unwrap();
        producer.publish();
        assert_eq!(consumer.receive(1, |_| {}).frames, 1);
    }
    (producer, consumer)
}

/// Writes a frame as soon as there is room.
fn push(producer: &mut Producer<Watched>, bytes: &[u8]) {
    let (head, body) = bytes.split_at(bytes.len() / 2);
    while let Err(error) = producer.push(head, body) {
        assert_eq!(error, PushError::Full);
        thread::yield_now();
    }
}

fn send(producer: &mut Producer<Watched>, bytes: &[u8]) {
    push(producer, bytes);
    assert!(producer.publish());
}

/// Receives and checks frames until `count` were seen. Returns the number of frames of each call.
fn receive_all(consumer: &mut Consumer<Watched>, count: u8, length: usize) -> Vec<usize> {
    let mut next = 0;
    let mut batches = Vec::new();
    while next < count {
        let received = consumer.receive(8, |bytes| {
            assert_eq!(bytes, frame(next, length));
            next += 1;
        });
        assert!(!received.is_broken);
        match received.frames {
            0 => thread::yield_now(),
            frames => batches.push(frames),
        }
    }
    assert!(!consumer.has_data());
    batches
}

#[test]
fn ring__frames_cross_the_end_whole_and_in_order() {
    loom::model(|| {
        // Starts one line in: the first record of two lines fits, the second skips a line to the
        // start and waits there for a release, the third fits.
        let (mut producer, mut consumer) = ends_after(1, 8);
        let length = LINE_FRAME + 1;
        let sender =
            thread::spawn(move || (0..3).for_each(|n| send(&mut producer, &frame(n, length))));
        receive_all(&mut consumer, 3, length);
        sender.join().unwrap();
    });
}

#[test]
fn ring__a_full_ring_waits_for_the_release() {
    let mut model = loom::model::Builder::new();
    // All interleavings take minutes: the producer loops while it waits.
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut producer, mut consumer) = ends_after(0, 1);
        // The ring is full when the threads start: 3 records of a line.
        (0..3).for_each(|n| send(&mut producer, &frame(n, LINE_FRAME)));
        assert_eq!(producer.push(&[1], &[]), Err(PushError::Full));
        let sender =
            thread::spawn(move || (3..5).for_each(|n| send(&mut producer, &frame(n, LINE_FRAME))));
        receive_all(&mut consumer, 5, LINE_FRAME);
        sender.join().unwrap();
    });
}

#[test]
fn ring__a_batch_is_seen_as_a_whole() {
    loom::model(|| {
        let (mut producer, mut consumer) = ends_after(5, 8);
        let sender = thread::spawn(move || {
            for batch in 0..2 {
                push(&mut producer, &frame(2 * batch, 8));
                push(&mut producer, &frame(2 * batch + 1, 8));
                assert!(producer.publish() && !producer.publish());
            }
        });
        let batches = receive_all(&mut consumer, 4, 8);
        // The ring has room for all four at once only if the first two were released meanwhile.
        assert!(batches == [2, 2] || batches == [4], "{batches:?}");
        sender.join().unwrap();
    });
}

/// Replaces a link's socket: remembers a signal until it is received.
#[derive(Default)]
struct Event {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn signal(&self) {
        *self.is_set.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait_and_drain(&self) {
        let mut is_set = self.is_set.lock().unwrap();
        while !*is_set {
            is_set = self.changed.wait(is_set).unwrap();
        }
        *is_set = false;
    }
}

fn send_and_wake(producer: &mut Producer<Watched>, number: u8, event: &Event) {
    send(producer, &frame(number, 8));
    assert!(producer.consumer_may_sleep());
    sleep_fence();
    if producer.take_sleeper() {
        event.signal();
    }
}

fn sleep_unless_ready(consumer: &mut Consumer<Watched>, event: &Event) {
    consumer.declare_sleep();
    sleep_fence();
    if !consumer.has_data() {
        event.wait_and_drain();
    }
    consumer.declare_awake();
}

#[test]
fn sleep__no_wake_up_is_lost() {
    // A lost wake-up leaves the consumer asleep for ever, which loom reports as a deadlock.
    loom::model(|| {
        let (mut producer, mut consumer) = ends_after(0, 1);
        let event = Arc::new(Event::default());
        let bell = Arc::clone(&event);
        let sender =
            thread::spawn(move || (0..2).for_each(|n| send_and_wake(&mut producer, n, &bell)));
        let mut next = 0;
        while next < 2 {
            let received = consumer.receive(1, |bytes| {
                assert_eq!(bytes, frame(next, 8));
                next += 1;
            });
            if received.frames == 0 {
                sleep_unless_ready(&mut consumer, &event);
            }
        }
        sender.join().unwrap();
    });
}
