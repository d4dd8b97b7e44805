//! A free list for the memory of messages between threads, for reuse: a request's bytes come back with the answer in them.

/// The most vectors in the list.
const LIST_MAX: usize = 256;

/// Larger vectors go back to the allocator: at most 4 MiB are kept.
const VECTOR_BYTES_MAX: usize = 16 << 10;

/// A free list of empty vectors.
#[derive(Default)]
pub(super) struct FreeBytes {
    list: Vec<Vec<u8>>,
}

impl FreeBytes {
    /// Returns an empty vector.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.list.pop().unwrap_or_default()
    }

    /// Takes back an unused vector.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>) {
        if self.list.len() < LIST_MAX && (1..=VECTOR_BYTES_MAX).contains(&bytes.capacity()) {
            bytes.clear();
            self.list.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_back__keeps_memory_within_limits() {
        let mut free = FreeBytes::default();
        assert_eq!(free.take().capacity(), 0, "a new one");
        let mut used = Vec::with_capacity(VECTOR_BYTES_MAX);
        used.extend_from_slice(b"a former message");
        let address = used.as_ptr();
        free.put_back(used);
        let again = free.take();
        assert_eq!((again.as_ptr(), again.len()), (address, 0), "the same memory, empty");
        free.put_back(Vec::new());
        free.put_back(Vec::with_capacity(VECTOR_BYTES_MAX + 1));
        assert!(free.list.is_empty(), "without memory, and with too much");
        (0..LIST_MAX + 5).for_each(|_| free.put_back(Vec::with_capacity(8)));
        assert_eq!(free.list.len(), LIST_MAX);
    }
}
