//! Ring memory for tests and for the fuzz target of the ring (`fuzz/src/ring.rs` includes this file): on the heap, with every
//! access checked.

use std::cell::UnsafeCell;
use std::sync::Arc;

use super::*;

/// A ring on the heap that checks the conditions of [`Memory`] at every access.
#[derive(Debug, Clone)]
pub(super) struct Heap(Arc<HeapRing>);

#[derive(Debug)]
struct HeapRing {
    control: Control,
    words: Box<[UnsafeCell<u64>]>,
}

// SAFETY: the words are accessed only by the rules of `Memory`, which exclude data races.
unsafe impl Sync for HeapRing {}
// SAFETY: no part of the ring belongs to a thread.
unsafe impl Send for HeapRing {}

impl Heap {
    pub(super) fn new(capacity: usize) -> Self {
        let words = (0..capacity / 8).map(|_| UnsafeCell::new(0)).collect();
        Heap(Arc::new(HeapRing { control: Control::new(), words }))
    }

    pub(super) fn ends(&self, max_frame: usize) -> (Producer<Heap>, Consumer<Heap>) {
        (Producer::new(self.clone(), max_frame), Consumer::new(self.clone(), max_frame))
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset.is_multiple_of(8) && offset + length <= self.capacity());
        // An `UnsafeCell<u64>` is a `u64` in memory.
        self.0.words[offset / 8..].as_ptr().cast::<u8>().cast_mut()
    }

    fn header(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(RECORD_ALIGN));
        // SAFETY: `at` checked place and alignment. By the rules of `Memory`, there is no
        // concurrent access of another kind.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

// SAFETY: `at` checks every access; the capacity is that of the slice.
unsafe impl Memory for Heap {
    type View<'a> = Heap;

    fn view(&self) -> Heap {
        self.clone()
    }

    fn control(&self) -> &Control {
        &self.0.control
    }

    fn capacity(&self) -> usize {
        self.0.words.len() * 8
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
        // SAFETY: `at` checked the range, and the caller owns the bytes.
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
        // SAFETY: `at` checked the frame; a record has whole lines; the caller may read the bytes.
        f(unsafe { RingFrame::new(start, length) })
    }
}
