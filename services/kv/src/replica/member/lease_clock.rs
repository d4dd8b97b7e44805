//! The lease clock: the leader measures time, and the log has what the leader has measured.
//!
//! The store ends leases by the numbers in the leader's commands ([`Command::Advance`]). A number may never be ahead:
//! between two commands of the log the clock advances at most by the time that passed between their proposals. A leader
//! adds the time on its own clock to a number that it has applied. After each number of another leader a replica begins
//! anew, even if the number is lower than the replica's own: the other leader may have lost time, and leases that began
//! by its numbers end by them. A new leader therefore proposes no number before it has applied all earlier ones.
//!
//! A replica counts on while it follows, so a change of leader loses only the time from a proposal until the next
//! leader applied it. A replica that starts, or installs a snapshot, counts from that moment. The leader puts its clock
//! into the log once in [`CHECKPOINT_MS`], which bounds this loss.
//!
//! The clock is read when a command is proposed or applied, never the turn's time: the thread may have stood still since
//! the turn began, and messages that were sent meanwhile may be handled in the same turn.

use bytes::Bytes;
use petrel::Context;
use petrel_planted::planted;
use raft::eraftpb::Entry;

use super::Member;
use crate::command::Command;

/// Longest time without an advance of the clock while there are leases, in milliseconds: at most this time of a lease is
/// counted twice when a replica leads that has started since. One small entry of the log a second costs little.
const CHECKPOINT_MS: u64 = 1_000;

/// A replica's measure of the lease clock.
#[derive(Debug, Default)]
pub(super) struct LeaseClock {
    /// A value of the lease clock, in milliseconds, and the time at this replica when it was applied.
    base: Option<(u64, u64)>,
    /// The index of the last own proposal.
    proposed: u64,
    /// Whether a tick of the Raft core has passed since the last look.
    is_due: bool,
}

impl LeaseClock {
    /// Begins anew with the clock of a store.
    pub(super) fn restart(&mut self) {
        self.base = None;
    }

    /// Begins anew with an applied value.
    pub(super) fn adopt(&mut self, clock_ms: u64, now_ns: u64) {
        if planted("kv_lease_clock_runs_on") && clock_ms <= self.read(clock_ms, now_ns) {
            return;
        }
        self.base = Some((clock_ms, now_ns));
    }

    /// The value at a time of this replica, in milliseconds; `applied_ms` is the clock of the store.
    fn read(&mut self, applied_ms: u64, now_ns: u64) -> u64 {
        let (base_ms, base_ns) = *self.base.get_or_insert((applied_ms, now_ns));
        base_ms + now_ns.saturating_sub(base_ns) / 1_000_000
    }

    pub(super) fn note_tick(&mut self) {
        self.is_due = true;
    }
}

impl Member {
    /// The value of the lease clock now, as this replica measures it.
    pub(super) fn lease_clock_ms(&mut self, now_ns: u64) -> u64 {
        self.lease_clock.read(self.store.lease_clock_ms(), now_ns)
    }

    /// Proposes to advance the lease clock, if leases wait for it. At most one proposal is on its way.
    pub(super) fn advance_leases(&mut self, cx: &Context<'_>) {
        let applied_ms = self.store.lease_clock_ms();
        let is_due = std::mem::take(&mut self.lease_clock.is_due);
        if self.store.leases() == 0 || !(is_due || self.store.has_ended_leases(applied_ms)) {
            return;
        }
        let has_applied_all = self.leads() && self.applied.1 == self.raft.raft.term;
        if !has_applied_all || self.lease_clock.proposed > self.applied.0 {
            return;
        }
        let clock_ms = self.lease_clock_ms(cx.clock_now().as_ns());
        let is_wanted = self.store.has_fresh_leases()
            || self.store.has_ended_leases(clock_ms)
            || clock_ms >= applied_ms + CHECKPOINT_MS;
        if is_wanted {
            let index = self.raft.raft.raft_log.last_index() + 1;
            let data = Bytes::from(Command::Advance { clock_ms }.to_vec());
            if self.propose_entries(vec![Entry { data, ..Entry::default() }]) {
                self.lease_clock.proposed = index;
            }
        }
    }
}
