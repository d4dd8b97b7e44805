//! Leadership: the lease that followers' promises grant, and the answers to waiting clients when leadership ends.

use petrel::Context;
use petrel_planted::planted;
use raft::StateRole;

use super::Member;
use crate::api::{AdminReply, Certainty, Leader, Refusal};
use crate::replica::config::{ReadMode, ReplicaConfig};
use crate::replica::links::Links;

impl Member {
    /// Returns true if the replica leads according to the Raft core.
    pub(crate) fn leads(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    pub(crate) fn leader(&self) -> Option<Leader<'_>> {
        let replica = self.raft.raft.leader_id;
        let address = self.membership.members.get(&replica)?;
        Some(Leader { node: crate::replica::membership::node_of(replica), address })
    }

    /// Returns true if linearizable reads may be answered now, without asking a majority.
    pub(crate) fn may_read_now(
        &mut self,
        links: &Links,
        cx: &Context<'_>,
        config: &ReplicaConfig,
    ) -> bool {
        config.reads == ReadMode::Lease && self.has_lease(links, cx, config)
    }

    /// Returns true while the followers' promises not to elect another leader hold.
    ///
    /// The clock is read here, after the read arrived; the time of the turn is older. If the thread was paused in
    /// between, the lease may have ended. A new leader may then have answered writes that the read has to see.
    fn has_lease(&mut self, links: &Links, cx: &Context<'_>, config: &ReplicaConfig) -> bool {
        let raft = &self.raft.raft;
        let is_settled = self.leads()
            && raft.commit_to_current_term()
            && raft.lead_transferee.is_none()
            && self.no_lease_in != raft.term
            && self.applied.0 >= raft.raft_log.committed;
        if !is_settled {
            return false;
        }
        let now_ns = if planted("kv_lease_by_cached_clock") {
            cx.now().as_ns()
        } else {
            cx.clock_now().as_ns()
        };
        let term = raft.term;
        if self.lease.is_none_or(|(leased_in, until_ns)| leased_in != term || now_ns >= until_ns) {
            self.lease = self.lease_until(links, config).map(|until_ns| (term, until_ns));
        }
        self.lease.is_some_and(|(_, until_ns)| now_ns < until_ns)
    }

    /// Until when a majority, with this replica, has promised not to elect another leader. The majority consists of the
    /// followers with the latest acknowledgements.
    fn lease_until(&self, links: &Links, config: &ReplicaConfig) -> Option<u64> {
        let (raft, own) = (&self.raft.raft, self.identity.replica);
        let is_for_ever = planted("kv_lease_without_quorum");
        let lease_ns = if is_for_ever { u64::MAX / 2 } else { config.lease_ns() };
        let peers = self.membership.members.keys().copied().filter(|peer| *peer != own);
        let mut acknowledged: Vec<(u64, u64)> = peers
            .filter_map(|peer| Some((links.acknowledged_ns(peer, raft.term)?, peer)))
            .collect();
        acknowledged.sort_unstable_by(|one, other| other.cmp(one));
        (0..=acknowledged.len()).find_map(|count| {
            let counted = &acknowledged[..count];
            let names = std::iter::once(own).chain(counted.iter().map(|(_, peer)| *peer));
            let until_ns =
                counted.last().map_or(u64::MAX, |(acknowledged_ns, _)| acknowledged_ns + lease_ns);
            raft.prs().has_quorum(&names.collect()).then_some(until_ns)
        })
    }

    /// Notes a change of role or term. Answers the waiting clients when leadership ends.
    pub(super) fn note_role(&mut self, cx: &mut Context<'_>, config: &ReplicaConfig) {
        let role = (self.raft.raft.term, self.raft.raft.state);
        let before = std::mem::replace(&mut self.role, role);
        if before == role {
            return;
        }
        self.draw_election_timeout(config);
        if role.1 == StateRole::Leader {
            self.stats.elections_won += 1;
            self.slowness.restart(cx.now().as_ns());
        }
        if before.1 == StateRole::Leader {
            self.joining.clear();
            self.learner_goals.clear();
            // The outcome of the change is known to the next leader.
            self.last_membership_change = 0;
            let not_leader = encoded(Refusal::NotLeader { leader: self.leader() });
            let reason = "this replica does not lead any more";
            let unknown = encoded(Refusal::Unavailable { certainty: Certainty::Unknown, reason });
            self.writes.fail_all(cx, &not_leader, &unknown);
            self.reads.fail_all(cx, &not_leader);
            for (_, responder) in self.changes.drain(..) {
                responder.reply(cx, &unknown);
            }
            // The next leader compares itself with the wanted leader.
            for responder in self.handovers.drain(..) {
                responder.reply(cx, &not_leader);
            }
        } else if role.1 != StateRole::Leader && self.reads.len() > 0 {
            self.reads.fail_all(cx, &encoded(Refusal::NotLeader { leader: None }));
        }
    }

    /// Answers the operators whose successor has not taken over. The core gives a handover up after an election timeout.
    pub(super) fn note_failed_handover(&mut self, cx: &mut Context<'_>) {
        if self.handovers.is_empty() || !self.leads() || self.raft.raft.lead_transferee.is_some() {
            return;
        }
        let (certainty, reason) = (Certainty::Unknown, "that node has not taken over in time");
        let unknown = encoded(Refusal::Unavailable { certainty, reason });
        for responder in self.handovers.drain(..) {
            responder.reply(cx, &unknown);
        }
    }

    /// Draws the election timeout from the replica's own random numbers, to make runs repeatable. The core would draw
    /// from the thread's.
    pub(super) fn draw_election_timeout(&mut self, config: &ReplicaConfig) {
        let ticks = config.election_ticks();
        let drawn = ticks + self.rng.below(ticks as u64) as usize;
        self.raft.raft.set_randomized_election_timeout(drawn);
    }

    pub(super) fn renew_election_timeout(&mut self, config: &ReplicaConfig) {
        if (self.raft.raft.term, self.raft.raft.state) != self.role {
            self.draw_election_timeout(config);
        }
    }
}

/// A refusal as the answer to a call of any method.
pub(super) fn encoded(refusal: Refusal<'_>) -> Vec<u8> {
    AdminReply::Refused(refusal).to_vec()
}

#[cfg(test)]
mod tests {
    use super::super::{test_endpoint, test_leader};
    use super::*;

    /// A leader of three replicas with leases, without an acknowledgement from the others.
    fn leader() -> (ReplicaConfig, Member) {
        let (mut config, mut member) = test_leader(3);
        config.reads = ReadMode::Lease;
        // As if a majority had the first entry of its term, and the entry had been applied.
        let (term, last) = (member.raft.raft.term, member.raft.raft.raft_log.last_index());
        member.raft.raft.raft_log.committed = last;
        member.applied = (last, term);
        (config, member)
    }

    #[test]
    fn may_read_now__compares_the_lease_with_the_clock_and_not_with_the_turn() {
        let ((config, mut member), links) = (leader(), Links::default());
        let mut endpoint = test_endpoint();
        let cx = &mut endpoint.context();
        let (term, turn_ns) = (member.raft.raft.term, cx.now().as_ns());
        let promised_until = |member: &mut Member, until_ns| member.lease = Some((term, until_ns));

        promised_until(&mut member, u64::MAX);
        assert!(member.may_read_now(&links, cx, &config));
        // The thread is paused between the reading of the clock and the read.
        promised_until(&mut member, turn_ns + 1);
        while cx.clock_now().as_ns() <= turn_ns + 1 {
            std::hint::spin_loop();
        }
        assert!(!member.may_read_now(&links, cx, &config), "the promise is over");
        promised_until(&mut member, u64::MAX);
        member.applied.0 -= 1;
        assert!(!member.may_read_now(&links, cx, &config), "it does not show what is committed");

        let changes: [fn(&mut Member); 4] = [
            // The last entry of another term may be followed by more.
            |member| member.raft.raft.raft_log.committed -= 1,
            |member| member.raft.raft.lead_transferee = Some(2),
            |member| member.no_lease_in = member.raft.raft.term,
            |member| member.raft.raft.state = StateRole::Follower,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (_, mut member) = leader();
            promised_until(&mut member, u64::MAX);
            assert!(member.may_read_now(&links, cx, &config));
            change(&mut member);
            assert!(!member.may_read_now(&links, cx, &config), "change {number}");
        }
    }
}
