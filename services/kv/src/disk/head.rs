//! The log's state at some place, except the entries. Every segment begins with a head, and earlier segments can
//! therefore be removed.

use std::io::{self, Read, Write};

use codeq::{Decode, Encode};
use raft::eraftpb::HardState;

use super::change::{Base, Change, put_base, put_identity, read_base, read_identity};
use crate::persist::Identity;
use crate::wire::{DecodeError, Reader, Write as _};

/// Two options, three numbers of the hard state, the last reset and the last index.
const BYTES: usize = (1 + 16) + (1 + 24) + 24 + 8 + 8;

/// The state of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) identity: Option<Identity>,
    /// The checkpoint before the entries.
    pub(super) base: Option<Base>,
    pub(super) term: u64,
    pub(super) vote: u64,
    pub(super) commit: u64,
    /// File of the last checkpoint that replaced all earlier state.
    pub(super) reset: u64,
    /// Index of the last entry, or of the checkpoint if that is later.
    pub(super) last: u64,
}

impl Head {
    /// Returns true if a change is durable only after a sync. Raft tolerates the loss of the last commit index.
    pub(super) fn must_sync(&self, change: &Change) -> bool {
        let has_voted = |state: &HardState| (state.term, state.vote) != (self.term, self.vote);
        change.identity.is_some()
            || change.reset.is_some()
            || change.checkpoint.is_some()
            || !change.entries.is_empty()
            || change.hard_state.as_ref().is_some_and(has_voted)
    }

    /// Applies a change.
    ///
    /// # Errors
    /// The defect of the change.
    pub(super) fn note(&mut self, change: &Change) -> Result<(), String> {
        self.identity = change.identity.or(self.identity);
        if let Some(base) = change.reset {
            (self.base, self.reset, self.last) = (Some(base), base.file, base.index);
        }
        if let Some(base) = change.checkpoint {
            (self.base, self.last) = (Some(base), self.last.max(base.index));
        }
        if let Some(state) = &change.hard_state {
            (self.term, self.vote, self.commit) = (state.term, state.vote, state.commit);
        }
        self.note_entries(change)
    }

    fn note_entries(&mut self, change: &Change) -> Result<(), String> {
        let Some(first) = change.entries.first().map(|entry| entry.index) else { return Ok(()) };
        let before = first.checked_sub(1).filter(|before| *before <= self.last);
        // A log with indices up to the greatest number was not written by this program.
        let last = before.and_then(|before| before.checked_add(change.entries.len() as u64));
        let indexes = change.entries.iter().map(|entry| entry.index);
        let Some(last) = last.filter(|last| indexes.eq(first..=*last)) else {
            return Err(format!("entries from {first} on do not follow entry {}", self.last));
        };
        self.last = last.max(self.base.map_or(0, |base| base.index));
        Ok(())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.put_u8(u8::from(self.identity.is_some()));
        put_identity(&self.identity.unwrap_or(Identity { cluster: 0, replica: 0 }), &mut out);
        out.put_u8(u8::from(self.base.is_some()));
        put_base(&self.base.unwrap_or_default(), &mut out);
        let numbers = [self.term, self.vote, self.commit, self.reset, self.last];
        numbers.iter().for_each(|number| out.put_u64(*number));
        out
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let has_identity = input.u8("identity")? != 0;
        let identity = Some(read_identity(&mut input)?).filter(|_| has_identity);
        let has_base = input.u8("base")? != 0;
        let base = Some(read_base(&mut input)?).filter(|_| has_base);
        Ok(Self {
            identity,
            base,
            term: input.u64("term")?,
            vote: input.u64("vote")?,
            commit: input.u64("commit")?,
            reset: input.u64("reset")?,
            last: input.u64("last")?,
        })
    }
}

// The log adds a check.
impl Encode for Head {
    fn encode<W: Write>(&self, mut out: W) -> io::Result<usize> {
        out.write_all(&self.to_bytes())?;
        Ok(BYTES)
    }
}

impl Decode for Head {
    fn decode<R: Read>(mut input: R) -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        input.read_exact(&mut bytes)?;
        Self::from_bytes(&bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::Entry;

    use super::*;

    fn entries(indexes: &[u64]) -> Change {
        let entry = |index: &u64| Entry { index: *index, term: 1, ..Entry::default() };
        Change { entries: indexes.iter().map(entry).collect(), ..Change::default() }
    }

    fn hard_state(term: u64, vote: u64, commit: u64) -> Change {
        let hard_state = HardState { term, vote, commit, ..HardState::default() };
        Change { hard_state: Some(hard_state), ..Change::default() }
    }

    #[test]
    fn head__round_trips() {
        let base = Base { file: 1, index: 2, term: 3 };
        let identity = Identity { cluster: 4, replica: 5 };
        for (identity, base) in [(None, None), (Some(identity), Some(base))] {
            let head = Head { identity, base, term: 6, vote: 7, commit: 8, reset: 9, last: 10 };
            let mut bytes = Vec::new();
            assert_eq!(head.encode(&mut bytes).unwrap(), bytes.len());
            assert_eq!(Head::decode(&bytes[..]).unwrap(), head);
        }
    }

    #[test]
    fn note__entries_follow_or_replace() {
        let mut head = Head::default();
        head.note(&entries(&[1, 2, 3])).unwrap();
        head.note(&entries(&[2])).unwrap();
        assert_eq!(head.last, 2);
        for wrong in [&[4][..], &[0], &[3, 5], &[3, 3]] {
            assert!(head.clone().note(&entries(wrong)).is_err(), "{wrong:?}");
        }
    }

    /// Found by the fuzz target `kv_replica`: numbers from a disk must not cause an overflow.
    #[test]
    fn note__entries_at_the_end_of_all_numbers() {
        for last in [u64::MAX - 1, u64::MAX] {
            let head = Head { last, ..Head::default() };
            assert!(head.clone().note(&entries(&[u64::MAX, 0])).is_err());
            assert!(head.clone().note(&entries(&[0])).is_err());
            let mut head = head;
            head.note(&entries(&[u64::MAX])).unwrap();
            assert_eq!(head.last, u64::MAX);
        }
    }

    #[test]
    fn must_sync__all_but_the_commit_index() {
        let mut head = Head::default();
        head.note(&hard_state(2, 3, 4)).unwrap();
        assert!(!head.must_sync(&hard_state(2, 3, 9)));
        assert!(!head.must_sync(&Change::default()));
        assert!(head.must_sync(&hard_state(3, 3, 4)));
        assert!(head.must_sync(&hard_state(2, 0, 4)));
        assert!(head.must_sync(&entries(&[1])));
    }
}
