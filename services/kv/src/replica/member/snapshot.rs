//! Snapshots of the state, to compact the log, and for replicas too far behind for entries.

use std::collections::BTreeMap;

use raft::eraftpb::{Message, Snapshot};

use super::{Configured, Member};
use crate::persist::Checkpoint;
use crate::replica::ReplicaError;
use crate::replica::config::ReplicaConfig;
use crate::replica::membership::{Members, Membership, put_members, read_members};
use crate::replica::snapshot::{Incoming, Snapshots, Ticket};
use crate::store::Store;
use crate::wire::{DecodeError, Reader};

impl Member {
    /// Has the core offer a snapshot again if no chunk of it was requested for a while. The core offers a snapshot
    /// once, and waits until the replica has it or a failure is reported. Both the offer and the report of a failure
    /// may be lost.
    pub(super) fn retry_snapshot_offers(&mut self, config: &ReplicaConfig) {
        let requested = self.snapshots.requested();
        let mut offers = BTreeMap::new();
        for (peer, progress) in self.raft.raft.prs().iter() {
            if progress.state == raft::ProgressState::Snapshot {
                let before = self.offers.get(peer).filter(|(before, _)| *before == requested);
                offers.insert(*peer, (requested, before.map_or(0, |(_, ticks)| ticks + 1)));
            }
        }
        let is_old = |_: &u64, (_, ticks): &mut (u64, usize)| *ticks > 2 * config.election_ticks();
        for (peer, _) in offers.extract_if(.., is_old) {
            self.raft.report_snapshot(peer, raft::SnapshotStatus::Failure);
        }
        self.offers = offers;
    }

    /// Drops entries that no replica will need, or only few.
    pub(super) fn compact_log(&mut self, config: &ReplicaConfig) {
        // The own log has to reach a snapshot's index before the snapshot: a leader answers writes that only the others
        // have stored.
        if self.applied.0 > self.raft.raft.raft_log.persisted {
            return;
        }
        let (entries, bytes) = self.log.size();
        let is_long = entries > config.log_entries_max || bytes > config.log_bytes_max;
        // The log may be too long even right after a snapshot, because the kept entries may hold the bytes.
        let has_new =
            self.applied.0 > self.snapshots.last_index() + config.log_entries_kept as u64 / 2;
        if is_long && has_new {
            self.make_snapshot();
            let checkpoint = self.checkpoint();
            self.disk.checkpoint(checkpoint);
            let kept =
                if bytes > config.log_bytes_max { 0 } else { config.log_entries_kept as u64 };
            // The core does not know yet that the last entries were applied.
            let index =
                (self.applied.0 - kept.min(self.applied.0)).min(self.raft.raft.raft_log.applied);
            self.log.get_mut().compact_to(index);
        } else if self.log.get_mut().wants_snapshot() {
            self.make_snapshot();
        }
    }

    /// Makes a snapshot of the applied state, for other replicas.
    fn make_snapshot(&mut self) {
        let (index, term) = self.applied;
        self.stats.snapshots_made += 1;
        self.snapshots.add(index, self.store.image());
        let ticket =
            Ticket { from: self.identity.replica, index, membership: self.pack() }.encode();
        let conf = self.log.get_mut().conf_state().clone();
        self.log.get_mut().set_snapshot(index, term, conf, ticket);
    }

    pub(super) fn checkpoint(&self) -> Checkpoint {
        let (index, term) = self.applied;
        let conf_state = self.log.get_mut().conf_state().clone();
        Checkpoint { index, term, conf_state, membership: self.pack(), image: self.store.image() }
    }

    /// Initial members and membership table, in the format of a checkpoint.
    fn pack(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_members(&self.initial_members, &mut out);
        out.extend(self.membership.encode());
        out
    }

    /// Handles a leader's offer of a snapshot. Returns the fetch to start, unless a fetch is already running.
    pub(super) fn begin_fetch(&mut self, message: Message, now_ns: u64) -> Option<Fetch> {
        let ticket = Ticket::decode(&message.get_snapshot().data).ok()?;
        if ticket.index <= self.applied.0 {
            // The core answers with this replica's progress. Without the answer the leader would offer only this
            // snapshot.
            self.step(message, now_ns);
            return None;
        }
        // A snapshot that is being fetched, or waits for the core's ready, is not replaced by another.
        let is_waiting = self.raft.raft.raft_log.unstable.snapshot.is_some();
        if is_waiting || matches!(self.incoming, Some(Incoming::Fetching(_))) {
            return None;
        }
        self.incoming = Some(Incoming::Fetching(ticket.index));
        self.stats.snapshots_fetched += 1;
        Some(Fetch { from: ticket.from, index: ticket.index, message })
    }

    /// Ends a fetch; `store` is none if the fetch failed. Returns true if the core accepts the snapshot.
    pub(crate) fn end_fetch(&mut self, fetch: Fetch, store: Option<Store>) -> bool {
        if self.incoming.as_ref().is_none_or(|incoming| incoming.index() != fetch.index) {
            return false;
        }
        self.incoming = store.map(|store| Incoming::Fetched(fetch.index, Box::new(store)));
        // The core decides whether the snapshot is still wanted; if so, the store waits for the core's ready.
        let is_wanted = self.incoming.is_some()
            && self.raft.step(fetch.message).is_ok()
            && self.raft.snap().is_some_and(|snapshot| !snapshot.is_empty());
        if !is_wanted {
            self.incoming = None;
        }
        is_wanted
    }

    pub(super) fn install(&mut self, snapshot: &Snapshot) -> Result<Checkpoint, ReplicaError> {
        let (index, term) = (snapshot.get_metadata().index, snapshot.get_metadata().term);
        let broken = |what: &str| ReplicaError::Log(format!("a snapshot at {index}: {what}"));
        let Some(Incoming::Fetched(fetched, store)) = self.incoming.take() else {
            return Err(broken("its content was not fetched"));
        };
        let ticket = Ticket::decode(&snapshot.data).map_err(|error| broken(&error.to_string()))?;
        if fetched != index || ticket.index != index {
            return Err(broken("its content is that of another"));
        }
        let (membership, initial_members) =
            unpack(&ticket.membership).map_err(|error| broken(&error.to_string()))?;
        let conf_state = snapshot.get_metadata().get_conf_state().clone();
        let mut store = store;
        store.set_history_bytes_max(self.store.history().bytes_max());
        self.configured = Configured::of(index, &conf_state);
        self.log.get_mut().restart_at(index, term, conf_state);
        (self.store, self.membership, self.initial_members) = (*store, membership, initial_members);
        self.applied = (index, term);
        self.lease_clock.restart();
        self.snapshots = Snapshots::default();
        Ok(self.checkpoint())
    }
}

/// A snapshot to fetch, and the message with the offer.
pub(crate) struct Fetch {
    pub(crate) from: u64,
    pub(crate) index: u64,
    message: Message,
}

pub(super) fn unpack(bytes: &[u8]) -> Result<(Membership, Members), DecodeError> {
    let mut input = Reader::new(bytes);
    let initial_members = read_members(&mut input)?;
    Ok((Membership::decode(input.rest())?, initial_members))
}
