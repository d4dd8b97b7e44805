//! Execution of operations on the keys.

use super::map::Map;
use crate::api::Outcome;
use crate::command::{Batch, Expected, Op};

/// Executes an operation. Written keys get `index` as their revision.
pub(super) fn execute(map: &mut Map, index: u64, op: &Op<'_>) -> Outcome {
    if let Op::Batch(batch) = op {
        return execute_batch(map, index, batch);
    }
    match mismatch(map, op) {
        Some(revision) => Outcome::Mismatch { position: 0, revision },
        None => change(map, index, op),
    }
}

/// Predicts the outcome of an operation without executing it, if possible.
pub(super) fn precompute(map: &Map, op: &Op<'_>) -> Option<Outcome> {
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
        Op::Batch(_) | Op::Restore(_) => None,
    }
}

/// All expectations concern the state before the batch. Operations may therefore be in any order, and if a key occurs
/// twice, the later operation wins.
fn execute_batch(map: &mut Map, index: u64, batch: &Batch<'_>) -> Outcome {
    for (position, op) in (0..).zip(batch.ops()) {
        if let Some(revision) = mismatch(map, &op) {
            return Outcome::Mismatch { position, revision };
        }
    }
    for op in batch.ops() {
        change(map, index, &op);
    }
    Outcome::Batch
}

/// The present revision of the key if the operation's expectation fails; the inner `None` means that the key does not
/// exist.
fn mismatch(map: &Map, op: &Op<'_>) -> Option<Option<u64>> {
    let (Op::Cas { key, expected, .. } | Op::CasDelete { key, expected }) = op else { return None };
    let found = map.get(key);
    let holds = match expected {
        Expected::Absent => found.is_none(),
        Expected::Revision(expected) => found.is_some_and(|(_, revision)| revision == *expected),
        Expected::Value(expected) => found.is_some_and(|(value, _)| value == *expected),
    };
    if holds { None } else { Some(found.map(|(_, revision)| revision)) }
}

/// Executes an operation whose expectation holds.
fn change(map: &mut Map, index: u64, op: &Op<'_>) -> Outcome {
    match op {
        Op::Put { key, value } | Op::Cas { key, value, .. } => {
            Outcome::Put { replaced: map.put(key, value, index) }
        }
        Op::Delete { key } | Op::CasDelete { key, .. } => {
            Outcome::Deleted { existed: map.remove(key) }
        }
        Op::Batch(_) | Op::Restore(_) => unreachable!("neither stands in a batch"),
    }
}
