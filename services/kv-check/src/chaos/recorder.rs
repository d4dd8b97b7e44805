//! The record of all operations of a phase, in groups of keys. Separate checks of the groups keep histories short.
//!
//! Calls and ends are numbered under a lock, before sending an operation and after the arrival of the answer. The order
//! of the numbers therefore holds in real time, too. Times of the monotonic clock are kept for people.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::history::{End, History, Invocation, Operation, Response};

/// Keys of a group, the most that the checker accepts.
pub(super) const KEYS: u8 = 8;

/// Operations of a group. Fewer with scans, which make all keys a single object.
const OPERATIONS: usize = 1000;
const OPERATIONS_WITH_SCANS: usize = 300;

/// One group in this number has scans.
const GROUPS_PER_SCANS: usize = 4;

pub(super) struct Recorder {
    begin: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) groups: Vec<Group>,
    pub(super) done: u64,
    pub(super) failed: u64,
    pub(super) unknown: u64,
    /// Leases that were left to end, and the longest time that a key was found after the end of its lease.
    pub(super) leases: u64,
    pub(super) lease_late: Duration,
    /// Revisions that the watch showed, and how often it began anew since its next changes were gone.
    pub(super) changes_watched: u64,
    pub(super) watches_compacted: u64,
    pub(super) violations: Vec<String>,
    /// Faults, with times.
    pub(super) notes: Vec<String>,
}

#[derive(Default)]
pub(super) struct Group {
    pub(super) has_scans: bool,
    pub(super) history: History,
    /// Call and end, in nanoseconds since the phase began.
    times: Vec<(u64, Option<u64>)>,
}

/// An operation, as written to a file.
#[derive(Serialize)]
pub(super) struct Kept<'a> {
    #[serde(flatten)]
    operation: &'a Operation,
    began_ns: u64,
    ended_ns: Option<u64>,
    is_failed: bool,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self { begin: Instant::now(), state: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Records the call of an operation. `draw` chooses the operation from its group and whether the group has scans.
    pub(super) fn begin(
        &self,
        client: u32,
        draw: impl FnOnce(usize, bool) -> Invocation,
    ) -> (usize, usize, Invocation) {
        let mut state = self.lock();
        let group = state.current();
        let invocation = draw(group, state.groups[group].has_scans);
        (group, self.begin_in(&mut state, group, client, &invocation), invocation)
    }

    /// Records the call of a read of a key in any group.
    pub(super) fn begin_read(&self, group: usize, client: u32, key: u8) -> (usize, Invocation) {
        let invocation = Invocation::Get { key };
        (self.begin_in(&mut self.lock(), group, client, &invocation), invocation)
    }

    fn begin_in(
        &self,
        state: &mut State,
        group: usize,
        client: u32,
        invocation: &Invocation,
    ) -> usize {
        let group = &mut state.groups[group];
        group.times.push((self.now_ns(), None));
        group.history.begin(client, invocation.clone())
    }

    /// Records the end of an operation.
    pub(super) fn end(&self, group: usize, id: usize, end: End) {
        let now_ns = self.now_ns();
        let mut state = self.lock();
        state.groups[group].times[id].1 = Some(now_ns);
        match end {
            End::Answered(response) => state.end(group, id, response),
            End::Failed => state.fail(group, id),
            End::Unknown => state.unknown += 1,
        }
    }

    pub(super) fn note(&self, what: &str) {
        let seconds = self.begin.elapsed().as_secs_f64();
        self.lock().notes.push(format!("{seconds:.3} {what}"));
    }
}

impl State {
    /// The group of the next operation.
    fn current(&mut self) -> usize {
        if self.groups.last().is_none_or(Group::is_full) {
            let has_scans = self.groups.len() % GROUPS_PER_SCANS == GROUPS_PER_SCANS - 1;
            self.groups.push(Group { has_scans, ..Group::default() });
        }
        self.groups.len() - 1
    }

    fn end(&mut self, group: usize, id: usize, response: Response) {
        self.done += 1;
        let ended = self.groups[group].history.end(id, response);
        self.note(group, ended);
    }

    fn fail(&mut self, group: usize, id: usize) {
        self.failed += 1;
        let failed = self.groups[group].history.fail(id);
        self.note(group, failed);
    }

    fn note(&mut self, group: usize, rule: Result<(), String>) {
        if let Err(what) = rule {
            self.violations.push(format!("keys {group}: {what}"));
        }
    }
}

impl Group {
    fn is_full(&self) -> bool {
        let most = if self.has_scans { OPERATIONS_WITH_SCANS } else { OPERATIONS };
        self.history.operations.len() >= most
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = Kept<'_>> {
        let all = self.history.operations.iter().zip(&self.times).enumerate();
        all.map(|(id, (operation, times))| Kept {
            operation,
            began_ns: times.0,
            ended_ns: times.1,
            is_failed: self.history.has_failed(id),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(recorder: &Recorder, tag: &str, end: End) {
        let invocation = Invocation::Put { key: 1, tag: tag.to_owned() };
        let (group, id, _) = recorder.begin(1, |_, _| invocation);
        recorder.end(group, id, end);
    }

    #[test]
    fn end__each_kind_is_counted_and_all_are_kept() {
        let recorder = Recorder::new();
        put(&recorder, "a", End::Answered(Response::Changed { index: 5, was_there: false }));
        put(&recorder, "b", End::Failed);
        put(&recorder, "c", End::Unknown);
        let state = recorder.lock();
        assert_eq!((state.done, state.failed, state.unknown), (1, 1, 1));
        let failed: Vec<_> = state.groups[0].kept().map(|one| one.is_failed).collect();
        assert_eq!(failed, [false, true, false]);
        assert!(state.violations.is_empty());
    }

    #[test]
    fn end__an_answer_that_contradicts_another_is_a_violation() {
        let recorder = Recorder::new();
        put(&recorder, "a", End::Answered(Response::Changed { index: 5, was_there: false }));
        put(&recorder, "b", End::Answered(Response::Changed { index: 5, was_there: true }));
        assert_eq!(recorder.lock().violations.len(), 1);
    }

    #[test]
    fn begin__groups_are_full_at_some_time() {
        let recorder = Recorder::new();
        let mut scans = Vec::new();
        for _ in 0..3 * OPERATIONS + OPERATIONS_WITH_SCANS + 1 {
            let (_, id, _) = recorder.begin(1, |group, has_scans| {
                scans.resize(group + 1, has_scans);
                Invocation::Get { key: 0 }
            });
            assert!(id < OPERATIONS);
        }
        assert_eq!(scans, [false, false, false, true, false]);
    }
}
