//! The messages; `docs/cache.md` has a table. Those of most methods are in the format of postcard.
//!
//! GET and STORE have messages of bytes: an item is copied out of the log straight into the answer, and a value out of the request straight
//! into the log. Numbers are little-endian there.

use std::num::NonZeroU16;

use petrel::service::{Decode, Encode, Malformed, Postcard};
use serde::{Deserialize, Serialize};

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::partition::{Item, Mode, Verb};

/// HELLO: nothing; [`Hello`].
pub const HELLO: u16 = 1;
/// GET: key; nothing, or version of the item (8), flags (4), value.
pub const GET: u16 = 2;
/// STORE: verb (1), whether to compare (1), key's length (1), zero (1), flags (4), ttl (4), version (8), key, value;
/// [`Stored`](crate::Stored).
pub const STORE: u16 = 3;
/// DELETE: [`DeleteMessage`]; [`Removed`](crate::Removed).
pub const DELETE: u16 = 4;
/// TOUCH: [`TouchMessage`]; whether the item is there.
pub const TOUCH: u16 = 5;
/// COUNT: [`CountMessage`]; [`Counted`](crate::Counted).
pub const COUNT: u16 = 6;
/// STATS: nothing; names and numbers.
pub const STATS: u16 = 7;
/// FLUSH: seconds to wait; nothing.
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

/// The answer to HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The behaviour of a full partition.
    pub mode: Mode,
    /// The number of partitions, and of endpoints.
    pub partitions: NonZeroU16,
    /// The seed of the hash.
    pub seed: u64,
}

/// The request DELETE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteMessage {
    /// The key.
    pub key: Vec<u8>,
    /// The version that the item must have.
    pub compare: Option<u64>,
}

/// The request TOUCH.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchMessage {
    /// The key.
    pub key: Vec<u8>,
    /// Seconds that the item has; 0 for no end.
    pub ttl_s: u32,
}

/// The request COUNT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountMessage {
    /// Whether to add.
    pub is_increment: bool,
    /// The number to add or to subtract.
    pub delta: u64,
    /// The number of an item made for want of an item.
    pub initial: Option<u64>,
    /// Seconds that a new item has; 0 for no end.
    pub ttl_s: u32,
    /// The key.
    pub key: Vec<u8>,
}

/// Returns the bytes of a message in the format of postcard.
pub fn encode<M>(message: &M) -> Vec<u8>
where
    Postcard: Encode<M>,
{
    let mut bytes = Vec::new();
    Postcard::append(message, &mut bytes);
    bytes
}

/// Reads a message in the format of postcard.
///
/// # Errors
/// The bytes are no such message.
pub fn decode<M>(bytes: &[u8]) -> Result<M, Malformed>
where
    Postcard: Decode<M>,
{
    Postcard::decode(bytes)
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
    /// The bytes are no such message.
    pub fn decode(message: &'a [u8]) -> Result<Self, Malformed> {
        let parse = || {
            let ([verb, compares @ (0 | 1), key_bytes, 0], rest) = message.split_first_chunk()?
            else {
                return None;
            };
            let verb = *Self::VERBS.get(usize::from(*verb))?;
            let (flags, rest) = rest.split_first_chunk()?;
            let (ttl_s, rest) = rest.split_first_chunk()?;
            let (version, rest) = rest.split_first_chunk()?;
            let version = u64::from_le_bytes(*version);
            let compare = (*compares == 1).then_some(version);
            let (key, value) = rest.split_at_checked(usize::from(*key_bytes))?;
            let is_sound = (1..=KEY_BYTES_MAX).contains(&key.len())
                && value.len() <= VALUE_BYTES_MAX
                && (compare.is_some() || version == 0);
            let (flags, ttl_s) = (u32::from_le_bytes(*flags), u32::from_le_bytes(*ttl_s));
            is_sound.then_some(Self { verb, compare, flags, ttl_s, key, value })
        };
        parse().ok_or_else(|| {
            Malformed::new("20 bytes, a key of 1 to 250 and a value up to 1 MiB expected")
        })
    }
}

/// Reads the answer to GET.
pub(super) fn decode_got(message: &[u8]) -> Result<Option<Value>, Malformed> {
    if message.is_empty() {
        return Ok(None);
    }
    let parse = || {
        let (cas, rest) = message.split_first_chunk()?;
        let (flags, value) = rest.split_first_chunk()?;
        let (cas, flags) = (u64::from_le_bytes(*cas), u32::from_le_bytes(*flags));
        Some(Value { bytes: value.to_vec(), flags, cas })
    };
    parse().map(Some).ok_or_else(|| Malformed::new("nothing, or 12 bytes and a value expected"))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::partition::Stored;

    proptest! {
        #[test]
        fn decode__reads_each_encoding(
            verb in 0..5usize, compare: Option<u64>, flags: u32, ttl_s: u32,
            key in prop::collection::vec(any::<u8>(), 1..=250), value in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let verb = StoreMessage::VERBS[verb];
            let message = StoreMessage { verb, compare, flags, ttl_s, key: &key, value: &value };
            let bytes = message.encode();
            prop_assert_eq!(StoreMessage::decode(&bytes), Ok(message));
        }

        #[test]
        fn decode__takes_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            // Each either reads or refuses; an accepted STORE has a legal key.
            let _ = (decode::<Hello>(&bytes), decode::<CountMessage>(&bytes), decode_got(&bytes));
            if let Ok(message) = StoreMessage::decode(&bytes) {
                prop_assert!((1..=KEY_BYTES_MAX).contains(&message.key.len()));
                let again = message.encode();
                prop_assert_eq!(StoreMessage::decode(&again), Ok(message));
            }
        }
    }

    #[test]
    fn messages__are_those_of_the_document() {
        let partitions = NonZeroU16::MIN;
        let hello = Hello { mode: Mode::Store, partitions, seed: 5 };
        assert_eq!((encode(&hello), decode(&[1, 1, 5])), (vec![1, 1, 5], Ok(hello)));
        assert!(decode::<Hello>(&[1, 0, 5]).is_err(), "no partitions");
        assert_eq!(encode(&Stored::Done { cas: 7 }), [0, 7]);
        let key = b"ab".to_vec();
        assert_eq!(encode(&DeleteMessage { key, compare: Some(9) }), [2, b'a', b'b', 1, 9]);
    }
}
