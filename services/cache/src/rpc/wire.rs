//! The messages. Numbers are little-endian; `docs/cache.md` has a table.

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::partition::{Counted, Item, Mode, Removed, Stored, Verb};

/// HELLO: nothing; version (1), mode (1), partitions (2), seed (8).
pub const HELLO: u16 = 1;
/// GET: key; nothing, or version of the item (8), flags (4), value.
pub const GET: u16 = 2;
/// STORE: verb (1), whether to compare (1), key's length (1), zero (1), flags (4), ttl (4), version (8), key, value;
/// outcome (1), version (8).
pub const STORE: u16 = 3;
/// DELETE: whether to compare (1), version (8), key; outcome (1).
pub const DELETE: u16 = 4;
/// TOUCH: ttl (4), key; whether the item is there (1).
pub const TOUCH: u16 = 5;
/// COUNT: whether to add (1), whether to make an item (1), delta (8), initial number (8), ttl (4), key; outcome (1),
/// number (8), version (8).
pub const COUNT: u16 = 6;
/// STATS: nothing; lines of a name, a space, a number.
pub const STATS: u16 = 7;
/// FLUSH: seconds to wait (4); nothing.
pub const FLUSH: u16 = 8;

/// Names of the methods.
pub const METHODS: [(&str, u16); 8] = [
    ("hello", HELLO),
    ("get", GET),
    ("store", STORE),
    ("delete", DELETE),
    ("touch", TOUCH),
    ("count", COUNT),
    ("stats", STATS),
    ("flush", FLUSH),
];

/// The version of these messages.
const VERSION: u8 = 1;

/// The reason why a message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed message: {expected} expected, {bytes} bytes came")]
pub struct Malformed {
    /// The expected message.
    pub expected: &'static str,
    /// The length of the received message.
    pub bytes: usize,
}

/// The answer to HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The behaviour of a full partition.
    pub mode: Mode,
    /// The number of partitions, and of endpoints.
    pub partitions: u16,
    /// The seed of the hash.
    pub seed: u64,
}

/// The request STORE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreMessage<'a> {
    /// The condition.
    pub verb: Verb,
    /// The version that the item must have.
    pub compare: Option<u64>,
    /// The client's flags.
    pub flags: u32,
    /// Seconds that the item has; 0 for no end.
    pub ttl_s: u32,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The request COUNT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountMessage<'a> {
    /// Whether to add.
    pub is_increment: bool,
    /// The number to add or to subtract.
    pub delta: u64,
    /// The number of an item made for want of an item.
    pub initial: Option<u64>,
    /// Seconds that a new item has; 0 for no end.
    pub ttl_s: u32,
    /// The key.
    pub key: &'a [u8],
}

/// A value with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    /// The version: another number after each change.
    pub cas: u64,
}

/// Reads a message from its front.
struct Reader<'a> {
    left: &'a [u8],
    error: Malformed,
}

impl<'a> Reader<'a> {
    fn new(expected: &'static str, message: &'a [u8]) -> Self {
        Self { left: message, error: Malformed { expected, bytes: message.len() } }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, left) = self.left.split_at_checked(bytes).ok_or(self.error)?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, left) = self.left.split_first_chunk().ok_or(self.error)?;
        self.left = left;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.error),
        }
    }

    fn key(self) -> Result<&'a [u8], Malformed> {
        key(self.left).ok_or(self.error)
    }

    fn end(self) -> Result<(), Malformed> {
        if self.left.is_empty() { Ok(()) } else { Err(self.error) }
    }
}

fn key(bytes: &[u8]) -> Option<&[u8]> {
    (1..=KEY_BYTES_MAX).contains(&bytes.len()).then_some(bytes)
}

impl Hello {
    /// The message.
    pub fn encode(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        (bytes[0], bytes[1]) = (VERSION, u8::from(self.mode == Mode::Store));
        bytes[2..4].copy_from_slice(&self.partitions.to_le_bytes());
        bytes[4..].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    /// Reads the message.
    ///
    /// # Errors
    /// [`Malformed`], also for another version.
    pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("a greeting of version 1 with 12 bytes", message);
        let (version, is_store) = (reader.u8()?, reader.flag()?);
        let partitions = reader.array().map(u16::from_le_bytes)?;
        if version != VERSION || partitions == 0 {
            return Err(reader.error);
        }
        let mode = if is_store { Mode::Store } else { Mode::Cache };
        let hello = Self { mode, partitions, seed: reader.u64()? };
        reader.end().map(|()| hello)
    }
}

impl<'a> StoreMessage<'a> {
    const VERBS: [Verb; 5] = [Verb::Set, Verb::Add, Verb::Replace, Verb::Append, Verb::Prepend];

    /// The message. The caller has checked the key.
    pub fn encode(&self) -> Vec<u8> {
        let verb = Self::VERBS.iter().position(|verb| *verb == self.verb).unwrap_or_default();
        let head = [verb as u8, u8::from(self.compare.is_some()), self.key.len() as u8, 0];
        [
            &head[..],
            &self.flags.to_le_bytes(),
            &self.ttl_s.to_le_bytes(),
            &self.compare.unwrap_or(0).to_le_bytes(),
            self.key,
            self.value,
        ]
        .concat()
    }

    /// Reads the message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader =
            Reader::new("20 bytes, a key of 1 to 250 and a value up to 1 MiB", message);
        let error = reader.error;
        let verb = *Self::VERBS.get(usize::from(reader.u8()?)).ok_or(error)?;
        let (compares, key_bytes, zero) = (reader.flag()?, reader.u8()?, reader.u8()?);
        let (flags, ttl_s, version) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let key = key(reader.take(key_bytes.into())?).ok_or(error)?;
        let value = reader.left;
        if zero != 0 || value.len() > VALUE_BYTES_MAX || (!compares && version != 0) {
            return Err(error);
        }
        Ok(Self { verb, compare: compares.then_some(version), flags, ttl_s, key, value })
    }
}

/// The request DELETE. The caller has checked the key.
pub(super) fn encode_delete(key: &[u8], compare: Option<u64>) -> Vec<u8> {
    [&[u8::from(compare.is_some())][..], &compare.unwrap_or(0).to_le_bytes(), key].concat()
}

pub(super) fn decode_delete(message: &[u8]) -> Result<(&[u8], Option<u64>), Malformed> {
    let mut reader = Reader::new("9 bytes and a key of 1 to 250", message);
    let (compares, version) = (reader.flag()?, reader.u64()?);
    Ok((reader.key()?, compares.then_some(version)))
}

/// The request TOUCH. The caller has checked the key.
pub(super) fn encode_touch(key: &[u8], ttl_s: u32) -> Vec<u8> {
    [&ttl_s.to_le_bytes()[..], key].concat()
}

pub(super) fn decode_touch(message: &[u8]) -> Result<(&[u8], u32), Malformed> {
    let mut reader = Reader::new("4 bytes and a key of 1 to 250", message);
    let ttl_s = reader.u32()?;
    Ok((reader.key()?, ttl_s))
}

impl<'a> CountMessage<'a> {
    /// The message. The caller has checked the key.
    pub fn encode(&self) -> Vec<u8> {
        [
            &[u8::from(self.is_increment), u8::from(self.initial.is_some())][..],
            &self.delta.to_le_bytes(),
            &self.initial.unwrap_or(0).to_le_bytes(),
            &self.ttl_s.to_le_bytes(),
            self.key,
        ]
        .concat()
    }

    /// Reads the message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("22 bytes and a key of 1 to 250", message);
        let (is_increment, has_initial) = (reader.flag()?, reader.flag()?);
        let (delta, initial, ttl_s) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let initial = has_initial.then_some(initial);
        Ok(Self { is_increment, delta, initial, ttl_s, key: reader.key()? })
    }
}

pub(super) fn encode_stored(stored: Stored) -> [u8; 9] {
    let (outcome, cas) = match stored {
        Stored::Done { cas } => (0, cas),
        Stored::Refused => (1, 0),
        Stored::Exists => (2, 0),
        Stored::NotFound => (3, 0),
    };
    let mut bytes = [outcome; 9];
    bytes[1..].copy_from_slice(&cas.to_le_bytes());
    bytes
}

pub(super) fn decode_stored(message: &[u8]) -> Result<Stored, Malformed> {
    let mut reader = Reader::new("an outcome of 9 bytes", message);
    let stored = match (reader.u8()?, reader.u64()?) {
        (0, cas) => Stored::Done { cas },
        (1, _) => Stored::Refused,
        (2, _) => Stored::Exists,
        (3, _) => Stored::NotFound,
        _ => return Err(reader.error),
    };
    reader.end().map(|()| stored)
}

/// The answer to DELETE.
pub(super) fn encode_removed(removed: Removed) -> [u8; 1] {
    match removed {
        Removed::Done => [0],
        Removed::Exists => [2],
        Removed::NotFound => [3],
    }
}

pub(super) fn decode_removed(message: &[u8]) -> Result<Removed, Malformed> {
    match message {
        [0] => Ok(Removed::Done),
        [2] => Ok(Removed::Exists),
        [3] => Ok(Removed::NotFound),
        _ => Err(Malformed { expected: "an outcome of a byte", bytes: message.len() }),
    }
}

/// The answer to COUNT. The expiry is not part of the answer.
pub(super) fn encode_counted(counted: Counted) -> [u8; 17] {
    let (outcome, number, cas) = match counted {
        Counted::Number { number, cas, .. } => (0, number, cas),
        Counted::NotANumber => (1, 0, 0),
        Counted::Exists => (2, 0, 0),
        Counted::NotFound => (3, 0, 0),
    };
    let mut bytes = [outcome; 17];
    bytes[1..9].copy_from_slice(&u64::to_le_bytes(number));
    bytes[9..].copy_from_slice(&u64::to_le_bytes(cas));
    bytes
}

pub(super) fn decode_counted(message: &[u8]) -> Result<Counted, Malformed> {
    let mut reader = Reader::new("an outcome of 17 bytes", message);
    let counted = match (reader.u8()?, reader.u64()?, reader.u64()?) {
        (0, number, cas) => Counted::Number { number, cas, expiry: 0 },
        (1, ..) => Counted::NotANumber,
        (2, ..) => Counted::Exists,
        (3, ..) => Counted::NotFound,
        _ => return Err(reader.error),
    };
    reader.end().map(|()| counted)
}

pub(super) fn decode_seconds(message: &[u8]) -> Result<u32, Malformed> {
    let mut reader = Reader::new("4 bytes", message);
    let seconds = reader.u32()?;
    reader.end().map(|()| seconds)
}

/// Reads the answer to GET.
pub(super) fn decode_got(message: &[u8]) -> Result<Option<Value>, Malformed> {
    if message.is_empty() {
        return Ok(None);
    }
    let mut reader = Reader::new("nothing, or 12 bytes and a value", message);
    let (cas, flags) = (reader.u64()?, reader.u32()?);
    Ok(Some(Value { bytes: reader.left.to_vec(), flags, cas }))
}

/// Bytes before the value in the answer to GET.
const GOT_HEAD_BYTES: usize = 12;

/// The length of the answer to GET with this item.
#[inline]
pub fn got_bytes(item: &Item<'_>) -> usize {
    GOT_HEAD_BYTES + item.value.len()
}

/// Writes the answer to GET, of [`got_bytes`].
///
/// # Panics
/// If `out` has another length.
#[inline]
pub fn put_got(item: &Item<'_>, out: &mut [u8]) {
    out[..8].copy_from_slice(&item.cas.to_le_bytes());
    out[8..GOT_HEAD_BYTES].copy_from_slice(&item.flags.to_le_bytes());
    out[GOT_HEAD_BYTES..].copy_from_slice(item.value);
}

pub(super) fn decode_stats(message: &[u8]) -> Result<Vec<(String, u64)>, Malformed> {
    let error = Malformed { expected: "lines of a name and a number", bytes: message.len() };
    let text = str::from_utf8(message).map_err(|_| error)?;
    let counter = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().map(|line| counter(line).ok_or(error)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decode__reads_each_encoding(
            verb in 0..5usize, compare: Option<u64>, flags: u32, ttl_s: u32, delta: u64, is_increment: bool,
            key in prop::collection::vec(any::<u8>(), 1..=250), value in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let verb = StoreMessage::VERBS[verb];
            let message = StoreMessage { verb, compare, flags, ttl_s, key: &key, value: &value };
            let bytes = message.encode();
            prop_assert_eq!(StoreMessage::decode(&bytes), Ok(message));
            let message = CountMessage { is_increment, delta, initial: compare, ttl_s, key: &key };
            let bytes = message.encode();
            prop_assert_eq!(CountMessage::decode(&bytes), Ok(message));
            let bytes = encode_delete(&key, compare);
            prop_assert_eq!(decode_delete(&bytes), Ok((&key[..], compare)));
            let bytes = encode_touch(&key, ttl_s);
            prop_assert_eq!(decode_touch(&bytes), Ok((&key[..], ttl_s)));
        }

        #[test]
        fn decode__takes_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            // Each either reads or refuses; an accepted STORE has a legal key.
            let _ = (Hello::decode(&bytes), decode_delete(&bytes));
            let _ = (decode_touch(&bytes), CountMessage::decode(&bytes), decode_got(&bytes));
            if let Ok(message) = StoreMessage::decode(&bytes) {
                prop_assert!((1..=KEY_BYTES_MAX).contains(&message.key.len()));
                let again = message.encode();
                prop_assert_eq!(StoreMessage::decode(&again), Ok(message));
            }
        }
    }

    #[test]
    fn outcomes__are_read_as_written() {
        for stored in [Stored::Done { cas: 7 }, Stored::Refused, Stored::Exists, Stored::NotFound] {
            assert_eq!(decode_stored(&encode_stored(stored)), Ok(stored));
        }
        for removed in [Removed::Done, Removed::Exists, Removed::NotFound] {
            assert_eq!(decode_removed(&encode_removed(removed)), Ok(removed));
        }
        let number = Counted::Number { number: 1 << 40, cas: 9, expiry: 0 };
        for counted in [number, Counted::NotFound, Counted::Exists, Counted::NotANumber] {
            assert_eq!(decode_counted(&encode_counted(counted)), Ok(counted));
        }
        let hello = Hello { mode: Mode::Store, partitions: 3, seed: 1 << 50 };
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        assert!(Hello::decode(&[2; 12]).is_err() && decode_removed(&[1]).is_err());
    }
}
