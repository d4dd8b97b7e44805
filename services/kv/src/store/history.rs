//! The changes of the last commands, for watchers (`docs/kv-protocol.md` §11).
//!
//! A history is no part of the state: each replica has the changes that it has applied itself, up to its bounds. A
//! store from an image begins without any.

use std::collections::VecDeque;
use std::ops::Deref;

use petrel_planted::planted;

use super::map::Map;
use crate::api::Change;
use crate::limits::{HISTORY_BYTES_DEFAULT, HISTORY_REVISIONS_MAX};

/// Memory of a revision beside its changes, about, in bytes.
const REVISION_BYTES: usize = 48;

/// Memory that the changes under way keep between commands, in bytes.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// The keys, whose changes are recorded.
#[derive(Debug, Default)]
pub(super) struct Keys {
    map: Map,
    pub(super) history: History,
}

impl Keys {
    /// Sets a key, and returns true if the key existed.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8], revision: u64) -> bool {
        self.history.record(&Change { key, value: Some(value) });
        self.map.put(key, value, revision)
    }

    /// Removes a key, and returns true if the key existed.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let existed = self.map.remove(key);
        if existed {
            self.history.record(&Change { key, value: None });
        }
        existed
    }

    /// Removes a key whose lease ends.
    pub(super) fn remove_leased(&mut self, key: &[u8]) {
        let existed = match planted("kv_watch_misses_lease_ends") {
            true => self.map.remove(key),
            false => self.remove(key),
        };
        assert!(existed, "a leased key exists");
    }

    /// The keys, whose changes are not recorded: the history has to begin anew afterwards.
    pub(super) fn unrecorded(&mut self) -> &mut Map {
        &mut self.map
    }

    /// The keys at this moment.
    pub(super) fn image(&self) -> Map {
        self.map.clone()
    }
}

impl Deref for Keys {
    type Target = Map;

    fn deref(&self) -> &Map {
        &self.map
    }
}

/// The changes of the last revisions.
#[derive(Debug)]
pub(crate) struct History {
    bytes_max: usize,
    /// All changes from this revision on are here.
    first: u64,
    /// The revisions with changes, in order.
    revisions: VecDeque<Revision>,
    bytes: usize,
    /// The changes of the command that is being executed.
    under_way: Vec<u8>,
}

/// The changes of a revision: one at least.
#[derive(Debug)]
pub(crate) struct Revision {
    pub(crate) number: u64,
    encoded: Box<[u8]>,
}

impl Revision {
    /// The changes, in the order of their execution.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        Change::all(&self.encoded)
    }

    fn bytes(&self) -> usize {
        REVISION_BYTES + self.encoded.len()
    }
}

impl Default for History {
    fn default() -> Self {
        Self {
            bytes_max: HISTORY_BYTES_DEFAULT,
            first: 1,
            revisions: VecDeque::new(),
            bytes: 0,
            under_way: Vec::new(),
        }
    }
}

impl History {
    /// The first revision of which a watcher can have all changes.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The memory of the changes, about, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most memory of the changes, in bytes. The last revision stays in any case.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.trim();
    }

    /// The revisions with changes from a number on, which must not be before the first.
    pub(crate) fn from(&self, number: u64) -> impl Iterator<Item = &Revision> {
        debug_assert!(number >= self.first, "revision {number} is gone");
        let begin = self.revisions.partition_point(|revision| revision.number < number);
        self.revisions.range(begin..)
    }

    /// Forgets all changes: those from a revision on will be here.
    pub(super) fn restart(&mut self, next: u64) {
        assert!(next >= self.first, "the history goes forward");
        self.revisions.clear();
        (self.first, self.bytes) = (next, 0);
    }

    fn record(&mut self, change: &Change<'_>) {
        change.write(&mut self.under_way);
    }

    /// Ends the changes of a command.
    pub(super) fn end(&mut self, number: u64) {
        if self.under_way.is_empty() {
            return;
        }
        let last = self.revisions.back().map_or(0, |last| last.number);
        assert!(number > last && number >= self.first, "revision {number} after {last}");
        let revision = Revision { number, encoded: self.under_way.as_slice().into() };
        self.under_way.clear();
        self.under_way.shrink_to(KEPT_BYTES_MAX);
        self.bytes += revision.bytes();
        self.revisions.push_back(revision);
        self.trim();
    }

    fn trim(&mut self) {
        while self.revisions.len() > 1
            && (self.bytes > self.bytes_max || self.revisions.len() > HISTORY_REVISIONS_MAX)
        {
            let gone = self.revisions.pop_front().expect("there are two");
            self.bytes -= gone.bytes();
            self.first = gone.number + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(history: &History, from: u64) -> Vec<u64> {
        history.from(from).map(|revision| revision.number).collect()
    }

    #[test]
    fn keys__record_what_changes_and_nothing_else() {
        let mut keys = Keys::default();
        keys.put(b"a", b"1", 3);
        assert!(!keys.remove(b"b"));
        keys.history.end(3);
        assert!(!keys.remove(b"b"));
        keys.history.end(4);
        keys.put(b"b", b"2", 7);
        keys.put(b"leased", b"3", 7);
        keys.remove_leased(b"leased");
        assert!(keys.remove(b"a") && keys.remove(b"b"));
        keys.history.end(7);
        let all = keys.history.from(1).flat_map(|revision| {
            revision.changes().map(|it| (revision.number, it)).collect::<Vec<_>>()
        });
        let put = |key, value| Change { key, value: Some(value) };
        let gone = |key| Change { key, value: None };
        let expected = [
            (3, put(b"a", b"1")),
            (7, put(b"b", b"2")),
            (7, put(b"leased", b"3")),
            (7, gone(b"leased")),
            (7, gone(b"a")),
            (7, gone(b"b")),
        ];
        assert!(all.eq(expected));
    }

    #[test]
    fn end__forgets_the_first_revisions_beyond_the_bound_and_keeps_the_last() {
        let mut history = History::default();
        let add = |history: &mut History, number| {
            history.record(&Change { key: b"key", value: Some(&[0; 40]) });
            history.end(number);
        };
        for number in [5, 6, 9] {
            add(&mut history, number);
        }
        assert_eq!((history.first(), numbers(&history, 6)), (1, vec![6, 9]));
        let each = history.bytes() / 3;
        history.set_bytes_max(2 * each);
        assert_eq!((history.first(), numbers(&history, 6)), (6, vec![6, 9]));
        add(&mut history, 12);
        assert_eq!((history.first(), numbers(&history, 8)), (7, vec![9, 12]));
        history.set_bytes_max(0);
        assert_eq!((history.first(), numbers(&history, 10)), (10, vec![12]));
        assert_eq!(history.bytes(), each);
        history.restart(40);
        assert_eq!((history.first(), history.bytes(), numbers(&history, 40)), (40, 0, vec![]));
    }
}
