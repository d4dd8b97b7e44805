//! The lease clock: the leader measures time, and the log has the measurements.
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

#[cfg(test)]
mod tests {
    use super::super::{test_endpoint, test_leader};
    use super::*;
    use crate::command::{LeaseOp, Op};

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn read__counts_on_from_the_last_value_of_another_leader_even_a_lower_one() {
        let mut clock = LeaseClock::default();
        assert_eq!(clock.read(300, 7 * SECOND_NS), 300);
        assert_eq!(clock.read(300, 8 * SECOND_NS - 1), 1_299, "never ahead");
        clock.adopt(500, 8 * SECOND_NS);
        assert_eq!(clock.read(500, 9 * SECOND_NS), 1_500);
        // The other leader has lost a second, and has put a lease's begin on its own scale.
        clock.adopt(600, 9 * SECOND_NS);
        assert_eq!(clock.read(600, 10 * SECOND_NS), 1_600);
        clock.restart();
        assert_eq!(clock.read(600, 20 * SECOND_NS), 600);
    }

    /// The log may have a lower number of a former leader that this leader has not applied.
    #[test]
    fn advance_leases__only_after_all_entries_of_former_terms_and_one_at_a_time() {
        let (_, mut member) = test_leader(3);
        let mut endpoint = test_endpoint();
        let cx = &endpoint.context();
        let op = Op::Lease(LeaseOp::Grant { ttl_ms: 1_000 });
        let grant = Command::Write { session: 1, sequence: 0, first_pending: 0, op };
        for (index, command) in [(1, Command::OpenSession), (2, grant)] {
            member.store.apply(index, &command.to_vec(), &mut Vec::new());
        }
        let last = |member: &Member| member.raft.raft.raft_log.last_index();
        let before = last(&member);
        let advances = |member: &mut Member| {
            member.lease_clock.note_tick();
            member.advance_leases(cx);
            last(member) - before
        };
        assert_eq!(advances(&mut member), 0, "an entry of the former leader may follow");
        member.applied = (before, member.raft.raft.term);
        assert_eq!(advances(&mut member), 1);
        assert_eq!(advances(&mut member), 1, "one is on its way");
        member.applied.0 += 1;
        assert_eq!(advances(&mut member), 2);
        member.raft.raft.become_follower(member.raft.raft.term, raft::INVALID_ID);
        member.applied.0 += 1;
        assert_eq!(advances(&mut member), 2);
    }
}
