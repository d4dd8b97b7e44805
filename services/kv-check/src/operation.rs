//! One operation of the store's own client.

use petrel_kv::api::Consistency;
use petrel_kv::client::Value;
use petrel_kv::command::{Expected, Op};
use petrel_kv::{KvClient, KvError};

use crate::history::{Expectation, Found, Invocation, Response};
use crate::value::{tag_of, value_of};

/// Maps a key's number to its name. The last byte of a name is the number's digit.
pub(crate) type KeyOf<'a> = &'a dyn Fn(u8) -> Vec<u8>;

pub(crate) async fn perform(
    client: &KvClient,
    key_of: KeyOf<'_>,
    invocation: &Invocation,
) -> Result<Response, KvError> {
    match invocation {
        Invocation::Get { key } => {
            let found = get(client, key_of, *key, Consistency::Linearizable).await?;
            Ok(Response::Found(found.into_iter().collect()))
        }
        Invocation::Scan { from, until, max } => scan(client, key_of, *from, *until, *max).await,
        write => change(client, key_of, write).await,
    }
}

/// Reads a key.
pub(crate) async fn get(
    client: &KvClient,
    key_of: KeyOf<'_>,
    key: u8,
    consistency: Consistency,
) -> Result<Option<Found>, KvError> {
    let value = client.get_with(&key_of(key), consistency).await?;
    let found =
        |value: Value| Found { key, tag: tag_or_malformed(&value), revision: value.revision() };
    Ok(value.map(found))
}

/// The tag of a value. A malformed value gets an unwritten tag, and thereby breaks a rule of histories.
fn tag_or_malformed(value: &[u8]) -> String {
    tag_of(value).unwrap_or_else(|| format!("malformed: {}", value.escape_ascii()))
}

async fn scan(
    client: &KvClient,
    key_of: KeyOf<'_>,
    from: u8,
    until: u8,
    max: u32,
) -> Result<Response, KvError> {
    let until = key_of(until);
    let scan = client.scan(&key_of(from), Some(&until));
    let page = scan.limit(u64::from(max)).next_page().await?;
    let pairs = page.iter().flat_map(|page| page.pairs().iter());
    let found = pairs.map(|pair| Found {
        key: pair.key.last().map_or(u8::MAX, |digit| digit.wrapping_sub(b'0')),
        tag: tag_or_malformed(pair.value),
        revision: pair.revision,
    });
    Ok(Response::Found(found.collect()))
}

async fn change(
    client: &KvClient,
    key_of: KeyOf<'_>,
    invocation: &Invocation,
) -> Result<Response, KvError> {
    let (key, tag, expectation) = match invocation {
        Invocation::Put { key, tag } => (key, Some(tag), None),
        Invocation::Delete { key } => (key, None, None),
        Invocation::Cas { key, expected, tag } => (key, Some(tag), Some(expected)),
        Invocation::CasDelete { key, expected } => (key, None, Some(expected)),
        Invocation::Get { .. } | Invocation::Scan { .. } => unreachable!("reads change nothing"),
    };
    let key = &key_of(*key)[..];
    let value = tag.map(|tag| value_of(tag)).unwrap_or_default();
    let wanted = match expectation {
        Some(Expectation::Tag(tag)) => value_of(tag),
        _ => Vec::new(),
    };
    let expected = expectation.map(|expectation| match expectation {
        Expectation::Absent => Expected::Absent,
        Expectation::Revision(revision) => Expected::Revision(*revision),
        Expectation::Tag(_) => Expected::Value(&wanted),
    });
    let value = &value[..];
    let op = match (tag.is_some(), expected) {
        (true, None) => Op::Put { key, value },
        (false, None) => Op::Delete { key },
        (true, Some(expected)) => Op::Cas { key, expected, value },
        (false, Some(expected)) => Op::CasDelete { key, expected },
    };
    let applied = client.write(&op).await?;
    Response::of(applied).ok_or(KvError::Unknown { last: format!("{applied:?}") })
}
