//! Observes all replicas from outside, after each of their turns.

use std::collections::BTreeMap;

use petrel_kv::Replica;
use petrel_kv::api::{Role, Status};

/// The observations of all replicas so far.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    /// The leader of each term, by name.
    leaders: BTreeMap<u64, u64>,
    /// The state after an entry: the digest, and the first replica with this state.
    digests: BTreeMap<u64, (u64, u64)>,
}

/// The last observation of a life of a replica.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    raft_id: u64,
    term: u64,
    commit: u64,
    pub(crate) applied: u64,
}

impl Observer {
    /// Observes a replica.
    ///
    /// # Errors
    /// The broken rule.
    pub(crate) fn observe(
        &mut self,
        seen: &mut Seen,
        status: &Status,
        replica: &Replica,
    ) -> Result<(), String> {
        let name = status.raft_id;
        let before = std::mem::replace(
            seen,
            Seen {
                raft_id: name,
                term: status.term,
                commit: status.commit,
                applied: status.applied,
            },
        );
        if before.raft_id == name {
            check_forward(&before, seen)?;
        }
        if seen.applied > seen.commit {
            return Err(format!("{name:x} has applied {} of {}", seen.applied, seen.commit));
        }
        if status.role == Role::Leader {
            self.note_leader(status.term, name)?;
        }
        if before.applied != seen.applied { self.compare(replica, name) } else { Ok(()) }
    }

    fn note_leader(&mut self, term: u64, name: u64) -> Result<(), String> {
        let leader = *self.leaders.entry(term).or_insert(name);
        if leader == name {
            return Ok(());
        }
        Err(format!("{leader:x} and {name:x} both lead in term {term}"))
    }

    fn compare(&mut self, replica: &Replica, name: u64) -> Result<(), String> {
        let Some((applied, digest)) = replica.digest() else { return Ok(()) };
        let (first, other) = *self.digests.entry(applied).or_insert((digest, name));
        if first == digest {
            return Ok(());
        }
        Err(format!("{other:x} and {name:x} have applied {applied}, and have different states"))
    }

    /// The number of terms with an observed leader.
    pub(crate) fn terms(&self) -> u64 {
        self.leaders.len() as u64
    }
}

fn check_forward(before: &Seen, now: &Seen) -> Result<(), String> {
    let numbers = [
        ("term", before.term, now.term),
        ("commit index", before.commit, now.commit),
        ("applied index", before.applied, now.applied),
    ];
    match numbers.into_iter().find(|(_, before, now)| now < before) {
        Some((what, from, to)) => {
            Err(format!("the {what} of {:x} went back from {from} to {to}", now.raft_id))
        }
        None => Ok(()),
    }
}
