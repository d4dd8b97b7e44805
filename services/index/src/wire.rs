//! The service's definition: its methods, and their messages in bytes (`docs/index-service.md`).
//!
//! A method is a type with a number and four functions, shared by client and server. Numbers are little-endian, except
//! keys of words, which are big-endian: bytes then have the order of the numbers.

use std::ops::Bound;

use crate::error::Malformed;
use crate::limits::{KEY_BYTES_MAX, SCAN_BYTES_MAX, VALUE_BYTES_MAX};

mod reader;

use reader::Reader;

/// A method of the service.
pub trait Method {
    /// The type of the request.
    type Request<'a>;
    /// The type of the response.
    type Response: PartialEq + std::fmt::Debug;

    /// The method's number.
    const NUMBER: u16;
    /// The method's name, in counters.
    const NAME: &'static str;
    /// Bytes of the longest response.
    const RESPONSE_BYTES_MAX: usize;

    /// Encodes a request.
    fn encode_request(request: &Self::Request<'_>) -> Vec<u8>;

    /// Decodes a request.
    ///
    /// # Errors
    /// [`Malformed`].
    fn decode_request(bytes: &[u8]) -> Result<Self::Request<'_>, Malformed>;

    /// Encodes a response.
    fn encode_response(response: &Self::Response) -> Vec<u8>;

    /// Decodes a response.
    ///
    /// # Errors
    /// [`Malformed`].
    fn decode_response(bytes: &[u8]) -> Result<Self::Response, Malformed>;
}

/// A page of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<P> {
    /// The pairs, in ascending order.
    pub pairs: Vec<P>,
    /// Whether the page was cut at the largest size: more pairs may follow.
    pub is_cut: bool,
}

/// The start of a scan, and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanRange<K> {
    /// The first key, or the key before the first.
    pub from: Bound<K>,
    /// Most pairs in the answer.
    pub limit: u32,
}

/// The sum of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// The number of values.
    pub found: u32,
    /// Their sum, modulo 2^64.
    pub sum: u64,
}

/// A pair of the table of bytes.
pub type BytesPair = (Vec<u8>, Vec<u8>);

/// GET of a word.
#[derive(Debug)]
pub struct GetWord;

/// PUT of a word; returns the former value.
#[derive(Debug)]
pub struct PutWord;

/// DELETE of a word; returns its value.
#[derive(Debug)]
pub struct DeleteWord;

/// SUM of the values of the keys after a key, up to a number of keys.
#[derive(Debug)]
pub struct SumWords;

/// SCAN of the words.
#[derive(Debug)]
pub struct ScanWords;

/// GET of bytes.
#[derive(Debug)]
pub struct GetBytes;

/// PUT of bytes; returns whether the key had a value.
#[derive(Debug)]
pub struct PutBytes;

/// DELETE of bytes; returns whether the key had a value.
#[derive(Debug)]
pub struct DeleteBytes;

/// SCAN of the bytes.
#[derive(Debug)]
pub struct ScanBytes;

/// The counters, as lines of a name and a number.
#[derive(Debug)]
pub struct Status;

/// Returns its request: the cost of a call without a lookup.
#[derive(Debug)]
pub struct Echo;

impl Method for GetWord {
    type Request<'a> = u64;
    type Response = Option<u64>;
    const NUMBER: u16 = 1;
    const NAME: &'static str = "get_word";
    const RESPONSE_BYTES_MAX: usize = 8;

    fn encode_request(key: &u64) -> Vec<u8> {
        key.to_be_bytes().into()
    }

    #[inline]
    fn decode_request(bytes: &[u8]) -> Result<u64, Malformed> {
        word_key(bytes).ok_or(Malformed { expected: "a key of 8 bytes", bytes: bytes.len() })
    }

    fn encode_response(value: &Option<u64>) -> Vec<u8> {
        value.map_or(Vec::new(), |value| value.to_le_bytes().into())
    }

    #[inline]
    fn decode_response(bytes: &[u8]) -> Result<Option<u64>, Malformed> {
        match (<[u8; 8]>::try_from(bytes), bytes.len()) {
            (Ok(value), _) => Ok(Some(u64::from_le_bytes(value))),
            (Err(_), 0) => Ok(None),
            (Err(_), bytes) => Err(Malformed { expected: "a value of 8 bytes, or none", bytes }),
        }
    }
}

impl Method for PutWord {
    type Request<'a> = (u64, u64);
    type Response = Option<u64>;
    const NUMBER: u16 = 2;
    const NAME: &'static str = "put_word";
    const RESPONSE_BYTES_MAX: usize = 8;

    fn encode_request((key, value): &(u64, u64)) -> Vec<u8> {
        [key.to_be_bytes(), value.to_le_bytes()].concat()
    }

    fn decode_request(bytes: &[u8]) -> Result<(u64, u64), Malformed> {
        let mut reader = Reader::new("a key and a value, 8 bytes each", bytes);
        let pair = (reader.word_key()?, reader.u64()?);
        reader.end()?;
        Ok(pair)
    }

    fn encode_response(former: &Option<u64>) -> Vec<u8> {
        GetWord::encode_response(former)
    }

    fn decode_response(bytes: &[u8]) -> Result<Option<u64>, Malformed> {
        GetWord::decode_response(bytes)
    }
}

impl Method for DeleteWord {
    type Request<'a> = u64;
    type Response = Option<u64>;
    const NUMBER: u16 = 3;
    const NAME: &'static str = "delete_word";
    const RESPONSE_BYTES_MAX: usize = 8;

    fn encode_request(key: &u64) -> Vec<u8> {
        GetWord::encode_request(key)
    }

    fn decode_request(bytes: &[u8]) -> Result<u64, Malformed> {
        GetWord::decode_request(bytes)
    }

    fn encode_response(value: &Option<u64>) -> Vec<u8> {
        GetWord::encode_response(value)
    }

    fn decode_response(bytes: &[u8]) -> Result<Option<u64>, Malformed> {
        GetWord::decode_response(bytes)
    }
}

impl Method for SumWords {
    /// The key before the first, and the number of keys to sum.
    type Request<'a> = (u64, u32);
    type Response = Sum;
    const NUMBER: u16 = 4;
    const NAME: &'static str = "sum_words";
    const RESPONSE_BYTES_MAX: usize = 12;

    fn encode_request((after, count): &(u64, u32)) -> Vec<u8> {
        [&after.to_be_bytes()[..], &count.to_le_bytes()].concat()
    }

    fn decode_request(bytes: &[u8]) -> Result<(u64, u32), Malformed> {
        let mut reader = Reader::new("a key of 8 bytes and a count of 4", bytes);
        let request = (reader.word_key()?, reader.u32()?);
        reader.end()?;
        Ok(request)
    }

    fn encode_response(sum: &Sum) -> Vec<u8> {
        [&sum.found.to_le_bytes()[..], &sum.sum.to_le_bytes()].concat()
    }

    fn decode_response(bytes: &[u8]) -> Result<Sum, Malformed> {
        let mut reader = Reader::new("a number of 4 bytes and a sum of 8", bytes);
        let sum = Sum { found: reader.u32()?, sum: reader.u64()? };
        reader.end()?;
        Ok(sum)
    }
}

impl Method for ScanWords {
    type Request<'a> = ScanRange<u64>;
    type Response = Page<(u64, u64)>;
    const NUMBER: u16 = 5;
    const NAME: &'static str = "scan_words";
    const RESPONSE_BYTES_MAX: usize = SCAN_BYTES_MAX + PAGE_HEAD_BYTES;

    fn encode_request(range: &ScanRange<u64>) -> Vec<u8> {
        let (tag, key) = tagged(range.from);
        let key = key.map_or([0; 8], u64::to_be_bytes);
        [&[tag][..], &range.limit.to_le_bytes(), &key].concat()
    }

    fn decode_request(bytes: &[u8]) -> Result<ScanRange<u64>, Malformed> {
        let mut reader = Reader::new("where to begin, a limit of 4 bytes, a key of 8", bytes);
        let (tag, limit, key) = (reader.u8()?, reader.u32()?, reader.word_key()?);
        reader.end()?;
        Ok(ScanRange { from: reader.bound(tag, key)?, limit })
    }

    fn encode_response(page: &Page<(u64, u64)>) -> Vec<u8> {
        let mut bytes = page_head(page);
        for (key, value) in &page.pairs {
            bytes.extend_from_slice(&key.to_be_bytes());
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn decode_response(bytes: &[u8]) -> Result<Page<(u64, u64)>, Malformed> {
        let mut reader = Reader::new("a page of words", bytes);
        let (is_cut, count) = (reader.flag()?, reader.count(16)?);
        let pairs = (0..count).map(|_| Ok((reader.word_key()?, reader.u64()?)));
        let pairs = pairs.collect::<Result<_, Malformed>>()?;
        reader.end()?;
        Ok(Page { pairs, is_cut })
    }
}

impl Method for GetBytes {
    type Request<'a> = &'a [u8];
    type Response = Option<Vec<u8>>;
    const NUMBER: u16 = 6;
    const NAME: &'static str = "get_bytes";
    const RESPONSE_BYTES_MAX: usize = 1 + VALUE_BYTES_MAX;

    fn encode_request(key: &&[u8]) -> Vec<u8> {
        key.to_vec()
    }

    fn decode_request(bytes: &[u8]) -> Result<&[u8], Malformed> {
        Ok(bytes)
    }

    fn encode_response(value: &Option<Vec<u8>>) -> Vec<u8> {
        value.as_ref().map_or(Vec::new(), |value| [&[1], &value[..]].concat())
    }

    fn decode_response(bytes: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
        match bytes {
            [] => Ok(None),
            [1, value @ ..] => Ok(Some(value.to_vec())),
            _ => Err(Malformed { expected: "a value, or nothing", bytes: bytes.len() }),
        }
    }
}

impl Method for PutBytes {
    type Request<'a> = (&'a [u8], &'a [u8]);
    type Response = bool;
    const NUMBER: u16 = 7;
    const NAME: &'static str = "put_bytes";
    const RESPONSE_BYTES_MAX: usize = 1;

    fn encode_request((key, value): &(&[u8], &[u8])) -> Vec<u8> {
        debug_assert!(key.len() <= KEY_BYTES_MAX, "the client has looked");
        [&(key.len() as u16).to_le_bytes(), *key, *value].concat()
    }

    fn decode_request(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
        let mut reader = Reader::new("a key's length in 2 bytes, a key, a value", bytes);
        let key_bytes = reader.u16()?;
        Ok((reader.take(key_bytes.into())?, reader.rest()))
    }

    fn encode_response(was_there: &bool) -> Vec<u8> {
        vec![u8::from(*was_there)]
    }

    fn decode_response(bytes: &[u8]) -> Result<bool, Malformed> {
        let mut reader = Reader::new("0 or 1", bytes);
        let was_there = reader.flag()?;
        reader.end()?;
        Ok(was_there)
    }
}

impl Method for DeleteBytes {
    type Request<'a> = &'a [u8];
    type Response = bool;
    const NUMBER: u16 = 8;
    const NAME: &'static str = "delete_bytes";
    const RESPONSE_BYTES_MAX: usize = 1;

    fn encode_request(key: &&[u8]) -> Vec<u8> {
        key.to_vec()
    }

    fn decode_request(bytes: &[u8]) -> Result<&[u8], Malformed> {
        Ok(bytes)
    }

    fn encode_response(was_there: &bool) -> Vec<u8> {
        PutBytes::encode_response(was_there)
    }

    fn decode_response(bytes: &[u8]) -> Result<bool, Malformed> {
        PutBytes::decode_response(bytes)
    }
}

impl Method for ScanBytes {
    type Request<'a> = ScanRange<&'a [u8]>;
    type Response = Page<BytesPair>;
    const NUMBER: u16 = 9;
    const NAME: &'static str = "scan_bytes";
    const RESPONSE_BYTES_MAX: usize = SCAN_BYTES_MAX + PAGE_HEAD_BYTES;

    fn encode_request(range: &ScanRange<&[u8]>) -> Vec<u8> {
        let (tag, key) = tagged(range.from);
        [&[tag][..], &range.limit.to_le_bytes(), key.unwrap_or_default()].concat()
    }

    fn decode_request(bytes: &[u8]) -> Result<ScanRange<&[u8]>, Malformed> {
        let mut reader = Reader::new("where to begin, a limit of 4 bytes, a key", bytes);
        let (tag, limit) = (reader.u8()?, reader.u32()?);
        let key = reader.rest();
        Ok(ScanRange { from: reader.bound(tag, key)?, limit })
    }

    fn encode_response(page: &Page<BytesPair>) -> Vec<u8> {
        let mut bytes = page_head(page);
        page.pairs.iter().for_each(|(key, value)| put_pair(&mut bytes, key, value));
        bytes
    }

    fn decode_response(bytes: &[u8]) -> Result<Page<BytesPair>, Malformed> {
        let mut reader = Reader::new("a page of bytes", bytes);
        let (is_cut, count) = (reader.flag()?, reader.count(PAIR_HEAD_BYTES)?);
        let pairs = (0..count).map(|_| {
            let (key_bytes, value_bytes) = (reader.u16()?, reader.u32()?);
            let key = reader.take(key_bytes.into())?.to_vec();
            Ok((key, reader.take(value_bytes as usize)?.to_vec()))
        });
        let pairs = pairs.collect::<Result<_, Malformed>>()?;
        reader.end()?;
        Ok(Page { pairs, is_cut })
    }
}

impl Method for Status {
    type Request<'a> = ();
    type Response = Vec<(String, u64)>;
    const NUMBER: u16 = 10;
    const NAME: &'static str = "status";
    const RESPONSE_BYTES_MAX: usize = 16 << 10;

    fn encode_request((): &()) -> Vec<u8> {
        Vec::new()
    }

    fn decode_request(bytes: &[u8]) -> Result<(), Malformed> {
        Reader::new("nothing", bytes).end()
    }

    fn encode_response(counters: &Vec<(String, u64)>) -> Vec<u8> {
        let lines: Vec<_> =
            counters.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
        lines.concat().into_bytes()
    }

    fn decode_response(bytes: &[u8]) -> Result<Vec<(String, u64)>, Malformed> {
        let error = Malformed { expected: "lines of a name and a number", bytes: bytes.len() };
        let text = str::from_utf8(bytes).map_err(|_| error)?;
        let counter = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        text.lines().map(|line| counter(line).ok_or(error)).collect()
    }
}

impl Method for Echo {
    type Request<'a> = &'a [u8];
    type Response = Vec<u8>;
    const NUMBER: u16 = 11;
    const NAME: &'static str = "echo";
    const RESPONSE_BYTES_MAX: usize = SCAN_BYTES_MAX;

    fn encode_request(bytes: &&[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn decode_request(bytes: &[u8]) -> Result<&[u8], Malformed> {
        Ok(bytes)
    }

    fn encode_response(bytes: &Vec<u8>) -> Vec<u8> {
        bytes.clone()
    }

    fn decode_response(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
        Ok(bytes.to_vec())
    }
}

/// Bytes at the beginning of a page: the flag `is_cut`, and the number of pairs.
const PAGE_HEAD_BYTES: usize = 5;

/// Bytes before a pair of byte strings: the lengths of key and value.
pub(crate) const PAIR_HEAD_BYTES: usize = 6;

/// Decodes the key of a word.
#[inline]
pub fn word_key(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn tagged<K>(from: Bound<K>) -> (u8, Option<K>) {
    match from {
        Bound::Unbounded => (0, None),
        Bound::Included(key) => (1, Some(key)),
        Bound::Excluded(key) => (2, Some(key)),
    }
}

fn page_head<P>(page: &Page<P>) -> Vec<u8> {
    let count = page.pairs.len() as u32;
    [&[u8::from(page.is_cut)][..], &count.to_le_bytes()].concat()
}

fn put_pair(bytes: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
}

#[cfg(test)]
mod tests;
