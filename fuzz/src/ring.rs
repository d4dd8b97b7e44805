//! Producer and consumer of a shared-memory ring whose shared words the input corrupts.
//!
//! # Ownership
//!
//! The ring lies on the heap, in words that may change behind a shared reference: atomics for the
//! control words, [`UnsafeCell`]s for the bytes. A single thread owns the whole ring: no data race is
//! possible. Of the conditions of [`Memory`], bounds and alignment are checked at every access, because
//! trust in a forged length violates exactly these conditions. The remaining condition is that no write
//! happens while a frame is lent: frames are lent to read-only closures.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use petrel_transport::shm::ring::{
    Consumer, Control, Memory, Producer, PushError, RECORD_ALIGN, RingFrame, max_frame_limit,
    sleep_fence,
};

use crate::input::Input;

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
    next: u8,
}

impl World {
    fn new(is_honest: bool) -> Self {
        let heap = Heap::new();
        Self {
            producer: Producer::new(heap.clone(), FRAME_BYTES_MAX),
            consumer: Consumer::new(heap.clone(), FRAME_BYTES_MAX),
            heap,
            is_honest,
            pushed: VecDeque::new(),
            published: 0,
            next: 0,
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
        match self.producer.push(head, body) {
            Ok(()) => self.pushed.push_back(frame),
            Err(PushError::Length) => assert!(length == 0 || length > FRAME_BYTES_MAX),
            Err(PushError::Full) => assert!(!self.is_honest || !self.pushed.is_empty()),
            Err(PushError::Broken) => assert!(!self.is_honest),
        }
    }

    fn publish(&mut self) {
        let is_new = self.producer.publish();
        assert!(!self.is_honest || is_new == (self.published < self.pushed.len()));
        self.published = self.pushed.len();
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
        let word = self.heap.control_word(input.below(2));
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

/// A ring on the heap.
#[derive(Clone, Debug)]
struct Heap(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    control: Control,
    words: Box<[UnsafeCell<u64>]>,
}

impl Heap {
    fn new() -> Self {
        let words = (0..CAPACITY / 8).map(|_| UnsafeCell::new(0)).collect();
        Self(Rc::new(Shared { control: Control::new(), words }))
    }

    fn control_word(&self, index: usize) -> &AtomicU64 {
        assert!(index < 2);
        let first: *const AtomicU64 = std::ptr::from_ref(&self.0.control).cast();
        // SAFETY: `Control` consists of two lines in C layout (its size was compared), both beginning
        // with an atomic word; the value lives as long as `self`.
        unsafe { &*first.byte_add(index * LINE_BYTES) }
    }

    /// Returns a pointer to the bytes from `offset` on. An `UnsafeCell<u64>` is a `u64` in memory.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset.is_multiple_of(8) && offset + length <= CAPACITY, "outside of the ring");
        let words: *const UnsafeCell<u64> = self.0.words.as_ptr();
        words.cast::<u8>().cast_mut().wrapping_add(offset)
    }

    fn header(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(RECORD_ALIGN));
        // SAFETY: `at` checked the offset and its alignment; one thread owns the ring.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

// SAFETY: the capacity is a constant power of two, and `at` checks every access.
unsafe impl Memory for Heap {
    type View<'a> = Heap;

    fn view(&self) -> Heap {
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
        let to = self.at(offset, head.len() + body.len());
        // SAFETY: `at` checked the range for both parts, which lie elsewhere.
        unsafe {
            to.copy_from_nonoverlapping(head.as_ptr(), head.len());
            to.add(head.len()).copy_from_nonoverlapping(body.as_ptr(), body.len());
        }
    }

    unsafe fn with_frame<R>(
        &self,
        offset: usize,
        length: usize,
        f: impl FnOnce(RingFrame<'_>) -> R,
    ) -> R {
        let start = std::ptr::NonNull::new(self.at(offset, length)).expect("it is on the heap");
        // SAFETY: `at` checked the range; records have whole lines.
        f(unsafe { RingFrame::new(start, length) })
    }
}
