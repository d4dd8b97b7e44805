//! Decodes an input's bytes into decisions.
//!
//! The `arbitrary` crate decodes whole types. The corpora are part of the repository, and the meaning of
//! their bytes should change only with these files; therefore `arbitrary` is not used.

/// Bytes that are consumed from the front. After the last byte, zeros follow.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Creates a source of decisions from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns true if all bytes are consumed.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns up to `count` bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Returns one byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// Returns a number below `end`, from one byte.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// Returns a number of 64 bits.
    pub fn word(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    /// Returns a number of 32 bits, usually a small one: interesting values are close to real sizes.
    pub fn number(&mut self) -> u32 {
        match self.byte() {
            small @ 0..200 => u32::from(small),
            larger @ 200..250 => u32::from(larger - 200) << 8 | u32::from(self.byte()),
            _ => self.word() as u32,
        }
    }
}
