//! The definition of the service (`docs/index-service.md`): a typed service for each table.

use std::ops::{Bound, Deref};
use std::sync::Arc;

use petrel::service::{Postcard, Zerocopy};
use petrel::workers::WorkerRequest;
use petrel::{Context, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zerocopy::big_endian::U64 as Key;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::Value;

/// The table of words. Keys are big-endian: their order as bytes is that of the numbers.
#[petrel::service(name = "index.Words", codec = Zerocopy)]
pub(crate) trait Words {
    /// GET of a word.
    #[dispatch]
    #[id(1)]
    fn get(&self, cx: &mut Context<'_>, key: Key) -> Result<Found, Error>;
    /// PUT of a word. Returns the former value.
    #[dispatch]
    #[id(2)]
    fn put(&self, cx: &mut Context<'_>, word: Word) -> Result<Found, Error>;
    /// DELETE of a word. Returns its value.
    #[dispatch]
    #[id(3)]
    fn delete(&self, cx: &mut Context<'_>, key: Key) -> Result<Found, Error>;
    /// SUM of the values of the keys after a key, up to a number of keys.
    #[worker]
    #[id(4)]
    fn sum(&self, cx: &WorkerRequest, range: SumRange) -> Result<Sum, Error>;
    /// Returns its request: the cost of a call without a lookup.
    #[dispatch]
    #[id(11)]
    fn echo(&self, cx: &mut Context<'_>, key: Key) -> Result<Key, Error>;
}

/// The table of bytes, scans of both tables, and counters.
#[petrel::service(name = "index.Pairs", codec = Postcard)]
pub(crate) trait Pairs {
    /// SCAN of the words.
    #[worker]
    #[id(5)]
    fn scan_words(
        &self,
        cx: &WorkerRequest,
        range: ScanRange<u64>,
    ) -> Result<Page<u64, u64>, Error>;
    /// GET of bytes.
    #[dispatch]
    #[id(6)]
    fn get(&self, cx: &mut Context<'_>, key: Blob) -> Result<Option<Blob>, Error>;
    /// PUT of bytes. Returns whether the key had a value.
    #[dispatch]
    #[id(7)]
    fn put(&self, cx: &mut Context<'_>, pair: (Blob, Blob)) -> Result<bool, Error>;
    /// DELETE of bytes. Returns whether the key had a value.
    #[dispatch]
    #[id(8)]
    fn delete(&self, cx: &mut Context<'_>, key: Blob) -> Result<bool, Error>;
    /// SCAN of the bytes.
    #[worker]
    #[id(9)]
    fn scan(&self, cx: &WorkerRequest, range: ScanRange<Blob>) -> Result<Page<Blob, Blob>, Error>;
    /// The counters.
    #[dispatch]
    #[id(10)]
    fn status(&self, cx: &mut Context<'_>, _: ()) -> Result<Vec<(String, u64)>, Error>;
}

/// The methods of both services, in counters and policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs, reason = "the traits have the documentation")]
pub enum Method {
    GetWord = 1,
    PutWord,
    DeleteWord,
    SumWords,
    ScanWords,
    GetBytes,
    PutBytes,
    DeleteBytes,
    ScanBytes,
    Status,
    Echo,
}

/// The names of the methods, with their numbers.
pub const METHODS: [(&str, u16); 11] = [
    ("get_word", Method::GetWord as u16),
    ("put_word", Method::PutWord as u16),
    ("delete_word", Method::DeleteWord as u16),
    ("sum_words", Method::SumWords as u16),
    ("scan_words", Method::ScanWords as u16),
    ("get_bytes", Method::GetBytes as u16),
    ("put_bytes", Method::PutBytes as u16),
    ("delete_bytes", Method::DeleteBytes as u16),
    ("scan_bytes", Method::ScanBytes as u16),
    ("status", Method::Status as u16),
    ("echo", Method::Echo as u16),
];

/// A pair of the table of words.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Word {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: U64,
}

/// A value, if there is one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Found {
    value: U64,
    is_there: u8,
}

/// The keys of a sum: up to `count` keys after a key.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SumRange {
    /// The key before the first.
    pub after: Key,
    /// Most keys.
    pub count: U32,
}

/// The sum of some values.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sum {
    /// The number of values.
    pub found: U32,
    /// Their sum, modulo 2^64.
    pub sum: U64,
}

impl From<Option<u64>> for Found {
    #[inline]
    fn from(value: Option<u64>) -> Self {
        Self { value: value.unwrap_or_default().into(), is_there: value.is_some().into() }
    }
}

impl From<Found> for Option<u64> {
    #[inline]
    fn from(found: Found) -> Self {
        (found.is_there != 0).then(|| found.value.get())
    }
}

/// The start of a scan, and its limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScanRange<K> {
    /// The first key, or the key before the first.
    pub from: Bound<K>,
    /// Most pairs in the answer.
    pub limit: u32,
}

/// A page of a scan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page<K, V> {
    /// The pairs, in ascending order.
    pub pairs: Vec<(K, V)>,
    /// Whether the page was cut at the largest size: more pairs may follow.
    pub is_cut: bool,
}

/// Bytes of a key or value, shared with the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blob(pub Value);

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Self {
        Self(Arc::from(bytes))
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Blob;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob::from(bytes))
            }
        }

        deserializer.deserialize_bytes(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods__have_the_numbers_of_their_services() {
        let tables = [("_word", WordsClient::table()), ("_bytes", PairsClient::table())];
        let ids = tables.iter().flat_map(|(_, table)| table.methods).map(|method| method.id);
        let mut ids: Vec<u16> = ids.map(|id| id.expect("an id")).collect();
        ids.sort_unstable();
        assert_eq!(ids, METHODS.map(|(_, number)| number));
        assert_eq!(ids, (1..=11).collect::<Vec<_>>());
        let of = |(end, table): (&str, &petrel::service::ServiceTable), method: &str| {
            let entry = table.methods.iter().find(|entry| entry.name == method).expect(method);
            let name = format!("{}{end}", method.to_lowercase());
            METHODS.contains(&(&*name, entry.id.expect("an id")))
        };
        for method in ["Get", "Put", "Delete"] {
            assert!(tables.iter().all(|table| of(*table, method)), "{method}");
        }
    }

    #[test]
    fn messages__are_those_of_the_document() {
        let word = Word { key: 0x0102.into(), value: 0x0304.into() };
        assert_eq!(word.as_bytes(), [0, 0, 0, 0, 0, 0, 1, 2, 4, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Found::from(Some(0x0102)).as_bytes(), [2, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(Found::from(None).as_bytes(), [0; 9]);
        for value in [None, Some(0), Some(u64::MAX)] {
            assert_eq!(Option::from(Found::from(value)), value);
        }
        let range = SumRange { after: 1.into(), count: 128.into() };
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 0, 0, 0, 1, 128, 0, 0, 0]);
        let sum = Sum { found: 2.into(), sum: 3.into() };
        assert_eq!(sum.as_bytes(), [2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    }
}
