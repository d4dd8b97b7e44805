//! Reads a message from its front.

use std::ops::Bound;

use crate::error::Malformed;

/// The rest of a message, and the error for a malformed one.
pub(super) struct Reader<'a> {
    left: &'a [u8],
    error: Malformed,
}

/// Reads a whole message.
pub(super) fn read<'a, T>(
    expected: &'static str,
    message: &'a [u8],
    fields: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let error = Malformed { expected, bytes: message.len() };
    let mut reader = Reader { left: message, error };
    let value = fields(&mut reader)?;
    if reader.left.is_empty() { Ok(value) } else { Err(error) }
}

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, left) = self.left.split_at_checked(bytes).ok_or(self.error)?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, left) = self.left.split_first_chunk().ok_or(self.error)?;
        self.left = left;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn word_key(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.error),
        }
    }

    /// Reads the number of items with at least `bytes` bytes each. The rest of the message must have room for all of
    /// them.
    pub(super) fn count(&mut self, bytes: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > self.left.len() / bytes { Err(self.error) } else { Ok(count) }
    }

    pub(super) fn bound<K>(&self, tag: u8, key: K) -> Result<Bound<K>, Malformed> {
        match tag {
            0 => Ok(Bound::Unbounded),
            1 => Ok(Bound::Included(key)),
            2 => Ok(Bound::Excluded(key)),
            _ => Err(self.error),
        }
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }
}
