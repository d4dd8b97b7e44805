//! Memory of messages that cross threads, which goes around: a request's bytes come back with the
//! answer in them.

/// Kept at most.
const KEPT_MAX: usize = 256;

/// Larger ones go back to the allocator: 4 MiB are kept at most.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// Vectors that nobody uses, empty.
#[derive(Default)]
pub(super) struct SpareBytes {
    kept: Vec<Vec<u8>>,
}

impl SpareBytes {
    /// An empty vector.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.kept.pop().unwrap_or_default()
    }

    /// One that nobody uses any more.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>) {
        if self.kept.len() < KEPT_MAX && (1..=KEPT_BYTES_MAX).contains(&bytes.capacity()) {
            bytes.clear();
            self.kept.push(bytes);
        }
    }
}
