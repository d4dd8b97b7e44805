//! The service's definition: its methods, and their messages in bytes (`docs/index-service.md`).
//!
//! A method is a type with a number and four functions, shared by client and server. Numbers are little-endian, except
//! keys of words, which are big-endian: bytes then have the order of the numbers.

use std::ops::Bound;

use crate::error::Malformed;
use crate::limits::KEY_BYTES_MAX;

mod reader;

use reader::{Reader, read};

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

/// Declares the methods. Behind the type of a message are the functions that write and read its bytes.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal:
        $request:ty [$put_request:ident, $request_of:ident] => $response:ty [$put_response:ident, $response_of:ident];
    )*) => {
        $($(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        impl Method for $name {
            type Request<'a> = $request;
            type Response = $response;
            const NUMBER: u16 = $number;
            const NAME: &'static str = $text;

            fn encode_request(request: &Self::Request<'_>) -> Vec<u8> {
                $put_request(request)
            }

            #[inline]
            fn decode_request(bytes: &[u8]) -> Result<Self::Request<'_>, Malformed> {
                $request_of(bytes)
            }

            fn encode_response(response: &Self::Response) -> Vec<u8> {
                $put_response(response)
            }

            #[inline]
            fn decode_response(bytes: &[u8]) -> Result<Self::Response, Malformed> {
                $response_of(bytes)
            }
        })*

        /// Names by method number.
        pub(crate) const NAMES: &[&str] = &["", $($text),*];

        /// Names of the methods.
        pub const METHODS: &[(&str, u16)] = &[$(($text, $number)),*];

        const _: () = {
            let numbers = [0, $($number),*];
            let mut place = 0;
            while place < numbers.len() {
                assert!(numbers[place] == place, "names stand at the methods' numbers");
                place += 1;
            }
        };
    };
}

methods! {
    /// GET of a word.
    GetWord = 1, "get_word": u64 [put_key, key] => Option<u64> [put_found, found];
    /// PUT of a word; returns the former value.
    PutWord = 2, "put_word": (u64, u64) [put_word, word] => Option<u64> [put_found, found];
    /// DELETE of a word; returns its value.
    DeleteWord = 3, "delete_word": u64 [put_key, key] => Option<u64> [put_found, found];
    /// SUM of the values of the keys after a key, up to a number of keys.
    SumWords = 4, "sum_words": (u64, u32) [put_sum_range, sum_range] => Sum [put_sum, sum];
    /// SCAN of the words.
    ScanWords = 5, "scan_words": ScanRange<u64> [put_word_range, word_range]
        => Page<(u64, u64)> [put_word_page, word_page];
    /// GET of bytes.
    GetBytes = 6, "get_bytes": &'a [u8] [put_bytes, bytes_of] => Option<Vec<u8>> [put_value, value];
    /// PUT of bytes; returns whether the key had a value.
    PutBytes = 7, "put_bytes": (&'a [u8], &'a [u8]) [put_bytes_pair, bytes_pair] => bool [put_flag, flag];
    /// DELETE of bytes; returns whether the key had a value.
    DeleteBytes = 8, "delete_bytes": &'a [u8] [put_bytes, bytes_of] => bool [put_flag, flag];
    /// SCAN of the bytes.
    ScanBytes = 9, "scan_bytes": ScanRange<&'a [u8]> [put_bytes_range, bytes_range]
        => Page<BytesPair> [put_bytes_page, bytes_page];
    /// The counters, as lines of a name and a number.
    Status = 10, "status": () [put_nothing, nothing] => Vec<(String, u64)> [put_counters, counters];
    /// Returns its request: the cost of a call without a lookup.
    Echo = 11, "echo": &'a [u8] [put_bytes, bytes_of] => Vec<u8> [clone_of, copy_of];
}

fn put_key(key: &u64) -> Vec<u8> {
    key.to_be_bytes().into()
}

#[inline]
fn key(bytes: &[u8]) -> Result<u64, Malformed> {
    word_key(bytes).ok_or(Malformed { expected: "a key of 8 bytes", bytes: bytes.len() })
}

fn put_found(value: &Option<u64>) -> Vec<u8> {
    value.map_or(Vec::new(), |value| value.to_le_bytes().into())
}

#[inline]
fn found(bytes: &[u8]) -> Result<Option<u64>, Malformed> {
    match (<[u8; 8]>::try_from(bytes), bytes.len()) {
        (Ok(value), _) => Ok(Some(u64::from_le_bytes(value))),
        (Err(_), 0) => Ok(None),
        (Err(_), bytes) => Err(Malformed { expected: "a value of 8 bytes, or none", bytes }),
    }
}

fn put_word((key, value): &(u64, u64)) -> Vec<u8> {
    [key.to_be_bytes(), value.to_le_bytes()].concat()
}

fn word(bytes: &[u8]) -> Result<(u64, u64), Malformed> {
    read("a key and a value, 8 bytes each", bytes, |reader| Ok((reader.word_key()?, reader.u64()?)))
}

fn put_sum_range((after, count): &(u64, u32)) -> Vec<u8> {
    [&after.to_be_bytes()[..], &count.to_le_bytes()].concat()
}

fn sum_range(bytes: &[u8]) -> Result<(u64, u32), Malformed> {
    read("a key of 8 bytes and a count of 4", bytes, |it| Ok((it.word_key()?, it.u32()?)))
}

fn put_sum(sum: &Sum) -> Vec<u8> {
    [&sum.found.to_le_bytes()[..], &sum.sum.to_le_bytes()].concat()
}

fn sum(bytes: &[u8]) -> Result<Sum, Malformed> {
    read("a number of 4 bytes and a sum of 8", bytes, |it| {
        Ok(Sum { found: it.u32()?, sum: it.u64()? })
    })
}

fn put_word_range(range: &ScanRange<u64>) -> Vec<u8> {
    let (tag, key) = tagged(range.from);
    let key = key.map_or([0; 8], u64::to_be_bytes);
    [&[tag][..], &range.limit.to_le_bytes(), &key].concat()
}

fn word_range(bytes: &[u8]) -> Result<ScanRange<u64>, Malformed> {
    read("where to begin, a limit of 4 bytes, a key of 8", bytes, |reader| {
        let (tag, limit, key) = (reader.u8()?, reader.u32()?, reader.word_key()?);
        Ok(ScanRange { from: reader.bound(tag, key)?, limit })
    })
}

fn put_word_page(page: &Page<(u64, u64)>) -> Vec<u8> {
    let mut bytes = page_head(page);
    page.pairs.iter().for_each(|pair| bytes.extend(put_word(pair)));
    bytes
}

fn word_page(bytes: &[u8]) -> Result<Page<(u64, u64)>, Malformed> {
    read("a page of words", bytes, |reader| {
        let (is_cut, count) = (reader.flag()?, reader.count(16)?);
        let pairs = (0..count).map(|_| Ok((reader.word_key()?, reader.u64()?)));
        Ok(Page { pairs: pairs.collect::<Result<_, Malformed>>()?, is_cut })
    })
}

fn put_bytes(bytes: &&[u8]) -> Vec<u8> {
    bytes.to_vec()
}

fn bytes_of(bytes: &[u8]) -> Result<&[u8], Malformed> {
    Ok(bytes)
}

#[expect(clippy::ptr_arg, reason = "the type of the response")]
fn clone_of(bytes: &Vec<u8>) -> Vec<u8> {
    bytes.clone()
}

fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    Ok(bytes.to_vec())
}

fn put_value(value: &Option<Vec<u8>>) -> Vec<u8> {
    value.as_ref().map_or(Vec::new(), |value| [&[1], &value[..]].concat())
}

fn value(bytes: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
    match bytes {
        [] => Ok(None),
        [1, value @ ..] => Ok(Some(value.to_vec())),
        _ => Err(Malformed { expected: "a value, or nothing", bytes: bytes.len() }),
    }
}

fn put_bytes_pair((key, value): &(&[u8], &[u8])) -> Vec<u8> {
    debug_assert!(key.len() <= KEY_BYTES_MAX, "the client has looked");
    [&(key.len() as u16).to_le_bytes(), *key, *value].concat()
}

fn bytes_pair(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    read("a key's length in 2 bytes, a key, a value", bytes, |reader| {
        let key_bytes = reader.u16()?;
        Ok((reader.take(key_bytes.into())?, reader.rest()))
    })
}

fn put_flag(was_there: &bool) -> Vec<u8> {
    vec![u8::from(*was_there)]
}

fn flag(bytes: &[u8]) -> Result<bool, Malformed> {
    read("0 or 1", bytes, Reader::flag)
}

fn put_bytes_range(range: &ScanRange<&[u8]>) -> Vec<u8> {
    let (tag, key) = tagged(range.from);
    [&[tag][..], &range.limit.to_le_bytes(), key.unwrap_or_default()].concat()
}

fn bytes_range(bytes: &[u8]) -> Result<ScanRange<&[u8]>, Malformed> {
    read("where to begin, a limit of 4 bytes, a key", bytes, |reader| {
        let (tag, limit, key) = (reader.u8()?, reader.u32()?, reader.rest());
        Ok(ScanRange { from: reader.bound(tag, key)?, limit })
    })
}

fn put_bytes_page(page: &Page<BytesPair>) -> Vec<u8> {
    let mut bytes = page_head(page);
    page.pairs.iter().for_each(|(key, value)| put_pair(&mut bytes, key, value));
    bytes
}

fn bytes_page(bytes: &[u8]) -> Result<Page<BytesPair>, Malformed> {
    read("a page of bytes", bytes, |reader| {
        let (is_cut, count) = (reader.flag()?, reader.count(PAIR_HEAD_BYTES)?);
        let pairs = (0..count).map(|_| {
            let (key_bytes, value_bytes) = (reader.u16()?, reader.u32()?);
            let key = reader.take(key_bytes.into())?.to_vec();
            Ok((key, reader.take(value_bytes as usize)?.to_vec()))
        });
        Ok(Page { pairs: pairs.collect::<Result<_, Malformed>>()?, is_cut })
    })
}

fn put_nothing((): &()) -> Vec<u8> {
    Vec::new()
}

fn nothing(bytes: &[u8]) -> Result<(), Malformed> {
    read("nothing", bytes, |_| Ok(()))
}

fn put_counters(counters: &[(String, u64)]) -> Vec<u8> {
    let lines: Vec<_> = counters.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
    lines.concat().into_bytes()
}

fn counters(bytes: &[u8]) -> Result<Vec<(String, u64)>, Malformed> {
    let error = Malformed { expected: "lines of a name and a number", bytes: bytes.len() };
    let text = str::from_utf8(bytes).map_err(|_| error)?;
    let counter = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().map(|line| counter(line).ok_or(error)).collect()
}

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
