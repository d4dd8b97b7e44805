//! Writes a file, block by block.

use std::io::Write;

use super::{BLOCK, BackupError, END, Head, MAGIC, VERSION};
use crate::api::Pairs;
use crate::frame::write_frame;
use crate::pair_check::PairCheck;
use crate::wire::Write as _;

/// Writes the pairs of a store to a file. A file without [`Writer::finish`] is cut, and no reader takes it for whole.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    head: Head,
    check: PairCheck,
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// [`BackupError::Io`] if `out` takes no bytes.
    pub fn new(mut out: W, head: Head) -> Result<Self, BackupError> {
        let begin = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        out.write_all(&begin)
            .and_then(|()| write_frame(&mut out, &head.encode()))
            .map_err(BackupError::Io)?;
        Ok(Self { out, head, check: PairCheck::default(), block: Vec::new() })
    }

    /// Adds the next pairs, in the order of their keys.
    ///
    /// # Errors
    /// [`BackupError::Io`], or [`BackupError::Damaged`] if the pairs do not follow the former ones.
    pub fn add(&mut self, pairs: &Pairs<'_>) -> Result<(), BackupError> {
        let what = "keys are out of order";
        let keys = self.check.keys();
        let added = self.check.add_all(pairs.iter());
        added.map_err(|_| BackupError::Damaged { keys, what })?;
        self.block.clear();
        self.block.put_u8(BLOCK);
        pairs.write(&mut self.block);
        write_frame(&mut self.out, &self.block).map_err(BackupError::Io)
    }

    /// Ends the file, and returns the output, flushed.
    ///
    /// # Errors
    /// [`BackupError::Io`], or [`BackupError::Cut`] if there were fewer or more pairs than the head says.
    pub fn finish(mut self) -> Result<W, BackupError> {
        if self.check.keys() != self.head.keys {
            return Err(BackupError::Cut(self.check.keys(), self.head.keys));
        }
        let mut end = vec![END];
        end.put_u64(self.check.value());
        write_frame(&mut self.out, &end)
            .and_then(|()| self.out.flush())
            .map_err(BackupError::Io)?;
        Ok(self.out)
    }
}
