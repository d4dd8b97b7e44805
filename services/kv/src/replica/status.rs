//! The state of a replica, for people and for clients that look for the leader.

use std::borrow::Cow;

use raft::StateRole;

use super::member::Member;
use super::membership::node_of;
use super::shared::State;
use crate::api::{self, MemberKind, Role, Status};

impl State {
    pub(super) fn status(&self) -> Status {
        let Some(member) = &self.member else {
            let raft_id = self.own_name();
            return Status { node: self.config.node, raft_id, ..Status::default() };
        };
        let mut status = member.status();
        let links = self.links.counters;
        let counters = [
            ("peer_calls", links.calls),
            ("peer_calls_failed", links.failed),
            ("peer_messages_dropped", links.dropped),
            ("appends_merged", links.merged),
            ("frames_shared", links.shared),
        ];
        let watchers = [
            ("watchers", self.watchers.len() as u64),
            ("watchers_overtaken", self.watchers.overtaken()),
        ];
        let counters = counters.into_iter().chain(watchers);
        status.counters.extend(counters.map(|(name, value)| (Cow::Borrowed(name), value)));
        status
    }
}

impl Member {
    fn status(&self) -> Status {
        let raft = &self.raft.raft;
        let stats = self.stats;
        let (log_entries, log_bytes) = self.log.size();
        let counters = [
            ("messages", stats.messages),
            ("messages_ignored", stats.messages_ignored),
            ("proposals", stats.proposals),
            ("entries", stats.entries),
            ("applied", stats.applied),
            ("elections_won", stats.elections_won),
            ("handovers", stats.handovers),
            ("images", stats.snapshots_made),
            ("snapshots_fetched", stats.snapshots_fetched),
            ("restoring", u64::from(self.store.is_restoring())),
            ("leases", self.store.leases()),
            ("leased_keys", self.store.leased_keys()),
            ("history_first", self.store.history().first()),
            ("history_bytes", self.store.history().bytes() as u64),
            ("memory_bytes", self.memory_bytes()),
            ("log_entries", log_entries as u64),
            ("log_bytes", log_bytes as u64),
            ("write_p50_ns", self.write_times.value_at_quantile(0.5)),
            ("write_p99_ns", self.write_times.value_at_quantile(0.99)),
            ("writes_waiting", self.writes.len() as u64),
            ("reads_waiting", self.reads.len() as u64),
            ("read_questions", self.reads.questions()),
        ];
        Status {
            node: node_of(self.identity.replica),
            raft_id: self.identity.replica,
            role: match raft.state {
                StateRole::Leader => Role::Leader,
                StateRole::Candidate => Role::Candidate,
                StateRole::PreCandidate => Role::PreCandidate,
                StateRole::Follower => Role::Follower,
            },
            term: raft.term,
            leader: Some(raft.leader_id).filter(|leader| *leader != 0),
            commit: raft.raft_log.committed,
            applied: self.applied_index(),
            last_index: raft.raft_log.last_index(),
            first_index: self.log.first(),
            members: self.members(),
            keys: self.store.keys(),
            bytes: self.store.bytes(),
            sessions: self.store.sessions(),
            counters: counters.map(|(name, value)| (Cow::Borrowed(name), value)).into(),
        }
    }

    pub(super) fn members(&self) -> Vec<api::Member> {
        let conf = self.raft.raft.prs().conf().to_conf_state();
        let is_complete = self.configuration_is_complete();
        let kind = |replica: &u64| {
            if conf.voters.contains(replica) {
                let is_new = !is_complete && self.is_newcomer(*replica);
                if is_new { MemberKind::Joining } else { MemberKind::Voter }
            } else if conf.voters_outgoing.contains(replica) {
                MemberKind::Leaving
            } else {
                MemberKind::Learner
            }
        };
        let member = |(replica, address): (&u64, &String)| api::Member {
            raft_id: *replica,
            kind: kind(replica),
            address: address.clone(),
        };
        self.membership.members.iter().map(member).collect()
    }
}
