//! Memory in huge pages, where the kernel provides them on request.
//!
//! A look-up touches a line of the index and a line of the log. With pages of 4 KiB, nearly each of the two also
//! misses the processor's TLB once the cache is larger than some MiB.

use rustix::mm::{Advice, madvise};

/// Size of a huge page on most machines. Another size does no harm: the kernel checks each request.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed bytes that begin at a cache line. The kernel provides the pages when they are first written.
pub(crate) struct Pages {
    memory: Vec<u8>,
    start: usize,
}

impl Pages {
    /// Alignment of the first byte.
    const LINE_BYTES: usize = 64;

    pub(crate) fn new(bytes: usize) -> Self {
        // The allocator takes zeroed memory of this size from the kernel, and does not touch it.
        let mut memory = vec![0; bytes + Self::LINE_BYTES];
        advise(&mut memory);
        let start = memory.as_ptr().align_offset(Self::LINE_BYTES);
        assert!(start + bytes <= memory.len(), "{start} bytes to the next cache line");
        memory.truncate(start + bytes);
        Self { memory, start }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }
}

/// Returns `count` copies of `value` in huge pages.
pub(crate) fn filled<T: Clone>(count: usize, value: T) -> Box<[T]> {
    let mut memory = Vec::with_capacity(count);
    // Before the first write, at which the kernel allocates the pages.
    advise(memory.spare_capacity_mut());
    memory.resize(count, value);
    memory.into_boxed_slice()
}

fn advise<T>(memory: &mut [T]) {
    let start = memory.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(HUGE_PAGE_BYTES);
    let Some(bytes) = size_of_val(memory).checked_sub(skipped) else { return };
    let bytes = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if bytes > 0 {
        // SAFETY: the range lies within `memory`, and begins at a page. The advice changes the kernel's choice of
        // pages, never their content. A kernel without this advice returns an error, and nothing changes.
        let _ =
            unsafe { madvise(start.wrapping_add(skipped).cast(), bytes, Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages__are_zero_and_begin_at_a_line() {
        for bytes in [64, 4_096, 5 << 20] {
            let mut pages = Pages::new(bytes);
            assert_eq!(pages.bytes().len(), bytes);
            assert_eq!(pages.bytes().as_ptr().align_offset(64), 0);
            assert!(pages.bytes().iter().all(|byte| *byte == 0));
            pages.bytes_mut()[bytes - 1] = 1;
            assert_eq!(pages.bytes()[bytes - 1], 1);
        }
    }

    #[test]
    fn filled__has_all_copies() {
        for count in [0, 3, 1 << 20] {
            assert_eq!(*filled(count, 7u64), *vec![7; count]);
        }
    }
}
