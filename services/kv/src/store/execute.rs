//! Execution of operations on the keys.

use super::history::Keys;
use super::leases::Leases;
use crate::api::Outcome;
use crate::command::{Batch, Expected, Op};

/// Executes an operation. Written keys get `index` as their revision.
pub(super) fn execute(map: &mut Keys, leases: &mut Leases, index: u64, op: &Op<'_>) -> Outcome {
    if let Op::Batch(batch) = op {
        return execute_batch(map, leases, index, batch);
    }
    if let Some(revision) = mismatch(map, op) {
        return Outcome::Mismatch { position: 0, revision };
    }
    if let Op::LeasedPut { key, lease, .. } = op
        && let Some(refusal) = leases.refusal(key, *lease, 0)
    {
        return Outcome::Lease(refusal);
    }
    change(map, leases, index, op)
}

/// Predicts the outcome of an operation without executing it, if possible.
pub(super) fn precompute(map: &Keys, op: &Op<'_>) -> Option<Outcome> {
    if let Some(revision) = mismatch(map, op) {
        return Some(Outcome::Mismatch { position: 0, revision });
    }
    match op {
        Op::Put { key, .. } | Op::Cas { key, .. } => {
            Some(Outcome::Put { replaced: map.get(key).is_some() })
        }
        Op::Delete { key } | Op::CasDelete { key, .. } => {
            Some(Outcome::Deleted { existed: map.get(key).is_some() })
        }
        Op::LeasedPut { .. } | Op::Batch(_) | Op::Restore(_) | Op::Lease(_) => None,
    }
}

/// All expectations concern the state before the batch. Operations may therefore be in any order, and if a key occurs
/// twice, the later operation wins.
fn execute_batch(map: &mut Keys, leases: &mut Leases, index: u64, batch: &Batch<'_>) -> Outcome {
    let mut leased = 0;
    for (position, op) in (0..).zip(batch.ops()) {
        if let Some(revision) = mismatch(map, &op) {
            return Outcome::Mismatch { position, revision };
        }
        if let Op::LeasedPut { key, lease, .. } = op {
            // All keys before might be new to this lease.
            if let Some(refusal) = leases.refusal(key, lease, leased) {
                return Outcome::Lease(refusal);
            }
            leased += 1;
        }
    }
    for op in batch.ops() {
        change(map, leases, index, &op);
    }
    Outcome::Batch
}

/// The present revision of the key if the operation's expectation fails; the inner `None` means that the key does not
/// exist.
fn mismatch(map: &Keys, op: &Op<'_>) -> Option<Option<u64>> {
    let (Op::Cas { key, expected, .. }
    | Op::CasDelete { key, expected }
    | Op::LeasedPut { key, expected: Some(expected), .. }) = op
    else {
        return None;
    };
    let found = map.get(key);
    let holds = match expected {
        Expected::Absent => found.is_none(),
        Expected::Revision(expected) => found.is_some_and(|(_, revision)| revision == *expected),
        Expected::Value(expected) => found.is_some_and(|(value, _)| value == *expected),
    };
    if holds { None } else { Some(found.map(|(_, revision)| revision)) }
}

/// Executes an operation whose expectation holds.
fn change(map: &mut Keys, leases: &mut Leases, index: u64, op: &Op<'_>) -> Outcome {
    match op {
        Op::Put { key, value } | Op::Cas { key, value, .. } => {
            leases.detach(key);
            Outcome::Put { replaced: map.put(key, value, index) }
        }
        Op::LeasedPut { key, lease, value, .. } => {
            leases.attach(key, *lease);
            Outcome::Put { replaced: map.put(key, value, index) }
        }
        Op::Delete { key } | Op::CasDelete { key, .. } => {
            leases.detach(key);
            Outcome::Deleted { existed: map.remove(key) }
        }
        Op::Lease(op) => Outcome::Lease(leases.execute(map, index, op)),
        Op::Batch(_) | Op::Restore(_) => unreachable!("neither stands in a batch"),
    }
}
