//! Committed entries: the replica applies each entry once, in order, and answers the waiting client.

use std::collections::BTreeSet;

use petrel::Context;
use petrel_planted::planted;
use raft::eraftpb::{ConfChangeV2, ConfState, Entry, EntryType};

use super::{Configured, Member};
use crate::api::AdminReply;
use crate::command;
use crate::replica::ReplicaError;
use crate::replica::membership::{MembershipChange, read_members};
use crate::store::{PREFETCH_MAX, PREFETCH_MIN};
use crate::wire::Reader;

impl Member {
    pub(super) fn answer_committed(&mut self, cx: &mut Context<'_>) {
        let certain = self.answerable();
        if self.is_next_answered() || self.answer_precomputed(cx, certain) {
            return;
        }
        let mut prefetched = self.applied.0;
        while self.writes.next_index() == Some(self.applied.0 + 1) && self.applied.0 < certain {
            let left = certain - self.applied.0;
            if self.applied.0 == prefetched && left >= PREFETCH_MIN as u64 {
                let count = left.min(PREFETCH_MAX as u64);
                self.prefetch_writes(count as usize);
                prefetched += count;
            }
            self.apply_next(cx, self.raft.raft.term);
        }
    }

    /// The last entry that a majority has stored, with or without the leader's own log.
    pub(super) fn answerable(&self) -> u64 {
        let log = &self.raft.raft.raft_log;
        if planted("kv_answer_before_commit") { log.last_index() } else { log.committed }
    }

    /// Prepares writes for their commit while the followers process the proposal. Computes the answer of a single
    /// write; prefetches memory for several writes.
    pub(super) fn prepare_writes(&mut self) {
        if !self.writes.is_alone() {
            return self.prefetch_writes(PREFETCH_MAX);
        }
        let index = self.applied.0 + 1;
        if let Some(write) = self.writes.next_mut(index) {
            write.precomputed = self.store.precompute(index, &write.command);
        }
    }

    /// Prefetches memory for the next writes.
    fn prefetch_writes(&self, count: usize) {
        self.store.prefetch(self.writes.next(self.applied.0 + 1).take(count));
    }

    /// Answers the next write if the write is committed and its answer is already computed. The replica applies the
    /// write after the answer has left.
    fn answer_precomputed(&mut self, cx: &mut Context<'_>, certain: u64) -> bool {
        let index = self.applied.0 + 1;
        let Some(write) = self.writes.next_mut(index).filter(|_| index <= certain) else {
            return false;
        };
        let Some(reply) = &write.precomputed else { return false };
        let Some(responder) = write.responder.take() else { return false };
        self.write_times.saturating_record(cx.now().as_ns().saturating_sub(write.at_ns));
        responder.reply(cx, reply);
        true
    }

    /// Applies the write that was already answered. Must run before the store is read.
    pub(crate) fn apply_answered(&mut self, cx: &mut Context<'_>) {
        // This replica may no longer lead: then the current term is not the write's.
        let log = &self.raft.raft.raft_log;
        if let (true, Ok(term)) = (self.is_next_answered(), log.term(self.applied.0 + 1)) {
            self.apply_next(cx, term);
        }
    }

    fn is_next_answered(&self) -> bool {
        let next = self.writes.peek(self.applied.0 + 1);
        next.is_some_and(|write| write.responder.is_none())
    }

    /// Applies the log's next entry, of term `term`, which is also the next write with a waiting client.
    fn apply_next(&mut self, cx: &mut Context<'_>, term: u64) {
        let index = self.applied.0 + 1;
        debug_assert_eq!(self.raft.raft.raft_log.term(index), Ok(term), "of entry {index}");
        let write = self.writes.take(index).expect("it was looked at");
        self.reply.clear();
        self.store.apply(index, &write.command, &mut self.reply);
        self.applied = (index, term);
        self.stats.applied += 1;
        let Some(responder) = write.responder else {
            assert_eq!(write.precomputed.as_ref(), Some(&self.reply), "it was answered so");
            return;
        };
        self.write_times.saturating_record(cx.now().as_ns().saturating_sub(write.at_ns));
        responder.reply(cx, &self.reply);
    }

    pub(super) fn apply_committed(
        &mut self,
        cx: &mut Context<'_>,
        entries: &[Entry],
    ) -> Result<(), ReplicaError> {
        let Some(last) = entries.last() else { return Ok(()) };
        let through = last.index;
        let applied = self.applied.0;
        let new = entries.partition_point(|entry| entry.index <= applied);
        for some in entries[new..].chunks(PREFETCH_MAX) {
            if some.len() >= PREFETCH_MIN {
                self.store.prefetch(some.iter().map(|entry| &entry.data[..]));
            }
            for entry in some {
                self.apply(cx, entry)?;
            }
        }
        self.raft.advance_apply_to(through);
        Ok(())
    }

    fn apply(&mut self, cx: &mut Context<'_>, entry: &Entry) -> Result<(), ReplicaError> {
        assert_eq!(entry.index, self.applied.0 + 1, "entries are applied in order");
        if self.writes.next_index() == Some(entry.index) {
            self.apply_next(cx, entry.term);
            return Ok(());
        }
        self.applied = (entry.index, entry.term);
        self.stats.applied += 1;
        if entry.get_entry_type() != EntryType::EntryNormal {
            self.apply_configuration(entry)?;
        } else if !entry.context.is_empty() {
            if let Ok(change) = MembershipChange::decode(&entry.context) {
                self.membership.change(change);
            }
        } else if !entry.data.is_empty() {
            self.reply.clear();
            self.store.apply(entry.index, &entry.data, &mut self.reply);
            // A leader goes on with the value to which its own numbers were added.
            let is_own = self.leads() && entry.term == self.raft.raft.term;
            if command::is_advance(&entry.data) && !is_own {
                self.lease_clock.adopt(self.store.lease_clock_ms(), cx.clock_now().as_ns());
            }
        }
        self.answer_changes(cx);
        Ok(())
    }

    fn apply_configuration(&mut self, entry: &Entry) -> Result<(), ReplicaError> {
        let mut change = ConfChangeV2::default();
        protobuf::Message::merge_from_bytes(&mut change, &entry.data)
            .map_err(|error| ReplicaError::Log(error.to_string()))?;
        let before = self.raft.raft.prs().conf().to_conf_state();
        let was_complete = self.configuration_is_complete();
        let conf = self
            .raft
            .apply_conf_change(&change)
            .map_err(|error| ReplicaError::Raft(error.to_string()))?;
        let added = read_members(&mut Reader::new(&change.context));
        for (replica, address) in added.unwrap_or_default() {
            self.membership.add(replica, address);
        }
        let all = [&conf.voters, &conf.learners, &conf.voters_outgoing, &conf.learners_next];
        self.membership.members.retain(|replica, _| all.iter().any(|list| list.contains(replica)));
        let (own, term) = (self.identity.replica, self.raft.raft.term);
        if self.leads() && !all.iter().any(|list| list.contains(&own)) {
            // This replica became the leader while its removal was in flight. The core would go on as leader, and
            // panic.
            self.raft.raft.become_follower(term, raft::INVALID_ID);
        }
        self.configured.note(entry.index, was_complete, &before, &conf);
        self.log.get_mut().set_conf_state(conf);
        // The lease's majority may not be a majority of the new configuration.
        self.lease = None;
        Ok(())
    }

    /// Answers the operators whose membership changes are complete. When a replica ceases to lead,
    /// [`Member::note_role`] answers them.
    pub(crate) fn answer_changes(&mut self, cx: &mut Context<'_>) {
        if self.changes.is_empty() || !self.leads() || !self.configuration_is_complete() {
            return;
        }
        let reply = AdminReply::Done.to_vec();
        let applied = self.applied.0;
        for (_, responder) in self.changes.extract_if(.., |(index, _)| *index <= applied) {
            responder.reply(cx, &reply);
        }
    }
}

impl Configured {
    /// The configuration of a starting replica or of a snapshot. A majority may not know the configuration yet.
    pub(super) fn of(index: u64, conf: &ConfState) -> Self {
        let mut configured = Self { index, newcomers: BTreeSet::new() };
        if !conf.voters_outgoing.is_empty() {
            configured.add(&conf.voters_outgoing, &conf.voters);
        }
        configured
    }

    /// Records a change of the configuration. `was_complete` refers to the former configuration.
    fn note(&mut self, index: u64, was_complete: bool, before: &ConfState, after: &ConfState) {
        self.index = index;
        if was_complete {
            self.newcomers.clear();
        }
        self.add(&before.voters, &after.voters);
        self.newcomers.retain(|replica| after.voters.contains(replica));
    }

    fn add(&mut self, before: &[u64], after: &[u64]) {
        self.newcomers.extend(after.iter().filter(|replica| !before.contains(replica)));
    }
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::{ConfChangeSingle, ConfChangeType, Message, MessageType};

    use super::super::{test_endpoint, test_leader};
    use super::*;
    use crate::api::MemberKind;
    use crate::command::{Command, Op};
    use crate::replica::membership::replica_name;
    use crate::replica::writes::Write;

    #[test]
    fn apply_answered__keeps_the_writes_own_term() {
        let (_, mut member) = test_leader(1);
        let (term, last) = (member.raft.raft.term, member.raft.raft.raft_log.last_index());
        // As if all earlier entries had been applied.
        member.applied = (last, term);

        let op = Op::Put { key: b"key", value: b"value" };
        let command = Command::Write { session: 9, sequence: 0, first_pending: 0, op }.to_vec();
        let mut reply = Vec::new();
        crate::store::Store::new().apply(last + 1, &command, &mut reply);
        let write =
            Write { at_ns: 0, command: command.into(), responder: None, precomputed: Some(reply) };
        member.writes.queue(write);
        let mut endpoint = test_endpoint();
        let cx = &mut endpoint.context();
        assert!(member.propose(cx));

        member.raft.raft.become_follower(term + 1, raft::INVALID_ID);
        member.apply_answered(cx);
        assert_eq!(member.applied, (last + 1, term));
    }

    /// Applies a change as a committed entry of the log.
    fn apply_change(member: &mut Member, cx: &mut Context<'_>, change: &ConfChangeV2) {
        let mut entry = Entry { index: member.applied.0 + 1, ..Entry::default() };
        entry.set_entry_type(EntryType::EntryConfChangeV2);
        entry.data = protobuf::Message::write_to_bytes(change).unwrap().into();
        member.apply(cx, &entry).unwrap();
    }

    fn kinds(member: &Member) -> Vec<(u16, MemberKind)> {
        member.members().iter().map(|member| (member.node(), member.kind)).collect()
    }

    #[test]
    fn configured__newcomers_stay_until_a_change_is_complete() {
        let conf = |voters: &[u64], outgoing: &[u64]| {
            let mut conf = ConfState::from((voters.to_vec(), vec![]));
            conf.voters_outgoing = outgoing.to_vec();
            conf
        };
        let (first, both, swapped) =
            (conf(&[1, 2, 3], &[]), conf(&[1, 2, 4], &[1, 2, 3]), conf(&[1, 2, 4], &[]));
        let mut configured = Configured::of(7, &both);
        assert_eq!((configured.index, &configured.newcomers), (7, &BTreeSet::from([4])));
        configured.note(8, false, &both, &swapped);
        assert_eq!(configured.newcomers, BTreeSet::from([4]), "no follower knows of the end");
        let grown = conf(&[1, 2, 4, 5], &[]);
        configured.note(9, false, &swapped, &grown);
        assert_eq!(configured.newcomers, BTreeSet::from([4, 5]));
        configured.note(10, true, &grown, &conf(&[1, 2, 4, 5, 6], &[]));
        assert_eq!((configured.index, &configured.newcomers), (10, &BTreeSet::from([6])));
        configured.note(11, false, &grown, &first);
        assert_eq!(configured.newcomers, BTreeSet::from([3]), "who has left is none");
        assert!(Configured::of(12, &first).newcomers.is_empty());
    }

    #[test]
    fn configuration_is_complete__when_a_majority_knows_that_the_former_one_is_over() {
        use MemberKind::{Joining, Leaving, Voter};
        let names = [1, 2, 3, 4].map(|node| replica_name(node, 5));
        let (_, mut member) = test_leader(3);
        let mut endpoint = test_endpoint();
        let cx = &mut endpoint.context();
        assert_eq!(kinds(&member), [(1, Voter), (2, Voter), (3, Voter)]);

        let mut swap = ConfChangeV2::default();
        let step = |kind, node_id| {
            let mut step = ConfChangeSingle { node_id, ..ConfChangeSingle::default() };
            step.set_change_type(kind);
            step
        };
        let steps =
            [step(ConfChangeType::AddNode, names[3]), step(ConfChangeType::RemoveNode, names[2])];
        swap.set_changes(steps.to_vec().into());
        member.membership.add(names[3], "127.0.0.1:4".to_owned());
        apply_change(&mut member, cx, &swap);
        assert!(!member.configuration_is_complete());
        let both = [(1, Voter), (2, Voter), (3, Leaving), (4, Joining)];
        assert_eq!(kinds(&member), both);

        // Ends joint consensus; only this replica knows of the end.
        apply_change(&mut member, cx, &ConfChangeV2::default());
        assert!(!member.configuration_is_complete());
        assert_eq!(kinds(&member), [(1, Voter), (2, Voter), (4, Joining)]);

        let (term, commit) = (member.raft.raft.term, member.applied.0);
        for commit in [commit - 1, commit] {
            assert!(!member.configuration_is_complete());
            let mut response =
                Message { from: names[1], to: names[0], term, commit, ..Message::default() };
            response.set_msg_type(MessageType::MsgHeartbeatResponse);
            member.raft.raft.step(response).unwrap();
        }
        assert!(member.configuration_is_complete());
        assert_eq!(kinds(&member), [(1, Voter), (2, Voter), (4, Voter)]);
    }
}
