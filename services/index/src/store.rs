//! Both tables together.

use crate::bytes::Bytes;
use crate::limits::{BYTES_MAX_DEFAULT, WORDS_EXPECTED_DEFAULT, WORDS_MAX};
use crate::words::Words;

/// How large the tables may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Keys that the table of words is made for: 64 bytes for each are allocated at the start. With more
    /// lookups get slower.
    pub words_expected: u64,
    /// Keys that the table of words takes at most; up to [`WORDS_MAX`].
    pub words_max: u64,
    /// Bytes of keys and values that the table of bytes takes at most.
    pub bytes_max: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            words_expected: WORDS_EXPECTED_DEFAULT,
            words_max: WORDS_MAX,
            bytes_max: BYTES_MAX_DEFAULT,
        }
    }
}

/// What a server serves.
#[derive(Debug)]
pub struct Store {
    /// Keys and values of 8 bytes.
    pub words: Words,
    /// Keys and values of any bytes.
    pub bytes: Bytes,
}

impl Store {
    /// Two empty tables.
    pub fn new(config: StoreConfig) -> Self {
        Self {
            words: Words::new(config.words_expected, config.words_max.min(WORDS_MAX)),
            bytes: Bytes::new(config.bytes_max),
        }
    }
}
