//! Who leads: for how long others have promised to elect nobody, and what becomes of whoever waits when it ends.

use petrel::Context;
use raft::StateRole;

use super::Member;
use crate::api::{Certainty, Leader, Refusal};
use crate::replica::config::{ReadMode, ReplicaConfig};
use crate::replica::links::Links;

impl Member {
    /// Whether this replica leads, and nobody else can as far as it knows.
    pub(in crate::replica) fn leads(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    /// Who leads, for clients.
    pub(in crate::replica) fn leader(&self) -> Option<Leader<'_>> {
        let replica = self.raft.raft.leader_id;
        let address = self.book.members.get(&replica)?;
        Some(Leader { node: crate::replica::book::node_of(replica), address })
    }

    /// Whether reads that have to see every write may be answered now, without asking anybody.
    pub(in crate::replica) fn may_read_now(
        &self,
        links: &Links,
        now_ns: u64,
        config: &ReplicaConfig,
    ) -> bool {
        config.reads == ReadMode::Lease && self.has_lease(links, now_ns, config)
    }

    /// Whether followers have promised not to elect another leader yet.
    fn has_lease(&self, links: &Links, now_ns: u64, config: &ReplicaConfig) -> bool {
        let raft = &self.raft.raft;
        let is_settled = self.leads()
            && raft.commit_to_current_term()
            && raft.lead_transferee.is_none()
            && self.no_lease_in != raft.term
            && self.applied.0 >= raft.raft_log.committed;
        let lease_ns = config.lease_ns();
        #[cfg(petrel_break = "kv_lease_without_quorum")]
        let lease_ns = u64::MAX / 2;
        is_settled
            && raft.prs().has_quorum(
                &std::iter::once(self.identity.replica)
                    .chain(self.book.members.keys().copied().filter(|peer| {
                        links
                            .heard_ns(*peer, raft.term)
                            .is_some_and(|heard_ns| now_ns < heard_ns + lease_ns)
                    }))
                    .collect(),
            )
    }

    /// Looks whether this replica has begun or ceased to lead.
    pub(super) fn note_role(&mut self, cx: &mut Context<'_>, config: &ReplicaConfig) {
        let role = (self.raft.raft.term, self.raft.raft.state);
        let before = std::mem::replace(&mut self.role, role);
        if before == role {
            return;
        }
        self.draw_election_timeout(config);
        if role.1 == StateRole::Leader {
            self.stats.elections_won += 1;
        }
        if before.1 == StateRole::Leader {
            self.joining.clear();
            // What became of it the next leader knows.
            self.book_changes = 0;
            let not_leader = encoded(Refusal::NotLeader { leader: self.leader() });
            let reason = "this replica does not lead any more";
            let unknown = encoded(Refusal::Unavailable { certainty: Certainty::Unknown, reason });
            self.writes.give_up(cx, &not_leader, &unknown);
            self.reads.give_up(cx, &not_leader);
            for (_, responder) in self.changes.drain(..) {
                responder.reply(cx, &unknown);
            }
        } else if role.1 != StateRole::Leader && self.reads.len() > 0 {
            self.reads.give_up(cx, &encoded(Refusal::NotLeader { leader: None }));
        }
    }

    /// The core draws from the thread's random numbers; a run that is to be repeatable draws its own.
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
    let mut reply = Vec::new();
    refusal.encode(&mut reply);
    reply
}
