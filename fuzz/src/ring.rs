//! Producer and consumer of a shared-memory ring whose shared words the input corrupts.
//!
//! # Ownership
//!
//! The ring lies on the heap, and a single thread owns the whole ring: no data race is possible. Of the conditions of [`Memory`],
//! the memory of the ring's tests checks bounds and alignment at every access, because trust in a forged length violates exactly
//! these conditions. The remaining condition is that no write happens while a frame is lent: frames are lent to read-only closures.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use petrel_transport::shm::ring::{
    Consumer, Control, Memory, Producer, PushError, RECORD_ALIGN, RECORD_HEADER_BYTES, RingFrame,
    max_frame_limit, sleep_fence,
};

use crate::input::Input;

#[path = "../../crates/petrel-transport/src/shm/ring/heap.rs"]
mod heap;

use heap::Heap;

/// Room for few frames, so the ring wraps often.
const CAPACITY: usize = 1_024;

const FRAME_BYTES_MAX: usize = max_frame_limit(CAPACITY);

/// The alignment of positions.
const LINE: u64 = RECORD_ALIGN as u64;

/// Distance of the control words. Their fields are private to the ring; a hostile peer also finds them
/// by their position.
const LINE_BYTES: usize = 128;

const _: () = assert!(size_of::<Control>() == 2 * LINE_BYTES);

/// Pushes, publishes and receives in the input's order. An honest input leaves the shared words alone,
/// and every frame must arrive, in order and unchanged. Another input corrupts shared words: frames must
/// still have valid lengths, and neither side may access memory outside the ring.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(input.below(2) == 0);
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.drain();
}

struct World {
    heap: Heap,
    producer: Producer<Heap>,
    consumer: Consumer<Heap>,
    is_honest: bool,
    /// Pushed frames, not yet received; the first `published` of them are published.
    pushed: VecDeque<Vec<u8>>,
    published: usize,
    /// The position behind the last published record.
    published_at: u64,
    /// The end of the last received record, and of each record in the ring.
    head: usize,
    ends: VecDeque<usize>,
    next: u8,
}

impl World {
    fn new(is_honest: bool) -> Self {
        let heap = Heap::new(CAPACITY);
        let (producer, consumer) = heap.ends(FRAME_BYTES_MAX);
        let published_at = producer.position();
        let (pushed, ends) = Default::default();
        let (published, head, next) = (0, 0, 0);
        Self {
            heap,
            producer,
            consumer,
            is_honest,
            pushed,
            published,
            published_at,
            head,
            ends,
            next,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0..=2 => self.push(input.below(FRAME_BYTES_MAX + 3), input.below(4)),
            3 | 4 => self.publish(),
            5 | 6 => drop(self.receive(input.below(40))),
            7 => self.change_sleep(input.below(3)),
            _ if self.is_honest => self.push(input.below(40), 1),
            8 => self.spoil_control(input),
            _ => self.spoil_word(input),
        }
    }

    fn push(&mut self, length: usize, split: usize) {
        self.next = self.next.wrapping_add(1);
        let frame = vec![self.next; length];
        let (head, body) = frame.split_at(length * split / 4);
        let is_sound = (1..=FRAME_BYTES_MAX).contains(&length);
        let end = self.end_behind(length);
        match self.producer.push(head, body) {
            Ok(()) => {
                assert!(is_sound && (!self.is_honest || end.is_some()));
                self.pushed.push_back(frame);
                self.ends.extend(end);
            }
            Err(PushError::Length) => assert!(!is_sound),
            Err(PushError::Full) => assert!(!self.is_honest || end.is_none()),
            Err(PushError::Broken) => assert!(!self.is_honest),
        }
        if self.is_honest {
            let mut written = Vec::new();
            self.producer.look_back(self.published_at, |frame| written.push(frame.to_vec()));
            assert!(self.pushed.iter().skip(self.published).eq(&written));
        }
    }

    /// Returns the end of a further record, if an honest ring has room: a record lies in one piece, and one line stays free
    /// for the mark of an end.
    fn end_behind(&self, length: usize) -> Option<usize> {
        let record = (RECORD_HEADER_BYTES + length).next_multiple_of(RECORD_ALIGN);
        let tail = self.ends.back().copied().unwrap_or(self.head);
        let to_end = CAPACITY - tail % CAPACITY;
        let end = if record > to_end { tail + to_end } else { tail } + record;
        (end - self.head <= CAPACITY - RECORD_ALIGN).then_some(end)
    }

    fn publish(&mut self) {
        let is_new = self.producer.publish();
        assert!(!self.is_honest || is_new == (self.published < self.pushed.len()));
        self.published = self.pushed.len();
        self.published_at = self.producer.position();
        if self.producer.consumer_may_sleep() {
            sleep_fence();
            self.producer.take_sleeper();
        }
    }

    /// Returns the number of received frames.
    fn receive(&mut self, budget: usize) -> usize {
        let mut frames = Vec::new();
        let received = self.consumer.receive(budget, |frame| frames.push(frame.to_vec()));
        assert_eq!(received.frames, frames.len());
        assert_eq!(received.bytes, frames.iter().map(Vec::len).sum::<usize>());
        assert!(frames.len() <= budget.min(CAPACITY / RECORD_ALIGN));
        assert!(frames.iter().all(|frame| (1..=FRAME_BYTES_MAX).contains(&frame.len())));
        if self.is_honest {
            assert!(!received.is_broken && frames.len() <= self.published);
            self.published -= frames.len();
            self.head = self.ends.drain(..frames.len()).next_back().unwrap_or(self.head);
            let expected = self.pushed.drain(..frames.len());
            assert!(expected.eq(frames.iter().cloned()), "what was pushed arrives in order");
        }
        received.frames
    }

    fn change_sleep(&mut self, choice: usize) {
        match choice {
            0 => self.consumer.declare_sleep(),
            1 => self.consumer.declare_awake(),
            _ => self.consumer.declare_polling(),
        }
    }

    /// Writes a control word: 0 the head, 1 the sleep word.
    fn spoil_control(&mut self, input: &mut Input<'_>) {
        let word = control_word(&self.heap, input.below(2));
        let before = word.load(Ordering::Relaxed);
        let after = match input.below(4) {
            0 => before.wrapping_add(LINE * u64::from(input.byte())),
            1 => before.wrapping_sub(LINE * u64::from(input.byte())),
            2 => LINE * u64::from(input.number()),
            _ => input.word(),
        };
        word.store(after, Ordering::Release);
    }

    /// Writes a word of the ring at a header's position: valid for its place except for the length,
    /// zero, or arbitrary.
    fn spoil_word(&mut self, input: &mut Input<'_>) {
        let offset = RECORD_ALIGN * input.below(CAPACITY / RECORD_ALIGN);
        let position = (offset + CAPACITY * input.below(4)) as u64;
        let length = match input.below(4) {
            0 => u32::MAX >> 1,
            1 => input.number(),
            _ => input.byte().into(),
        };
        let header = u64::from(length) | (position / LINE) << 32;
        let word = match input.below(8) {
            1 => input.word(),
            2 => 0,
            _ => header,
        };
        // SAFETY: the offset is below the capacity, and no frame is lent.
        unsafe { self.heap.store_word(offset, word) };
    }

    /// Receives the rest; an honest ring must then be empty.
    fn drain(mut self) {
        self.publish();
        for _ in 0..CAPACITY {
            if self.receive(usize::MAX) == 0 {
                break;
            }
        }
        if self.is_honest {
            assert!(self.pushed.is_empty() && !self.consumer.has_data());
        }
    }
}

/// Returns a control word of a ring: 0 the head, 1 the sleep word.
fn control_word(ring: &Heap, index: usize) -> &AtomicU64 {
    assert!(index < 2);
    let first: *const AtomicU64 = std::ptr::from_ref(ring.control()).cast();
    // SAFETY: `Control` consists of two lines in C layout (its size was compared), both beginning with an atomic word; the value
    // lives as long as the ring.
    unsafe { &*first.byte_add(index * LINE_BYTES) }
}
