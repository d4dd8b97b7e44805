//! Committed entries: each is applied once, in order, and whoever waits for it is answered.

use petrel::Context;
use raft::eraftpb::{ConfChangeV2, Entry, EntryType};

use super::Member;
use crate::api::AdminReply;
use crate::replica::ReplicaError;
use crate::replica::book::{BookChange, decode_members};
use crate::replica::codec::Reader;
use crate::store::WARMED_MAX;

/// Commands that are worth a look at the memory that they need before they are applied.
const WARMED_MIN: usize = 4;

impl Member {
    pub(super) fn answer_committed(&mut self, cx: &mut Context<'_>) {
        let log = &self.raft.raft.raft_log;
        let certain = log.committed.min(log.persisted);
        #[cfg(petrel_break = "kv_answer_before_commit")]
        let certain = certain.max(log.last_index());
        if self.is_next_answered() || self.answer_foreseen(cx, certain) {
            return;
        }
        let mut warmed = self.applied.0;
        while self.writes.next_index() == Some(self.applied.0 + 1) && self.applied.0 < certain {
            let left = certain - self.applied.0;
            if self.applied.0 == warmed && left >= WARMED_MIN as u64 {
                let count = left.min(WARMED_MAX as u64);
                self.warm_writes(count as usize);
                warmed += count;
            }
            self.apply_next(cx, self.raft.raft.term);
        }
    }

    /// Does while the others look at what was proposed what can be done before it is committed: looks what will
    /// come of a write that is alone, and of several has the memory read that they need.
    pub(super) fn prepare_writes(&mut self) {
        if !self.writes.is_alone() {
            return self.warm_writes(WARMED_MAX);
        }
        let index = self.applied.0 + 1;
        if let Some(write) = self.writes.next_mut(index) {
            write.foreseen = self.store.foresee(index, &write.command);
        }
    }

    /// Has the memory read that the next writes need.
    fn warm_writes(&self, count: usize) {
        self.store.warm(self.writes.next(self.applied.0 + 1).take(count));
    }

    /// Answers the next write if it is committed and what comes of it is known. It is applied when the answer has
    /// left.
    fn answer_foreseen(&mut self, cx: &mut Context<'_>, certain: u64) -> bool {
        let index = self.applied.0 + 1;
        let Some(write) = self.writes.next_mut(index).filter(|_| index <= certain) else {
            return false;
        };
        let Some(reply) = &write.foreseen else { return false };
        let Some(responder) = write.responder.take() else { return false };
        self.write_times.saturating_record(cx.now_ns().saturating_sub(write.at_ns));
        responder.reply(cx, reply);
        true
    }

    /// Applies the write that was answered before. To be called before the store is looked at.
    pub(in crate::replica) fn apply_answered(&mut self, cx: &mut Context<'_>) {
        // This replica may lead no more: then its term is not the write's.
        let log = &self.raft.raft.raft_log;
        if let (true, Ok(term)) = (self.is_next_answered(), log.term(self.applied.0 + 1)) {
            self.apply_next(cx, term);
        }
    }

    fn is_next_answered(&self) -> bool {
        let next = self.writes.peek(self.applied.0 + 1);
        next.is_some_and(|write| write.responder.is_none())
    }

    /// Applies the write that is both the next in the log, with this term, and the next that a client waits for.
    fn apply_next(&mut self, cx: &mut Context<'_>, term: u64) {
        let index = self.applied.0 + 1;
        debug_assert_eq!(self.raft.raft.raft_log.term(index), Ok(term), "of entry {index}");
        let write = self.writes.take(index).expect("it was looked at");
        self.reply.clear();
        self.store.apply(index, &write.command, &mut self.reply);
        self.applied = (index, term);
        self.stats.applied += 1;
        let Some(responder) = write.responder else {
            assert_eq!(write.foreseen.as_ref(), Some(&self.reply), "it was answered so");
            return;
        };
        self.write_times.saturating_record(cx.now_ns().saturating_sub(write.at_ns));
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
        for some in entries[new..].chunks(WARMED_MAX) {
            if some.len() >= WARMED_MIN {
                self.store.warm(some.iter().map(|entry| &entry.data[..]));
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
            if let Ok(change) = BookChange::decode(&entry.context) {
                self.book.change(change);
            }
        } else if !entry.data.is_empty() {
            self.reply.clear();
            self.store.apply(entry.index, &entry.data, &mut self.reply);
        }
        self.answer_change(cx, entry.index);
        Ok(())
    }

    fn apply_configuration(&mut self, entry: &Entry) -> Result<(), ReplicaError> {
        let mut change = ConfChangeV2::default();
        protobuf::Message::merge_from_bytes(&mut change, &entry.data)
            .map_err(|error| ReplicaError::Log(error.to_string()))?;
        let conf = self
            .raft
            .apply_conf_change(&change)
            .map_err(|error| ReplicaError::Raft(error.to_string()))?;
        let mut input = Reader::new(&change.context);
        for (replica, address) in decode_members(&mut input).unwrap_or_default() {
            self.book.add(replica, address);
        }
        let all = [&conf.voters, &conf.learners, &conf.voters_outgoing, &conf.learners_next];
        self.book.members.retain(|replica, _| all.iter().any(|list| list.contains(replica)));
        let (own, term) = (self.identity.replica, self.raft.raft.term);
        if self.leads() && !all.iter().any(|list| list.contains(&own)) {
            // It was made the leader while its removal was on the way; the core would go on, and panic.
            self.raft.raft.become_follower(term, raft::INVALID_ID);
        }
        self.log.get_mut().set_conf_state(conf);
        // Its majority may be none any more.
        self.lease = None;
        Ok(())
    }

    fn answer_change(&mut self, cx: &mut Context<'_>, index: u64) {
        let mut reply = Vec::new();
        AdminReply::Done.encode(&mut reply);
        while let Some(place) = self.changes.iter().position(|(at, _)| *at == index) {
            self.changes.swap_remove(place).1.reply(cx, &reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use petrel::{EndpointConfig, Nexus};

    use super::*;
    use crate::command::{Command, Op};
    use crate::persist::{Identity, Volatile};
    use crate::replica::book::replica_name;
    use crate::replica::config::ReplicaConfig;
    use crate::replica::writes::Write;

    #[test]
    fn apply_answered__keeps_the_writes_own_term() {
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        let config = ReplicaConfig::new(1, at, vec![(1, at)], 7);
        let identity = Identity { cluster: 3, replica: replica_name(1, 5) };
        let founders = vec![(identity.replica, at.to_string())];
        let mut member =
            Member::found(&config, identity, founders, Box::<Volatile>::default()).unwrap();
        member.raft.raft.become_candidate();
        member.raft.raft.become_leader();
        let (term, last) = (member.raft.raft.term, member.raft.raft.raft_log.last_index());
        // As if all before it had been applied.
        member.applied = (last, term);

        let mut command = Vec::new();
        let op = Op::Put { key: b"key", value: b"value" };
        Command::Write { session: 9, sequence: 0, first_pending: 0, op }.encode(&mut command);
        let mut reply = Vec::new();
        crate::store::Store::new().apply(last + 1, &command, &mut reply);
        let write =
            Write { at_ns: 0, command: command.into(), responder: None, foreseen: Some(reply) };
        member.writes.queue(write);
        let mut endpoint =
            Nexus::builder().start().unwrap().endpoint(EndpointConfig::default()).unwrap();
        let cx = &mut endpoint.context();
        assert!(member.propose(cx));

        member.raft.raft.become_follower(term + 1, raft::INVALID_ID);
        member.apply_answered(cx);
        assert_eq!(member.applied, (last + 1, term));
    }
}
