//! Memory in huge pages, where the kernel provides them on request.
//!
//! A look-up touches a line of the index and a line of the log. With pages of 4 KiB, nearly each of the two also
//! misses the processor's TLB once the cache is larger than some MiB.

use petrel_transport::huge_pages::advise;

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
}
