//! One operation of the store's own client.

use petrel_kv::api::{Consistency, Pair};
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
        scanned @ Invocation::Scan { from, until, max } if is_by_save(scanned) => {
            match scan_by_save(client, key_of, *from, *until, *max).await {
                // The replica with the save is gone, or has too many.
                Err(KvError::Refused(_) | KvError::Unavailable(_)) => {
                    scan(client, key_of, *from, *until, *max).await
                }
                found => found,
            }
        }
        Invocation::Scan { from, until, max } => scan(client, key_of, *from, *until, *max).await,
        write => change(client, key_of, write).await,
    }
}

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
    Ok(Response::Found(pairs.map(found).collect()))
}

/// Returns true for the scans that read a whole save.
pub(crate) fn is_by_save(invocation: &Invocation) -> bool {
    matches!(invocation, Invocation::Scan { max, .. } if max % 2 == 0)
}

/// Takes the pairs of a scan from a save of the whole store: like a page, a save has one moment.
async fn scan_by_save(
    client: &KvClient,
    key_of: KeyOf<'_>,
    from: u8,
    until: u8,
    max: u32,
) -> Result<Response, KvError> {
    let range = key_of(from)..key_of(until);
    let mut save = client.save(Consistency::Linearizable).await?;
    let mut all = Vec::new();
    while let Some(block) = save.next_block().await? {
        let pairs = block.pairs();
        let wanted = pairs.iter().filter(|pair| range.contains(&pair.key.to_vec()));
        all.extend(wanted.map(found));
        if pairs.iter().any(|pair| pair.revision > save.head().revision) {
            return Err(KvError::Protocol("a save has a later write".to_owned()));
        }
    }
    all.truncate(max as usize);
    Ok(Response::Found(all))
}

fn found(pair: Pair<'_>) -> Found {
    Found {
        key: pair.key.last().map_or(u8::MAX, |digit| digit.wrapping_sub(b'0')),
        tag: tag_or_malformed(pair.value),
        revision: pair.revision,
    }
}

async fn change(
    client: &KvClient,
    key_of: KeyOf<'_>,
    invocation: &Invocation,
) -> Result<Response, KvError> {
    let applied = client.write(&Change::of(invocation, key_of).op()).await?;
    Response::of(applied).ok_or(KvError::Unknown { last: format!("{applied:?}") })
}

/// A write, with the bytes of its names and values.
pub(crate) struct Change<'a> {
    invocation: &'a Invocation,
    key: Vec<u8>,
    value: Vec<u8>,
    wanted: Vec<u8>,
}

impl<'a> Change<'a> {
    pub(crate) fn of(invocation: &'a Invocation, key_of: KeyOf<'_>) -> Self {
        let (key, tag, expected) = match invocation {
            Invocation::Put { key, tag } => (key, Some(tag), None),
            Invocation::Delete { key } => (key, None, None),
            Invocation::Cas { key, expected, tag } => (key, Some(tag), Some(expected)),
            Invocation::CasDelete { key, expected } => (key, None, Some(expected)),
            Invocation::Get { .. } | Invocation::Scan { .. } => {
                unreachable!("reads change nothing")
            }
        };
        let wanted = match expected {
            Some(Expectation::Tag(tag)) => Some(tag),
            _ => None,
        };
        let [value, wanted] = [tag, wanted].map(|tag| tag.map_or(vec![], |tag| value_of(tag)));
        Self { invocation, key: key_of(*key), value, wanted }
    }

    pub(crate) fn op(&self) -> Op<'_> {
        let (key, value) = (&self.key[..], &self.value[..]);
        let expect = |expected: &Expectation| match expected {
            Expectation::Absent => Expected::Absent,
            Expectation::Revision(revision) => Expected::Revision(*revision),
            Expectation::Tag(_) => Expected::Value(&self.wanted),
        };
        match self.invocation {
            Invocation::Put { .. } => Op::Put { key, value },
            Invocation::Cas { expected, .. } => Op::Cas { key, expected: expect(expected), value },
            Invocation::CasDelete { expected, .. } => {
                Op::CasDelete { key, expected: expect(expected) }
            }
            _ => Op::Delete { key },
        }
    }
}
