//! The log in memory, from which the Raft core reads.
//!
//! The log holds the entries after the last snapshot, and some earlier ones for replicas that are a little behind. A
//! log on disk ([`crate::persist`]) is only written, and read when the replica starts.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::storage::{GetEntriesContext, RaftState, Storage};
use raft::{Error, StorageError};

use super::codec::entry_bytes;

/// The log, shared by the Raft core and the replica.
#[derive(Clone, Debug)]
pub(crate) struct Log(Rc<RefCell<Inner>>);

/// The beginning of a log: state from elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Base {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) hard_state: HardState,
    pub(crate) conf_state: ConfState,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Index of the entry before the first one in memory.
    base_index: u64,
    base_term: u64,
    entries: VecDeque<Entry>,
    bytes: usize,
    hard_state: HardState,
    conf_state: ConfState,
    /// The snapshot for other replicas: index, term and configuration.
    snapshot: Option<(u64, u64, ConfState)>,
    /// The ticket of the snapshot: see [`super::snapshot`].
    snapshot_ticket: Bytes,
    /// The core has asked for a snapshot that does not exist.
    wants_snapshot: bool,
}

impl Log {
    pub(crate) fn new(base: Base, entries: Vec<Entry>) -> Self {
        let mut inner = Inner {
            base_index: base.index,
            base_term: base.term,
            entries: VecDeque::new(),
            bytes: 0,
            hard_state: base.hard_state,
            conf_state: base.conf_state,
            snapshot: None,
            snapshot_ticket: Bytes::new(),
            wants_snapshot: false,
        };
        inner.append(&entries);
        Self(Rc::new(RefCell::new(inner)))
    }

    pub(crate) fn get_mut(&self) -> RefMut<'_, Inner> {
        self.0.borrow_mut()
    }

    /// The number of entries in memory, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let inner = self.0.borrow();
        (inner.entries.len(), inner.bytes)
    }

    /// The index of the first entry in memory, or of the next one if the log is empty.
    pub(crate) fn first(&self) -> u64 {
        self.0.borrow().base_index + 1
    }
}

impl Inner {
    /// Appends entries. They replace existing entries from the first one's index on.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.base_index, "what a snapshot holds is not replaced");
        let keep = (first.index - self.base_index - 1) as usize;
        assert!(keep <= self.entries.len(), "a log has no gaps");
        for gone in self.entries.drain(keep..) {
            self.bytes -= entry_bytes(&gone);
        }
        self.bytes += entries.iter().map(entry_bytes).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
    }

    pub(crate) fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    pub(crate) fn set_conf_state(&mut self, conf_state: ConfState) {
        self.conf_state = conf_state;
    }

    pub(crate) fn conf_state(&self) -> &ConfState {
        &self.conf_state
    }

    /// Drops everything, because a snapshot replaces the log.
    pub(crate) fn restart_at(&mut self, index: u64, term: u64, conf_state: ConfState) {
        self.entries.clear();
        (self.bytes, self.base_index, self.base_term) = (0, index, term);
        self.conf_state = conf_state;
        self.snapshot = None;
    }

    /// Drops entries up to this index.
    pub(crate) fn compact_to(&mut self, index: u64) {
        let Some(term) = self.term_of(index).filter(|_| index > self.base_index) else { return };
        for gone in self.entries.drain(..(index - self.base_index) as usize) {
            self.bytes -= entry_bytes(&gone);
        }
        (self.base_index, self.base_term) = (index, term);
    }

    pub(crate) fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.base_index {
            return Some(self.base_term);
        }
        let place = index.checked_sub(self.base_index + 1)?;
        self.entries.get(place as usize).map(|entry| entry.term)
    }

    fn last_index(&self) -> u64 {
        self.base_index + self.entries.len() as u64
    }

    /// Sets the snapshot for other replicas.
    pub(crate) fn set_snapshot(&mut self, index: u64, term: u64, conf: ConfState, ticket: Bytes) {
        (self.snapshot, self.snapshot_ticket, self.wants_snapshot) =
            (Some((index, term, conf)), ticket, false);
    }

    pub(crate) fn wants_snapshot(&self) -> bool {
        self.wants_snapshot
    }

    fn snapshot(&mut self, request_index: u64, to: u64) -> Option<Snapshot> {
        // The log must continue from the snapshot, or the replica would need a second snapshot. A snapshot from before
        // a replica became a member would report that the replica is no member.
        let usable = |(index, _, conf): &&(u64, u64, ConfState)| {
            let is_member = conf.voters.contains(&to) || conf.learners.contains(&to);
            *index >= request_index && *index >= self.base_index && is_member
        };
        let Some((index, term, conf)) = self.snapshot.as_ref().filter(usable) else {
            self.wants_snapshot = true;
            return None;
        };
        let mut snapshot = Snapshot { data: self.snapshot_ticket.clone(), ..Snapshot::default() };
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (*index, *term);
        metadata.set_conf_state(conf.clone());
        Some(snapshot)
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let inner = self.0.borrow();
        Ok(RaftState::new(inner.hard_state.clone(), inner.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let inner = self.0.borrow();
        if low <= inner.base_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > inner.last_index() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let place = |index: u64| (index - inner.base_index - 1) as usize;
        let mut left = max_size.into().unwrap_or(u64::MAX);
        let mut entries = Vec::new();
        for entry in inner.entries.range(place(low)..place(high)) {
            let bytes = entry_bytes(entry) as u64;
            if bytes > left && !entries.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes);
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let inner = self.0.borrow();
        let missing = if index < inner.base_index {
            StorageError::Compacted
        } else {
            StorageError::Unavailable
        };
        inner.term_of(index).ok_or(Error::Store(missing))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.0.borrow().last_index())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let snapshot = self.0.borrow_mut().snapshot(request_index, to);
        snapshot.ok_or(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, data: Bytes::from(vec![1; 83]), ..Entry::default() }
    }

    fn log() -> Log {
        let base = Base { index: 10, term: 2, ..Base::default() };
        Log::new(base, (11..=20).map(|index| entry(index, 3)).collect())
    }

    fn read(log: &Log, low: u64, high: u64, max: u64) -> raft::Result<Vec<u64>> {
        let entries = log.entries(low, high, max, GetEntriesContext::empty(false))?;
        Ok(entries.iter().map(|entry| entry.index).collect())
    }

    #[test]
    fn entries__in_bounds_of_number_and_bytes() {
        let log = log();
        assert_eq!(read(&log, 12, 15, u64::MAX).unwrap(), [12, 13, 14]);
        assert_eq!(read(&log, 12, 15, 250).unwrap(), [12, 13], "100 bytes each");
        assert_eq!(read(&log, 12, 15, 0).unwrap(), [12], "one at least");
        assert_eq!(read(&log, 10, 15, 0).unwrap_err(), Error::Store(StorageError::Compacted));
        assert_eq!(read(&log, 12, 22, 0).unwrap_err(), Error::Store(StorageError::Unavailable));
    }

    #[test]
    fn append__replaces_what_follows() {
        let log = log();
        log.get_mut().append(&[entry(15, 4), entry(16, 4)]);
        assert_eq!(log.last_index().unwrap(), 16);
        assert_eq!((log.term(14).unwrap(), log.term(15).unwrap()), (3, 4));
        assert_eq!(log.size(), (6, 600));
    }

    #[test]
    fn compact__drops_up_to_an_index() {
        let log = log();
        log.get_mut().compact_to(15);
        assert_eq!((log.first(), log.last_index().unwrap()), (16, 20));
        assert_eq!(log.term(15).unwrap(), 3);
        assert_eq!(log.term(14).unwrap_err(), Error::Store(StorageError::Compacted));
        log.get_mut().compact_to(12);
        log.get_mut().compact_to(21);
        assert_eq!(log.size(), (5, 500), "nothing before and nothing beyond the log");
    }

    #[test]
    fn snapshot__only_one_from_which_the_log_goes_on() {
        let log = log();
        assert!(log.snapshot(0, 1).is_err());
        assert!(log.get_mut().wants_snapshot());
        let conf = ConfState::from((vec![1], vec![]));
        log.get_mut().set_snapshot(12, 3, conf, Bytes::from_static(b"ticket"));
        assert!(!log.get_mut().wants_snapshot());
        assert!(log.snapshot(12, 2).is_err(), "2 was no member then");
        assert_eq!(log.snapshot(12, 1).unwrap().get_metadata().index, 12);
        assert!(log.snapshot(13, 1).is_err());
        log.get_mut().compact_to(14);
        assert!(log.snapshot(0, 1).is_err(), "13 and 14 are gone");
    }
}
