//! Reads a file, block by block.

use std::io::{self, Read};

use super::{BLOCK, BackupError, END, Head, MAGIC, VERSION};
use crate::api::Pairs;
use crate::frame::read_frame;
use crate::pair_check::PairCheck;
use crate::wire::{DecodeError, Reader as Fields};

/// Reads the pairs of a store from a file.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    head: Head,
    check: PairCheck,
    block: Vec<u8>,
    has_ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the begin of a file.
    ///
    /// # Errors
    /// [`BackupError`] if the input is not the begin of a file that this version reads.
    pub fn new(mut input: R) -> Result<Self, BackupError> {
        let mut magic = [0; MAGIC.len()];
        let mut version = [0; 2];
        input.read_exact(&mut magic).map_err(foreign_if_short)?;
        if magic != *MAGIC {
            return Err(BackupError::Foreign);
        }
        input.read_exact(&mut version).map_err(foreign_if_short)?;
        let version = u16::from_le_bytes(version);
        if version != VERSION {
            return Err(BackupError::Version(version));
        }
        let mut reader = Self {
            input,
            head: Head { revision: 0, keys: 0, bytes: 0 },
            check: PairCheck::default(),
            block: Vec::new(),
            has_ended: false,
        };
        let head = reader.frame()?;
        reader.head = Head::decode(&head).map_err(|_| reader.damaged("its head is malformed"))?;
        Ok(reader)
    }

    /// The begin of the file.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The number of keys read until now.
    pub fn keys(&self) -> u64 {
        self.check.keys()
    }

    /// Returns the next pairs. None at the end: then the file was whole and not damaged.
    ///
    /// # Errors
    /// [`BackupError`]: the pairs returned before are not those of a whole file.
    pub fn next_block(&mut self) -> Result<Option<Pairs<'_>>, BackupError> {
        if self.has_ended {
            return Ok(None);
        }
        self.block = self.frame()?;
        match self.block.split_first() {
            Some((&BLOCK, _)) => self.pairs().map(Some),
            Some((&END, check)) if check == self.check.value().to_le_bytes() => {
                self.end().map(|()| None)
            }
            Some((&END, _)) => Err(self.damaged("the check of all keys does not match")),
            _ => Err(self.damaged("a block is malformed")),
        }
    }

    /// Reads to the end, and returns the number of keys.
    ///
    /// # Errors
    /// [`BackupError`] if the file is not whole, or damaged.
    pub fn verify(mut self) -> Result<u64, BackupError> {
        while self.next_block()?.is_some() {}
        Ok(self.keys())
    }

    fn pairs(&mut self) -> Result<Pairs<'_>, BackupError> {
        let keys = self.keys();
        let damaged = |what| BackupError::Damaged { keys, what };
        let pairs = decode(&self.block[1..]).map_err(|_| damaged("a block is malformed"))?;
        if pairs.is_empty() && self.head.keys > 0 {
            return Err(damaged("a block is empty"));
        }
        for pair in pairs.iter() {
            let is_known = (1..=self.head.revision).contains(&pair.revision);
            if !is_known || self.check.add(&pair).is_err() {
                return Err(damaged("keys are out of order, or have impossible revisions"));
            }
        }
        Ok(pairs)
    }

    fn end(&mut self) -> Result<(), BackupError> {
        if self.keys() != self.head.keys {
            return Err(self.damaged("it has not as many keys as its head says"));
        }
        if self.input.read(&mut [0]).map_err(BackupError::Io)? > 0 {
            return Err(self.damaged("more follows its end"));
        }
        self.has_ended = true;
        Ok(())
    }

    fn frame(&mut self) -> Result<Vec<u8>, BackupError> {
        read_frame(&mut self.input).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BackupError::Cut(self.keys(), self.head.keys),
            io::ErrorKind::InvalidData => {
                self.damaged("a block is cut, or its check does not match")
            }
            _ => BackupError::Io(error),
        })
    }

    fn damaged(&self, what: &'static str) -> BackupError {
        BackupError::Damaged { keys: self.keys(), what }
    }
}

fn decode(bytes: &[u8]) -> Result<Pairs<'_>, DecodeError> {
    let mut fields = Fields::new(bytes);
    let pairs = Pairs::read(&mut fields)?;
    fields.end().map(|()| pairs)
}

/// A file that is too short for its first bytes is none.
fn foreign_if_short(error: io::Error) -> BackupError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => BackupError::Foreign,
        _ => BackupError::Io(error),
    }
}
