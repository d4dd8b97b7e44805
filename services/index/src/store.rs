//! The store: both tables.

use crate::bytes::Bytes;
use crate::limits::{BYTES_MAX_DEFAULT, WORDS_EXPECTED_DEFAULT, WORDS_MAX};
use crate::words::Words;

/// The limits of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Expected number of words: the table allocates 64 bytes for each at the start. With more words, lookups get
    /// slower.
    pub words_expected: u64,
    /// Most words in the table; up to [`WORDS_MAX`].
    pub words_max: u64,
    /// Most bytes of keys and values in the table of bytes.
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

/// The data of a server.
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
