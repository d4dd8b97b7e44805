//! Membership changes: by operators, and for replicas that return without their log.

use petrel::endpoint::Handled;
use petrel::{Context, Request};
use raft::StateRole;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState};

use super::hello::Join;
use super::member::Member;
use super::membership::{Members, MembershipChange, node_of, put_members};
use crate::api::{AdminReply, Certainty, MemberChange, MemberRequest, Refusal, TransferRequest};

/// Most entries by which a learner may lag and still become a voter.
const BEHIND_MAX: u64 = 1_000;

/// The outcome of an operator's request.
#[derive(Debug, PartialEq, Eq)]
enum ChangeOutcome {
    /// The change has already been made.
    AlreadyDone,
    /// The node to remove is not a member.
    NoMember,
    /// The change is made when this index is applied and the configuration is complete.
    At(u64),
    Refused(&'static str),
}

impl Member {
    /// Handles an operator's request to add, promote or remove a node.
    pub(super) fn handle_member(&mut self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let outcome = match MemberRequest::decode(request.data()) {
            Err(error) => return refuse(cx, request, Refusal::Malformed(&error.to_string())),
            Ok(_) if !self.leads() => {
                let refusal = Refusal::NotLeader { leader: self.leader() };
                return refuse(cx, request, refusal);
            }
            Ok(wanted) => self.change(&wanted),
        };
        match outcome {
            ChangeOutcome::AlreadyDone => reply(cx, request, AdminReply::Done),
            ChangeOutcome::NoMember => reply(cx, request, AdminReply::NoMember),
            ChangeOutcome::Refused(reason) => refuse(
                cx,
                request,
                Refusal::Unavailable { certainty: Certainty::NotApplied, reason },
            ),
            ChangeOutcome::At(index) => {
                let (responder, handled) = request.defer(cx);
                self.changes.push((index, responder));
                handled
            }
        }
    }

    fn change(&mut self, wanted: &MemberRequest<'_>) -> ChangeOutcome {
        let node = wanted.node;
        if wanted.change == MemberChange::Add && self.membership.has_elsewhere(node, wanted.address)
        {
            return ChangeOutcome::Refused(
                "another node has that address: remove it first, or give this one its own",
            );
        }
        match wanted.change {
            MemberChange::Add if !self.membership.may_join(node) => {
                at(self
                    .propose_membership(&MembershipChange::Admit(node, wanted.address.to_owned())))
            }
            // A change in progress outdates the membership table.
            _ if !self.is_settled() => at(None),
            MemberChange::Add => ChangeOutcome::AlreadyDone,
            MemberChange::Promote if self.membership.replicas_of(node).next().is_some() => {
                ChangeOutcome::AlreadyDone
            }
            MemberChange::Promote => ChangeOutcome::Refused("that node has not joined yet"),
            MemberChange::Remove => self.remove(node),
        }
    }

    fn remove(&mut self, node: u16) -> ChangeOutcome {
        if self.membership.admitted.contains_key(&node) {
            return at(self.propose_membership(&MembershipChange::Revoke(node)));
        }
        let replicas: Vec<u64> = self.membership.replicas_of(node).collect();
        if replicas.is_empty() {
            return ChangeOutcome::NoMember;
        }
        if node == node_of(self.identity.replica) {
            return ChangeOutcome::Refused("that node leads: hand leadership over first");
        }
        self.joining.retain(|replica, _| node_of(*replica) != node);
        let gone = replicas.into_iter().map(|replica| single(ConfChangeType::RemoveNode, replica));
        at(self.propose_configuration(changes(gone.collect(), &Members::new())))
    }

    /// Handles an operator's request to hand leadership to another node. The answer follows when another replica leads,
    /// or when the handover has failed.
    pub(super) fn handle_transfer(
        &mut self,
        cx: &mut Context<'_>,
        request: Request<'_>,
    ) -> Handled {
        let wanted = match TransferRequest::decode(request.data()) {
            Err(error) => return refuse(cx, request, Refusal::Malformed(&error.to_string())),
            Ok(_) if !self.leads() => {
                let refusal = Refusal::NotLeader { leader: self.leader() };
                return refuse(cx, request, refusal);
            }
            Ok(wanted) => wanted,
        };
        if wanted.node == node_of(self.identity.replica) {
            return reply(cx, request, AdminReply::Done);
        }
        let conf = self.raft.raft.prs().conf().to_conf_state();
        let voter =
            self.membership.replicas_of(wanted.node).find(|peer| conf.voters.contains(peer));
        let Some(to) = voter else {
            let (certainty, reason) = (Certainty::NotApplied, "that node is no voter");
            return refuse(cx, request, Refusal::Unavailable { certainty, reason });
        };
        self.hand_over_to(to);
        let (responder, handled) = request.defer(cx);
        self.handovers.push(responder);
        handled
    }

    /// Begins to hand leadership over to a voter.
    pub(super) fn hand_over_to(&mut self, voter: u64) {
        self.no_lease_in = self.raft.raft.term;
        self.raft.transfer_leader(voter);
    }

    /// Handles a replica's request to join. The request is granted if an operator has added the node, or if the node
    /// was already a member and has lost its log.
    pub(super) fn handle_join(&mut self, join: Join) -> Result<(), &'static str> {
        if join.cluster != self.identity.cluster {
            return Err("this is another cluster");
        }
        if !self.leads() {
            return Err("this replica does not lead");
        }
        let node = node_of(join.replica);
        if !self.membership.may_join(node) {
            return Err("that node is not a member: add it first");
        }
        self.joining.retain(|replica, _| node_of(*replica) != node);
        self.joining.insert(join.replica, join.address);
        Ok(())
    }

    /// Makes the next step for joining replicas: first they become learners, then voters. The second step also removes
    /// a former replica of the node.
    pub(super) fn advance_joins(&mut self) {
        if self.raft.raft.state != StateRole::Leader || !self.is_settled() {
            return;
        }
        let conf = self.raft.raft.prs().conf().to_conf_state();
        self.note_learners(&conf);
        // A node that asked to join may have been removed since.
        let (membership, voters) = (&self.membership, &conf.voters);
        self.joining.retain(|replica, _| {
            !voters.contains(replica) && membership.may_join(node_of(*replica))
        });
        let newcomer = self.joining.iter().next().map(|(replica, at)| (*replica, at.clone()));
        let learner = conf.learners.iter().copied().find(|peer| self.has_caught_up(*peer));
        if let Some((replica, address)) = newcomer.filter(|(peer, _)| !conf.learners.contains(peer))
        {
            let learns = single(ConfChangeType::AddLearnerNode, replica);
            self.propose_configuration(changes(vec![learns], &Members::from([(replica, address)])));
        } else if let Some(replica) = learner {
            let former =
                self.membership.replicas_of(node_of(replica)).filter(|other| *other != replica);
            let gone = former.map(|other| single(ConfChangeType::RemoveNode, other));
            let all =
                std::iter::once(single(ConfChangeType::AddNode, replica)).chain(gone).collect();
            self.propose_configuration(changes(all, &Members::new()));
        }
    }

    /// Sets the goals of learners that this leader has not seen before.
    fn note_learners(&mut self, conf: &ConfState) {
        let committed = self.raft.raft.raft_log.committed;
        self.learner_goals.retain(|learner, _| conf.learners.contains(learner));
        for learner in &conf.learners {
            self.learner_goals.entry(*learner).or_insert(committed);
        }
    }

    /// Returns true if a learner has all that was committed when it came, and is close enough to the end of the log. The
    /// acknowledged index counts, whatever the core's state: after a snapshot the core keeps probing until the next
    /// entry, which may never come in a quiet cluster.
    fn has_caught_up(&self, peer: u64) -> bool {
        let last_index = self.raft.raft.raft_log.last_index();
        let goal = self.learner_goals.get(&peer).copied().unwrap_or(u64::MAX);
        self.raft.raft.prs().get(peer).is_some_and(|progress| {
            progress.recent_active
                && progress.state != raft::ProgressState::Snapshot
                && progress.matched >= goal
                && progress.matched + BEHIND_MAX >= last_index
        })
    }
}

fn at(index: Option<u64>) -> ChangeOutcome {
    index.map_or(ChangeOutcome::Refused("another change is under way"), ChangeOutcome::At)
}

fn single(kind: ConfChangeType, replica: u64) -> ConfChangeSingle {
    let mut single = ConfChangeSingle { node_id: replica, ..ConfChangeSingle::default() };
    single.set_change_type(kind);
    single
}

/// Changes for a single step, and the addresses of the new members.
fn changes(all: Vec<ConfChangeSingle>, addresses: &Members) -> ConfChangeV2 {
    let mut change = ConfChangeV2::default();
    change.set_changes(all.into());
    let mut context = Vec::new();
    put_members(addresses, &mut context);
    change.set_context(context.into());
    change
}

fn reply(cx: &mut Context<'_>, request: Request<'_>, reply: AdminReply<'_>) -> Handled {
    request.reply(cx, &reply.to_vec())
}

pub(super) fn refuse(cx: &mut Context<'_>, request: Request<'_>, refusal: Refusal<'_>) -> Handled {
    reply(cx, request, AdminReply::Refused(refusal))
}

#[cfg(test)]
mod tests {
    use super::super::member::test_leader;
    use super::super::membership::replica_name;
    use super::*;

    /// A leader of two nodes, without answers from its follower: no proposal is applied.
    fn leader() -> Member {
        test_leader(2).1
    }

    fn change(member: &mut Member, change: MemberChange, node: u16) -> ChangeOutcome {
        member.change(&MemberRequest { change, node, address: "10.0.0.9:7000" })
    }

    const UNDER_WAY: ChangeOutcome = ChangeOutcome::Refused("another change is under way");

    #[test]
    fn change__a_member_whose_removal_is_on_the_way_is_not_said_to_be_one() {
        let mut leader = leader();
        assert_eq!(change(&mut leader, MemberChange::Add, 2), ChangeOutcome::AlreadyDone);
        let removed = change(&mut leader, MemberChange::Remove, 2);
        assert!(matches!(removed, ChangeOutcome::At(_)), "{removed:?}");
        for again in [MemberChange::Add, MemberChange::Promote, MemberChange::Remove] {
            assert_eq!(change(&mut leader, again, 2), UNDER_WAY, "{again:?}");
        }
    }

    #[test]
    fn change__an_address_that_another_node_has_is_refused() {
        let mut leader = leader();
        let add = |leader: &mut Member, node, address| {
            leader.change(&MemberRequest { change: MemberChange::Add, node, address })
        };
        let taken = |outcome| matches!(outcome, ChangeOutcome::Refused(why) if why.contains("has that address"));
        let own = leader.membership.members[&leader.identity.replica].clone();
        assert!(taken(add(&mut leader, 3, &own)), "a member's");
        assert_eq!(add(&mut leader, 1, &own), ChangeOutcome::AlreadyDone, "its own");
        leader.membership.change(MembershipChange::Admit(4, "10.0.0.4:7000".to_owned()));
        assert!(taken(add(&mut leader, 5, "10.0.0.4:7000")), "that of a node that may join");
        assert!(matches!(add(&mut leader, 5, "10.0.0.5:7000"), ChangeOutcome::At(_)));
    }

    #[test]
    fn change__a_node_whose_addition_is_on_the_way_is_not_said_to_be_gone() {
        let mut leader = leader();
        assert_eq!(change(&mut leader, MemberChange::Remove, 3), ChangeOutcome::NoMember);
        let added = change(&mut leader, MemberChange::Add, 3);
        assert!(matches!(added, ChangeOutcome::At(_)), "{added:?}");
        assert_eq!(change(&mut leader, MemberChange::Remove, 3), UNDER_WAY);
        let again = change(&mut leader, MemberChange::Add, 3);
        assert!(
            matches!(again, ChangeOutcome::At(_)),
            "a request that is repeated waits, too: {again:?}"
        );
    }

    #[test]
    fn handle_join__is_for_nodes_that_an_operator_has_added() {
        let mut leader = leader();
        let address = "10.0.0.9:7000".to_owned();
        let own = leader.identity.cluster;
        let mut join = |cluster, node| {
            leader.handle_join(Join {
                cluster,
                replica: replica_name(node, 9),
                address: address.clone(),
            })
        };
        assert_eq!(join(own, 3), Err("that node is not a member: add it first"));
        assert_eq!(join(own + 1, 2), Err("this is another cluster"));
        assert_eq!(join(own, 2), Ok(()), "a member that has lost its log");
        leader.raft.raft.become_follower(9, 0);
        let replica = replica_name(2, 9);
        let late = leader.handle_join(Join { cluster: own, replica, address });
        assert_eq!(late, Err("this replica does not lead"));
    }

    #[test]
    fn has_caught_up__with_all_that_was_committed_when_the_learner_came() {
        let (_, mut leader) = test_leader(1);
        let learner = replica_name(2, 9);
        let learns =
            changes(vec![single(ConfChangeType::AddLearnerNode, learner)], &Members::new());
        leader.raft.apply_conf_change(&learns).unwrap();
        let last = leader.raft.raft.raft_log.last_index();
        leader.raft.raft.raft_log.committed = last;
        leader.note_learners(&leader.raft.raft.prs().conf().to_conf_state());
        for (matched, is_there) in [(0, false), (last - 1, false), (last, true)] {
            let progress = leader.raft.raft.mut_prs().get_mut(learner).unwrap();
            (progress.matched, progress.recent_active) = (matched, true);
            assert_eq!(leader.has_caught_up(learner), is_there, "{matched} of {last}");
        }
    }

    #[test]
    fn advance_joins__proposes_nothing_while_the_membership_is_about_to_change() {
        let mut leader = leader();
        leader.membership.change(MembershipChange::Admit(3, "10.0.0.9:7000".to_owned()));
        let (cluster, replica) = (leader.identity.cluster, replica_name(3, 1));
        leader.handle_join(Join { cluster, replica, address: "10.0.0.9:7000".to_owned() }).unwrap();
        let removed = change(&mut leader, MemberChange::Remove, 3);
        assert!(matches!(removed, ChangeOutcome::At(_)), "{removed:?}");
        let last = leader.raft.raft.raft_log.last_index();
        leader.advance_joins();
        assert_eq!(leader.raft.raft.raft_log.last_index(), last);
    }
}
