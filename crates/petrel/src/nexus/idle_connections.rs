//! Idle accepted connections, in the order of yielding to new ones (see `admit` and `listener`).
//!
//! A full server looks for an idle connection at every new one. The search visits every source with idle connections,
//! and within a source the connections that ask for counters. Frequent connections from one address therefore cost
//! little more than the connections themselves. Visiting all 4 096 connections each time took 480 000 instructions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::ids::ConnectionId;
use super::usage::SourceNetwork;

/// Why an accepted connection is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Idle {
    /// The peer has not said HELLO.
    AwaitingHello,
    /// The peer said HELLO and has no link.
    Linkless,
    /// Its links have neither a session nor a proposal.
    Sessionless,
}

/// The connections of a source with the same reason to be idle, the longest idle first.
type IdleSet = BTreeSet<(Instant, ConnectionId)>;

/// All idle connections.
#[derive(Debug, Default)]
pub(super) struct IdleConnections {
    sets: BTreeMap<(Idle, SourceNetwork), IdleSet>,
}

impl IdleConnections {
    /// Returns the number of idle connections.
    pub(super) fn len(&self) -> usize {
        self.sets.values().map(BTreeSet::len).sum()
    }

    pub(super) fn insert(
        &mut self,
        source: SourceNetwork,
        (idle, since): (Idle, Instant),
        id: ConnectionId,
    ) {
        let is_new = self.sets.entry((idle, source)).or_default().insert((since, id));
        assert!(is_new, "an idle connection is listed once: {id:?}");
    }

    pub(super) fn remove(
        &mut self,
        source: SourceNetwork,
        (idle, since): (Idle, Instant),
        id: ConnectionId,
    ) {
        let set = self.sets.get_mut(&(idle, source));
        let (was_listed, is_empty) = set.map_or((false, false), |set| {
            let was_listed = set.remove(&(since, id));
            (was_listed, set.is_empty())
        });
        assert!(was_listed, "a connection leaves a list that has it: {id:?}");
        if is_empty {
            self.sets.remove(&(idle, source));
        }
    }

    /// Returns the idle connections of `source`, or of the source with most of them, the longest idle first.
    pub(super) fn of(
        &self,
        idle: Idle,
        source: Option<SourceNetwork>,
    ) -> impl Iterator<Item = ConnectionId> + '_ {
        let set = match source {
            Some(source) => self.sets.get(&(idle, source)),
            None => {
                let sets = self.sets.iter().filter(|((kind, _), _)| *kind == idle);
                sets.map(|(_, set)| set).max_by_key(|set| set.len())
            }
        };
        set.into_iter().flatten().map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "leaves a list that has it")]
    fn remove__of_a_connection_that_is_not_listed() {
        let source = SourceNetwork::of(([10, 0, 0, 1], 1).into());
        let (mut idle, since) = (IdleConnections::default(), Instant::now());
        idle.insert(source, (Idle::Linkless, since), ConnectionId(1));
        idle.remove(source, (Idle::Sessionless, since), ConnectionId(1));
    }
}
