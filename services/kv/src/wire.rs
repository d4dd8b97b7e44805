//! Numbers and byte strings, little-endian: the parts of all messages of the service.
//!
//! Reading is total: any bytes decode to a value, or to a [`DecodeError`] that names the field. Decoded values borrow
//! from the message.

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The reason why bytes are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message is shorter than the fields require.
    #[error("the message ends before its {0} does")]
    Truncated(&'static str),
    /// The message is longer than the fields.
    #[error("{0} bytes follow the end of the message")]
    Trailing(usize),
    /// A byte that selects a kind has no known value.
    #[error("there is no {field} of kind {kind}")]
    UnknownKind {
        /// The field with the unknown kind.
        field: &'static str,
        /// The byte.
        kind: u8,
    },
    /// A key is empty or too long.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes, not {0}")]
    KeyLength(usize),
    /// A value is too long.
    #[error("a value has at most {VALUE_BYTES_MAX} bytes, not {0}")]
    ValueLength(usize),
    /// A number is outside of its field's range.
    #[error("the {0} is out of range")]
    OutOfRange(&'static str),
    /// A text is not UTF-8.
    #[error("the {0} is not UTF-8")]
    NotText(&'static str),
}

#[inline]
pub(crate) fn check_key(key: &[u8]) -> Result<(), DecodeError> {
    if key.is_empty() { Err(DecodeError::KeyLength(0)) } else { check_bound(key) }
}

/// Returns the first key after all keys with a prefix: the end of their range. None if no key can follow.
pub fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

/// Checks the length of the bound of a range, which may be empty.
#[inline]
pub(crate) fn check_bound(bound: &[u8]) -> Result<(), DecodeError> {
    let len = bound.len();
    if len > KEY_BYTES_MAX { Err(DecodeError::KeyLength(len)) } else { Ok(()) }
}

pub(crate) fn check_value(value: &[u8]) -> Result<(), DecodeError> {
    let len = value.len();
    if len > VALUE_BYTES_MAX { Err(DecodeError::ValueLength(len)) } else { Ok(()) }
}

/// Gives messages their public functions, by functions `write` and `read` for their fields.
macro_rules! messages {
    ($($name:ident $(<$life:lifetime>)?),*) => {$(
        impl $(<$life>)? $name $(<$life>)? {
            /// Appends the message.
            ///
            /// # Panics
            ///
            /// If a key or value is longer than its [limit](crate::limits).
            pub fn encode(&self, out: &mut Vec<u8>) {
                self.write(out);
            }

            /// Returns the message.
            ///
            /// # Panics
            ///
            /// As `encode`.
            #[allow(clippy::wrong_self_convention, reason = "some messages are `Copy`, and some are not")]
            pub fn to_vec(&self) -> Vec<u8> {
                let mut out = Vec::new();
                self.write(&mut out);
                out
            }

            /// Decodes a message.
            ///
            /// # Errors
            ///
            /// If the bytes are not a valid message: the field and its defect.
            pub fn decode(bytes: & $($life)? [u8]) -> Result<Self, $crate::wire::DecodeError> {
                let mut reader = $crate::wire::Reader::new(bytes);
                let message = Self::read(&mut reader)?;
                reader.end()?;
                Ok(message)
            }
        }
    )*};
}

/// Gives the variants of an enum their numbers in messages.
macro_rules! kinds {
    ($name:ident, $field:literal, $($variant:ident = $number:literal),*) => {
        impl $name {
            pub(crate) fn write(self, out: &mut Vec<u8>) {
                $crate::wire::Write::put_u8(out, match self { $(Self::$variant => $number),* });
            }

            pub(crate) fn read(
                reader: &mut $crate::wire::Reader<'_>,
            ) -> Result<Self, $crate::wire::DecodeError> {
                match reader.u8($field)? {
                    $($number => Ok(Self::$variant),)*
                    kind => Err($crate::wire::DecodeError::UnknownKind { field: $field, kind }),
                }
            }
        }
    };
}

pub(crate) use {kinds, messages};

/// Reads a message from its front.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Reader<'a> {
        Reader { rest: message }
    }

    #[inline]
    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    #[inline]
    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    #[inline]
    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    #[inline]
    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// Reads a non-empty key.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<&'a [u8], DecodeError> {
        let key = self.bound()?;
        check_key(key).map(|()| key)
    }

    /// Reads the bound of a range: a key, or empty for the position before all keys.
    #[inline]
    pub(crate) fn bound(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = usize::from(self.u16("key")?);
        if len > KEY_BYTES_MAX {
            return Err(DecodeError::KeyLength(len));
        }
        self.take(len, "key")
    }

    #[inline]
    pub(crate) fn value(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u32("value")? as usize;
        if len > VALUE_BYTES_MAX {
            return Err(DecodeError::ValueLength(len));
        }
        self.take(len, "value")
    }

    /// Reads a text with a length of two bytes.
    pub(crate) fn text(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let len = usize::from(self.u16(field)?);
        let bytes = self.take(len, field)?;
        str::from_utf8(bytes).map_err(|_| DecodeError::NotText(field))
    }

    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            kind => Err(DecodeError::UnknownKind { field, kind }),
        }
    }

    #[inline]
    pub(crate) fn take(
        &mut self,
        len: usize,
        field: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The unread bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Checks that the whole message was read.
    #[inline]
    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.rest.len())) }
    }

    #[inline]
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(*array)
    }
}

/// Appends fields to a message.
pub(crate) trait Write {
    fn put_u8(&mut self, value: u8);
    fn put_bool(&mut self, value: bool) {
        self.put_u8(value.into());
    }
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    /// Appends a key or the bound of a range.
    fn put_key(&mut self, key: &[u8]);
    fn put_value(&mut self, value: &[u8]);
    /// Appends a text with a length of two bytes, cut to `bytes_max` bytes.
    fn put_text(&mut self, text: &str, bytes_max: usize);
}

impl Write for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_key(&mut self, key: &[u8]) {
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        self.put_u16(key.len() as u16);
        self.extend_from_slice(key);
    }

    fn put_value(&mut self, value: &[u8]) {
        assert!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes", value.len());
        self.put_u32(value.len() as u32);
        self.extend_from_slice(value);
    }

    fn put_text(&mut self, text: &str, bytes_max: usize) {
        let cut = &text[..text.floor_char_boundary(bytes_max)];
        self.put_u16(cut.len() as u16);
        self.extend_from_slice(cut.as_bytes());
    }
}

pub(crate) fn write_optional_key(key: Option<&[u8]>, out: &mut Vec<u8>) {
    out.put_bool(key.is_some());
    key.into_iter().for_each(|key| out.put_key(key));
}

pub(crate) fn read_optional_key<'a>(
    reader: &mut Reader<'a>,
) -> Result<Option<&'a [u8]>, DecodeError> {
    reader.bool("bound")?.then(|| reader.bound()).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_prefix__is_the_next_key_without_it() {
        assert_eq!(after_prefix(b"user:"), Some(b"user;".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }
}
