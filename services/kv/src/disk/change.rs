//! The content of a log record: a batch, with its checkpoint named by file.

use protobuf::Message;
use raft::eraftpb::{Entry, HardState};

use crate::persist::Identity;
use crate::wire::{DecodeError, Reader, Write};

const IDENTITY: u8 = 1;
const RESET: u8 = 2;
const CHECKPOINT: u8 = 4;
const HARD_STATE: u8 = 8;

/// A checkpoint, named by its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) file: u64,
    pub(super) index: u64,
    pub(super) term: u64,
}

/// A record's content.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Change {
    pub(super) identity: Option<Identity>,
    /// A checkpoint that replaces all earlier state.
    pub(super) reset: Option<Base>,
    /// A checkpoint of the log's own state: entries up to its index are no longer needed.
    pub(super) checkpoint: Option<Base>,
    pub(super) entries: Vec<Entry>,
    pub(super) hard_state: Option<HardState>,
}

/// The reason why a record's body is not valid. The check matched; therefore a bug wrote the body.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadChange {
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    #[error("an entry is malformed: {0}")]
    Entry(#[from] protobuf::ProtobufError),
}

impl Change {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u8(self.flags());
        if let Some(identity) = &self.identity {
            put_identity(identity, &mut out);
        }
        for base in [&self.reset, &self.checkpoint].into_iter().flatten() {
            put_base(base, &mut out);
        }
        if let Some(HardState { term, vote, commit, .. }) = &self.hard_state {
            [*term, *vote, *commit].iter().for_each(|number| out.put_u64(*number));
        }
        out.put_u32(self.entries.len() as u32);
        for entry in &self.entries {
            put_entry(entry, &mut out);
        }
        out
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, BadChange> {
        let mut input = Reader::new(body);
        let flags = input.u8("flags")?;
        if flags & !(IDENTITY | RESET | CHECKPOINT | HARD_STATE) != 0 {
            return Err(DecodeError::UnknownKind { field: "change", kind: flags }.into());
        }
        let has = |flag| flags & flag != 0;
        let mut change = Self {
            identity: has(IDENTITY).then(|| read_identity(&mut input)).transpose()?,
            reset: has(RESET).then(|| read_base(&mut input)).transpose()?,
            checkpoint: has(CHECKPOINT).then(|| read_base(&mut input)).transpose()?,
            hard_state: has(HARD_STATE).then(|| read_hard_state(&mut input)).transpose()?,
            entries: Vec::new(),
        };
        for _ in 0..input.u32("entries")? {
            let length = input.u32("entry")? as usize;
            change.entries.push(Entry::parse_from_bytes(input.take(length, "entry")?)?);
        }
        input.end()?;
        Ok(change)
    }

    fn flags(&self) -> u8 {
        let flag = |is_there, flag| if is_there { flag } else { 0 };
        flag(self.identity.is_some(), IDENTITY)
            | flag(self.reset.is_some(), RESET)
            | flag(self.checkpoint.is_some(), CHECKPOINT)
            | flag(self.hard_state.is_some(), HARD_STATE)
    }
}

pub(super) fn put_identity(identity: &Identity, out: &mut Vec<u8>) {
    out.put_u64(identity.cluster);
    out.put_u64(identity.replica);
}

pub(super) fn read_identity(input: &mut Reader<'_>) -> Result<Identity, DecodeError> {
    Ok(Identity { cluster: input.u64("cluster")?, replica: input.u64("replica")? })
}

pub(super) fn put_base(base: &Base, out: &mut Vec<u8>) {
    [base.file, base.index, base.term].iter().for_each(|number| out.put_u64(*number));
}

pub(super) fn read_base(input: &mut Reader<'_>) -> Result<Base, DecodeError> {
    Ok(Base { file: input.u64("file")?, index: input.u64("index")?, term: input.u64("term")? })
}

fn read_hard_state(input: &mut Reader<'_>) -> Result<HardState, DecodeError> {
    let [term, vote, commit] = [input.u64("term")?, input.u64("vote")?, input.u64("commit")?];
    Ok(HardState { term, vote, commit, ..HardState::default() })
}

fn put_entry(entry: &Entry, out: &mut Vec<u8>) {
    let start = out.len();
    out.put_u32(0);
    entry.write_to_vec(out).expect("a vector takes all bytes, and an entry has no required fields");
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Change {
        let entry = |index| Entry { index, term: 2, data: vec![7; 9].into(), ..Entry::default() };
        Change {
            identity: Some(Identity { cluster: 1, replica: 2 }),
            reset: Some(Base { file: 3, index: 4, term: 5 }),
            checkpoint: Some(Base { file: 6, index: 7, term: 8 }),
            entries: vec![entry(9), entry(10)],
            hard_state: Some(HardState { term: 11, vote: 12, commit: 13, ..HardState::default() }),
        }
    }

    #[test]
    fn change__round_trips_in_full_and_in_parts() {
        let parts = [
            full(),
            Change::default(),
            Change { identity: None, entries: vec![], ..full() },
            Change { reset: None, hard_state: None, ..full() },
            Change { checkpoint: None, ..full() },
        ];
        for change in parts {
            assert_eq!(Change::decode(&change.encode()).unwrap(), change);
        }
    }

    #[test]
    fn change__cut_or_with_more_is_none() {
        let bytes = full().encode();
        for length in 0..bytes.len() {
            assert!(Change::decode(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Change::decode(&[&bytes[..], &[0]].concat()).is_err());
        assert!(Change::decode(&[0x10, 0, 0, 0, 0]).is_err());
    }
}
