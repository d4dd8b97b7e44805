//! Operations on regions, with the client API, and a model of each region's memory.
//!
//! The first endpoint of one or two hosts serves regions. The regions belong to the process: a crash revokes all keys,
//! and a replaced endpoint serves the same regions again. The host revokes keys while operations arrive, and registers
//! new memory under new keys. Callers on all other hosts use current keys, revoked keys, keys with fewer rights, guessed
//! keys and ranges beyond the end. [`model`] states the rules.

mod caller;
mod model;

use petrel::{Execution, Status};

use super::ledger::Ledger;
use super::pattern;
use crate::fabric::SimAddr;
pub(super) use caller::RegionCaller;
use model::Outcome;
pub(super) use model::{Model, Operation};

/// The first and the last method of operations, as in §15.1 of the specification.
const METHODS: std::ops::RangeInclusive<u16> = 65_520..=65_527;

/// A server copies a large versioned value over several turns, and answers with ABORTED when writers have changed it during this number of
/// copies.
const COPIES_MAX: u64 = 8;

pub(super) fn is_method(number: u16) -> bool {
    METHODS.contains(&number)
}

counts! {
    /// Counters of operations and keys.
    struct Counts {
        operations: "region_operations",
        succeeded: "region_operations_succeeded",
        /// The server answered with PERMISSION_DENIED or OUT_OF_RANGE.
        denied: "region_operations_denied",
        not_executed: "region_operations_not_executed",
        unknown: "region_operations_unknown",
        /// Unknown outcomes on a memory with an earlier unknown outcome.
        unknown_again: "region_operations_unknown_again",
        dropped: "region_operations_dropped_by_caller",
        words_compared: "region_words_compared",
        registered: "region_keys_registered",
        revoked: "region_keys_revoked",
        /// Revocations in a process with an earlier revocation.
        revoked_again: "region_keys_revoked_again",
    }
}

impl Ledger {
    fn begin_operation(&mut self, id: u32, timeout_ns: u64, from_ns: u64) {
        self.regions.begin(id, self.now_ns, from_ns + timeout_ns);
        self.note_operation(id, 1);
    }

    /// Records the outcome of an operation, and checks all rules about it.
    fn end_operation(&mut self, id: u32, reply: &Result<Vec<u64>, petrel::Error>) {
        let checked = self.regions.end(id, reply);
        let operation = self.regions.operation(id).clone();
        let deadline_ns = operation.deadline_ns.max(operation.issued_ns);
        let checked = checked.and_then(|()| {
            let may_fail = reply.as_ref().err().is_none_or(|why| self.may_fail(&operation, why));
            let is_late = self.is_late(operation.client_at.host, deadline_ns);
            match (may_fail, is_late) {
                (false, _) => Err("failed without a reason"),
                (_, true) => Err("ended long after its deadline"),
                _ => Ok(()),
            }
            .map_err(str::to_owned)
        });
        if let Err(wrong) = checked {
            let reply = reply.as_ref().err();
            self.violate(format!("operation {id} {wrong}; {reply:?}; {operation:?}"));
        }
        self.note_operation(id, 2);
    }

    /// Records that the caller drops an operation. Returns true if the operation was outstanding.
    fn drop_operation(&mut self, id: u32) -> bool {
        let is_outstanding = self.regions.give_up(id);
        self.regions.counts.dropped += u64::from(is_outstanding);
        is_outstanding
    }

    /// Checks memories and counters at the end of the run.
    pub(super) fn close_regions(&mut self) {
        if let Err(wrong) = self.regions.close() {
            self.violate(wrong);
        }
    }

    /// Returns true if a failure has a reason; a denied operation was checked before.
    fn may_fail(&self, operation: &Operation, failure: &petrel::Error) -> bool {
        let hosts = [operation.client_at.host, operation.server.host];
        let (issued_ns, now_ns) = (operation.issued_ns, self.now_ns);
        // A client may still pause after a failed connect.
        let from_ns = issued_ns.saturating_sub(self.fault_windows.aftermath_ns);
        let is_justified = self.fault_windows.justify(hosts, from_ns, now_ns);
        let is_hard = self.has_few_sessions || self.has_little_memory || self.has_short_timeouts;
        if operation.must_succeed && !is_justified && !is_hard {
            return false;
        }
        let execution = failure.execution;
        let did_not = matches!(execution, Execution::NotSent | Execution::Refused);
        match failure.status {
            Status::PermissionDenied | Status::OutOfRange => execution == Execution::Answered,
            Status::Unavailable => {
                let drains = self.fault_windows.drains(operation.server.host, from_ns, now_ns);
                self.has_short_timeouts
                    || self.has_few_sessions
                    || is_justified
                    || drains && did_not
            }
            Status::DeadlineExceeded => {
                // A WRITE that the server gives up early is not called refused if bytes were written (§15.2).
                let may_be_early = match execution {
                    Execution::Refused => true,
                    Execution::Answered if operation.kind.may_be_partial() => true,
                    _ => operation.attempts_max > 1,
                };
                let early_ns = self.early_ns_max(operation.server.host, issued_ns);
                now_ns + if may_be_early { early_ns } else { 0 } >= operation.deadline_ns
            }
            Status::Aborted => {
                let changes = self.regions.changes_during(operation);
                execution == Execution::Answered && changes >= COPIES_MAX
            }
            Status::ResourceExhausted => self.has_little_memory || self.has_few_sessions,
            Status::DataLoss => execution == Execution::Answered && self.has_little_memory,
            _ => false,
        }
    }

    /// Returns the operation whose request a first packet begins.
    pub(super) fn find_operation(
        &self,
        ends: (SimAddr, SimAddr),
        method: u16,
        payload: &[u8],
    ) -> Option<u32> {
        self.regions.find(ends, method, payload)
    }

    fn note_operation(&mut self, id: u32, what: u64) {
        let outcome = self.regions.operation(id).outcome;
        let word = u64::from(id) << 8 | what << 4 | matches!(outcome, Outcome::Done) as u64;
        self.digest = pattern::mix(self.digest, word ^ self.now_ns << 20);
    }
}
