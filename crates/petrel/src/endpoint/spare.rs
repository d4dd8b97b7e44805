//! Memory of messages between threads, for reuse: a request's bytes come back with the answer in them.

/// The most vectors kept.
const KEPT_MAX: usize = 256;

/// Larger ones go back to the allocator: at most 4 MiB are kept.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// A free list of empty vectors.
#[derive(Default)]
pub(super) struct SpareBytes {
    kept: Vec<Vec<u8>>,
}

impl SpareBytes {
    /// Returns an empty vector.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.kept.pop().unwrap_or_default()
    }

    /// Takes back an unused vector.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>) {
        if self.kept.len() < KEPT_MAX && (1..=KEPT_BYTES_MAX).contains(&bytes.capacity()) {
            bytes.clear();
            self.kept.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_back__keeps_memory_that_can_serve_again_within_limits() {
        let mut spare = SpareBytes::default();
        assert_eq!(spare.take().capacity(), 0, "a new one");
        let mut used = Vec::with_capacity(KEPT_BYTES_MAX);
        used.extend_from_slice(b"of somebody else");
        let address = used.as_ptr();
        spare.put_back(used);
        let again = spare.take();
        assert_eq!((again.as_ptr(), again.len()), (address, 0), "the same memory, empty");
        spare.put_back(Vec::new());
        spare.put_back(Vec::with_capacity(KEPT_BYTES_MAX + 1));
        assert!(spare.kept.is_empty(), "without memory, and with too much");
        (0..KEPT_MAX + 5).for_each(|_| spare.put_back(Vec::with_capacity(8)));
        assert_eq!(spare.kept.len(), KEPT_MAX);
    }
}
