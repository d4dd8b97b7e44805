//! The name and secret of a region.

use std::fmt;
use std::str::FromStr;

/// The name, secret and size of a region: the permission to access it. A server gives the key to clients, by any call.
///
/// The secret has 64 random bits. It does not change, and each operation carries it: use keys only where calls may travel unencrypted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionKey {
    id: u32,
    secret: u64,
    bytes: u64,
}

/// The text or the bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no region's key: 40 hexadecimal digits expected")]
pub struct ParseKeyError;

impl RegionKey {
    /// Bytes of a key in a message.
    pub const BYTES: usize = 20;

    pub(crate) fn new(id: u32, secret: u64, bytes: u64) -> Self {
        Self { id, secret, bytes }
    }

    /// Returns the key for a message: number, secret and size, in little-endian order.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.secret.to_le_bytes());
        bytes[12..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Reads a key from a message.
    ///
    /// # Errors
    /// If these are not [`RegionKey::BYTES`] bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseKeyError> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| ParseKeyError)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let id = u32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        Ok(Self { id, secret: word(4), bytes: word(12) })
    }

    /// The region's number at the server.
    pub(crate) fn id(self) -> u32 {
        self.id
    }

    pub(crate) fn secret(self) -> u64 {
        self.secret
    }

    /// The region's size, in bytes.
    pub fn bytes(self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for RegionKey {
    /// Writes the key, with its secret, as hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RegionKey {
    /// Writes the key without its secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionKey({}: {} bytes)", self.id, self.bytes)
    }
}

impl FromStr for RegionKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err(ParseKeyError) };
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(ParseKeyError);
        let byte = |pair: &[u8; 2]| Ok((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
        let bytes: Vec<u8> = pairs.iter().map(byte).collect::<Result<_, _>>()?;
        Self::from_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_str__reads_what_display_writes() {
        let key = RegionKey::new(7, 0x0123_4567_89AB_CDEF, 1 << 40);
        let text = key.to_string();
        assert_eq!((text.parse(), text.len()), (Ok(key), 2 * RegionKey::BYTES));
        assert_eq!(RegionKey::from_bytes(&key.to_bytes()), Ok(key));
        for wrong in ["", "0", &text[1..], &format!("{text}00"), &text.replace('f', "g"), "ä"] {
            assert_eq!(wrong.parse::<RegionKey>(), Err(ParseKeyError), "{wrong:?}");
        }
    }

    #[test]
    fn debug__hides_the_secret() {
        let key = RegionKey::new(7, 0x0123_4567_89AB_CDEF, 64);
        assert_eq!(format!("{key:?}"), "RegionKey(7: 64 bytes)");
    }
}
