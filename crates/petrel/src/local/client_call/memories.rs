//! The memory of responses, kept by a thread for later requests. Tasks of an endpoint leave the memory to the endpoint.

use std::cell::Cell;

use crate::sync::thread_local;

/// The most bytes of a response whose memory is kept, and the most responses: 256 KiB in all.
const MEMORY_BYTES_MAX: usize = 4096;
const COUNT_MAX: usize = 64;

thread_local! {
    static MEMORIES: Cell<Vec<Vec<u8>>> = const { Cell::new(Vec::new()) };
}

/// Keeps memory within the bounds. A thread at its end keeps nothing.
#[inline(never)]
pub(super) fn keep_memory(mut memory: Vec<u8>) {
    if !(1..=MEMORY_BYTES_MAX).contains(&memory.capacity()) {
        return;
    }
    memory.clear();
    let _ = MEMORIES.try_with(|memories| {
        let mut kept = memories.take();
        if kept.len() < COUNT_MAX {
            kept.push(memory);
        }
        memories.set(kept);
    });
}

/// Returns empty memory of a former response.
#[inline(never)]
pub(super) fn take_memory() -> Option<Vec<u8>> {
    let taken = MEMORIES.try_with(|memories| {
        let mut kept = memories.take();
        let last = kept.pop();
        memories.set(kept);
        last
    });
    taken.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_memory__has_bounds() {
        // Tests of one thread may follow one another.
        while take_memory().is_some() {}
        let memory = b"a response".to_vec();
        let address = memory.as_ptr();
        keep_memory(memory);
        let again = take_memory().unwrap();
        assert_eq!((again.as_ptr(), again.len()), (address, 0), "the same memory, empty");
        keep_memory(Vec::new());
        keep_memory(Vec::with_capacity(MEMORY_BYTES_MAX + 1));
        assert!(take_memory().is_none(), "without memory, and with too much");
        (0..COUNT_MAX + 5).for_each(|_| keep_memory(Vec::with_capacity(8)));
        assert_eq!((0..).take_while(|_| take_memory().is_some()).count(), COUNT_MAX);
    }
}
