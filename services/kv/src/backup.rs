//! Files with all keys of a store at one moment, with their revisions (`docs/kv-protocol.md` §9).
//!
//! [`KvClient::save`](crate::KvClient::save) reads the keys, [`KvClient::restore`](crate::KvClient::restore) writes
//! them to an empty cluster. A [`Writer`] and a [`Reader`] take and give the pairs in blocks, so neither holds more than
//! a block in memory. A file ends with a check of all its pairs: a reader that has returned the last block has found
//! neither damage nor a missing part.
//!
//! ```
//! use petrel_kv::api::{Pair, PairsBuffer};
//! use petrel_kv::backup::{Head, Reader, Writer};
//!
//! let mut pairs = PairsBuffer::default();
//! pairs.push(&Pair { key: b"colour", revision: 7, value: b"grey" });
//! let mut writer = Writer::new(Vec::new(), Head { revision: 9, keys: 1, bytes: 10 })?;
//! writer.add(&pairs.pairs())?;
//! let file = writer.finish()?;
//!
//! let mut reader = Reader::new(&file[..])?;
//! assert_eq!(reader.head().revision, 9);
//! while let Some(pairs) = reader.next_block()? {
//!     assert_eq!(pairs.iter().next().map(|pair| pair.revision), Some(7));
//! }
//! # Ok::<(), petrel_kv::backup::BackupError>(())
//! ```

mod reader;
mod writer;

pub use reader::Reader;
pub use writer::Writer;

use std::io;

use crate::limits::RESTORED_REVISION_MAX;
use crate::wire::{DecodeError, Reader as Fields, Write as _};

/// The begin of a file: the state that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The revision of the store: the file has all writes up to this one, and no later write.
    pub revision: u64,
    /// The number of keys.
    pub keys: u64,
    /// Bytes of all keys and values.
    pub bytes: u64,
}

/// The reason why a file cannot be written, or is not the file of a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(io::Error),
    /// The file was written by another program.
    #[error("it is not a file of `petrel kv save`")]
    Foreign,
    /// The file has the format of another version.
    #[error(
        "it has format {0}; this version reads format {VERSION}: use the version that wrote it"
    )]
    Version(u16),
    /// The file ends early.
    #[error("it is cut: {0} of its {1} keys are whole")]
    Cut(u64, u64),
    /// The content differs from the written one.
    #[error("it is damaged after {keys} keys: {what}")]
    Damaged {
        /// The keys before the damage.
        keys: u64,
        /// The kind of damage.
        what: &'static str,
    },
}

/// The file's first bytes.
const MAGIC: &[u8; 8] = b"petrelkv";

/// The version of the format.
const VERSION: u16 = 1;

const HEAD: u8 = 1;
const BLOCK: u8 = 2;
const END: u8 = 3;

impl Head {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![HEAD];
        [self.revision, self.keys, self.bytes].into_iter().for_each(|it| out.put_u64(it));
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::new(bytes);
        match fields.u8("kind")? {
            HEAD => {}
            kind => return Err(DecodeError::UnknownKind { field: "kind", kind }),
        }
        let head = Head {
            revision: fields.u64("revision")?,
            keys: fields.u64("keys")?,
            bytes: fields.u64("bytes")?,
        };
        if head.revision > RESTORED_REVISION_MAX {
            return Err(DecodeError::OutOfRange("revision"));
        }
        fields.end().map(|()| head)
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing {
    use super::Reader;

    /// Reads any bytes as a file. A file that is read to its end has as many pairs as its head says.
    pub(crate) fn check(bytes: &[u8]) {
        let Ok(mut reader) = Reader::new(bytes) else { return };
        let mut keys = 0;
        loop {
            match reader.next_block() {
                Ok(Some(pairs)) => keys += pairs.len() as u64,
                Ok(None) => return assert_eq!(keys, reader.head().keys),
                Err(error) => return assert!(!error.to_string().is_empty()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
