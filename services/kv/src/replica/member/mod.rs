//! A replica in a cluster: the Raft core with its log, the store, and the waiting requests.
//!
//! The Raft core returns its work as a *ready*: entries and votes to persist, messages to send, entries to apply. Two
//! kinds of work do not wait for a ready. A leader's messages may leave before its own log has the entries (Raft
//! dissertation §10.2.1). If the log is only in memory, a follower's answer may leave early, too, because a crash loses
//! the acknowledged entries in either order. The leader also applies and answers committed entries at once, from the
//! queue of clients' writes. A later ready brings the entries again, and the replica skips them.

mod apply;
mod begin;
mod lease_clock;
mod quota;
mod role;
mod slowness;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use hdrhistogram::Histogram;
use petrel::Context;
use petrel::endpoint::Responder;
use petrel_planted::planted;
use raft::eraftpb::{ConfChangeV2, Entry, Message, MessageType};
use raft::{RawNode, Ready, StateRole};

use lease_clock::LeaseClock;
use slowness::Slowness;
pub(super) use snapshot::Fetch;

use super::codec::message_bytes;
use super::config::ReplicaConfig;
use super::links::{ANSWER_BYTES_MAX, Links};
use super::log::Log;
use super::membership::{Members, Membership, MembershipChange};
use super::reads::{self, Reads};
use super::rng::Rng;
use super::saves::Saves;
use super::shared::Shared;
use super::snapshot::{Incoming, Snapshots};
use super::writes::Writes;
use super::{ReplicaError, ReplicaStats};
use crate::api::{Certainty, LeaseRequest, Refusal, methods};
use crate::persist::{Batch, Identity, LogStore};
use crate::store::Store;

/// The last applied configuration.
struct Configured {
    index: u64,
    /// Voters that were not in the last complete configuration. A change of several voters takes two steps (joint
    /// consensus). The first step needs the majorities of both configurations, the second only the new one's.
    newcomers: BTreeSet<u64>,
}

pub(super) struct Member {
    pub(super) identity: Identity,
    pub(super) raft: RawNode<Log>,
    pub(super) log: Log,
    pub(super) store: Store,
    pub(super) membership: Membership,
    /// The replicas that bootstrapped the cluster, if known.
    pub(super) initial_members: Members,
    /// Index and term of the last entry that the store has applied.
    applied: (u64, u64),
    pub(super) writes: Writes,
    pub(super) reads: Reads,
    /// Membership changes with a waiting operator, by index.
    pub(super) changes: Vec<(u64, Responder)>,
    /// Operators that wait until another replica leads.
    pub(super) handovers: Vec<Responder>,
    configured: Configured,
    /// Index of the last change to the membership table proposed as the leader.
    last_membership_change: u64,
    disk: Box<dyn LogStore>,
    /// Messages to send once the batch with this number is durable.
    held: VecDeque<(u64, Vec<Message>)>,
    durable: u64,
    /// The number of the batch with a snapshot that is not yet durable, and the snapshot's index.
    installing: Option<(u64, u64)>,
    pub(super) snapshots: Snapshots,
    saves: Saves,
    incoming: Option<Incoming>,
    /// Replicas with an offered snapshot: the chunks requested when last looked, and the ticks since then.
    offers: BTreeMap<u64, (u64, usize)>,
    /// Replicas waiting to join, with addresses.
    pub(super) joining: BTreeMap<u64, String>,
    /// For each learner, the index that was committed when this leader first saw the learner.
    pub(super) learner_goals: BTreeMap<u64, u64>,
    slowness: Slowness,
    /// The term and the core's role when last looked.
    role: (u64, StateRole),
    /// The term in which leases are suspended: a handover of leadership began, and the successor's election overrides
    /// the followers' promises.
    pub(super) no_lease_in: u64,
    /// Term and end of the lease when last computed. Within a term the lease never gets shorter, unless the
    /// configuration changes.
    lease: Option<(u64, u64)>,
    lease_clock: LeaseClock,
    /// Time before which the replica grants no votes. A restart forgets promises to a leader.
    no_votes_until_ns: u64,
    is_deferred: bool,
    rng: Rng,
    reply: Vec<u8>,
    pub(super) stats: ReplicaStats,
    /// Nanoseconds from the arrival of a client's write to its answer.
    pub(super) write_times: Histogram<u64>,
}

impl Member {
    pub(super) fn set_waker(&mut self, waker: std::task::Waker) {
        self.disk.set_waker(waker);
    }

    /// Does the work that follows a turn of the event loop. Returns true if more work remains, for after the messages
    /// have left.
    pub(super) fn turn(
        &mut self,
        cx: &mut Context<'_>,
        links: &mut Links,
        shared: &Shared,
        config: &ReplicaConfig,
    ) -> Result<bool, ReplicaError> {
        self.apply_answered(cx);
        self.note_durable(links)?;
        self.note_unreachable(links);
        self.note_role(cx, config);
        self.note_failed_handover(cx);
        let has_proposed = self.propose(cx);
        self.advance_leases(cx);
        let has_asked = self.ask_for_reads();
        self.take_messages(links);
        links.send(cx, self.identity.cluster, shared);
        if (has_proposed || has_asked) && !self.is_deferred {
            self.is_deferred = true;
            return Ok(true);
        }
        if std::mem::take(&mut self.is_deferred) {
            self.prepare_writes();
        }
        while self.raft.has_ready() {
            self.handle_ready(cx, links)?;
        }
        self.note_role(cx, config);
        self.answer_reads(cx);
        self.compact_log(config);
        links.send(cx, self.identity.cluster, shared);
        Ok(false)
    }

    /// Advances the Raft core's clock by a tick.
    pub(super) fn tick(&mut self, now_ns: u64, config: &ReplicaConfig) {
        // The core cannot become a candidate between a snapshot and the report of its application.
        if self.installing.is_none() {
            self.raft.tick();
        }
        self.renew_election_timeout(config);
        self.saves.drop_idle(now_ns);
        self.lease_clock.note_tick();
        if self.raft.raft.state == StateRole::Leader {
            self.advance_joins();
            self.retry_snapshot_offers(config);
            self.give_up_if_slow(now_ns, config);
        }
    }

    /// Processes the messages of a peer. Returns the snapshot fetch to start, if a message offers one.
    pub(super) fn handle_messages(
        &mut self,
        messages: Vec<Message>,
        now_ns: u64,
        config: &ReplicaConfig,
    ) -> Option<Fetch> {
        let mut fetch = None;
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                fetch = fetch.or(self.begin_fetch(message, now_ns));
            } else {
                if message.get_msg_type() == MessageType::MsgTimeoutNow {
                    self.slowness.pause(now_ns, config);
                }
                self.step(message, now_ns);
            }
        }
        self.renew_election_timeout(config);
        fetch
    }

    fn step(&mut self, message: Message, now_ns: u64) {
        let kind = message.get_msg_type();
        let is_vote = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
        // A heartbeat with a commit index beyond the log would make the core panic.
        let last_index = self.raft.raft.raft_log.last_index();
        let is_wrong = kind == MessageType::MsgHeartbeat && message.commit > last_index;
        let is_early = kind == MessageType::MsgTimeoutNow && self.installing.is_some();
        if (is_vote && now_ns < self.no_votes_until_ns) || is_wrong || is_early {
            self.stats.messages_ignored += 1;
            return;
        }
        self.stats.messages += 1;
        if self.raft.step(message).is_err() {
            self.stats.messages_ignored += 1;
        }
    }

    /// Removes and returns the messages for `to` that may leave now, for the answer to a call.
    pub(super) fn take_answer(&mut self, to: u64) -> Vec<Message> {
        if !self.may_send_before_sync() {
            return Vec::new();
        }
        let messages = &mut self.raft.raft.msgs;
        let own = |message: &&Message| message.to == to;
        // The room in an answer is limited. Entries for a replica that is far behind go as calls.
        let bytes: usize = messages.iter().filter(own).map(message_bytes).sum();
        if bytes > ANSWER_BYTES_MAX / 2 {
            return Vec::new();
        }
        if messages.iter().all(|message| message.to == to) {
            return std::mem::take(messages);
        }
        let (answer, others) = messages.drain(..).partition(|message| message.to == to);
        *messages = others;
        answer
    }

    /// Returns true if the replica follows `leader` in `term`. Always true for term 0, which stands for no leader's
    /// message.
    pub(super) fn follows(&self, leader: u64, term: u64) -> bool {
        let raft = &self.raft.raft;
        term == 0 || (raft.term == term && raft.leader_id == leader)
    }

    /// Returns true if messages need not wait until the log is durable.
    fn may_send_before_sync(&self) -> bool {
        self.disk.is_volatile()
            || self.raft.raft.state == StateRole::Leader
            || planted("kv_speak_before_sync")
    }

    fn take_messages(&mut self, links: &mut Links) {
        if self.may_send_before_sync() {
            for message in std::mem::take(&mut self.raft.raft.msgs) {
                links.push(message);
            }
        }
    }

    /// Proposes the queued writes of clients as a single piece. Returns false for an empty queue, or if the replica
    /// does not lead.
    fn propose(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.writes.has_queued() {
            return false;
        }
        if !self.leads() {
            let refusal = role::encoded(Refusal::NotLeader { leader: self.leader() });
            self.writes.refuse_queued(cx, &refusal);
            return false;
        }
        let first = self.raft.raft.raft_log.last_index() + 1;
        let entry = |data: &Bytes| Entry { data: data.clone(), ..Entry::default() };
        let entries: Vec<Entry> = self.writes.queued().map(entry).collect();
        self.stats.proposals += 1;
        if self.propose_entries(entries) {
            self.writes.note_proposed(first);
        } else {
            let reason = "too much waits for a majority, or leadership is being handed over";
            let certainty = Certainty::NotApplied;
            let refusal = role::encoded(Refusal::Unavailable { certainty, reason });
            self.writes.refuse_queued(cx, &refusal);
        }
        true
    }

    fn propose_entries(&mut self, entries: Vec<Entry>) -> bool {
        let mut message = Message { from: self.identity.replica, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.set_entries(entries.into());
        self.raft.raft.step(message).is_ok()
    }

    /// Proposes a change of the membership table; returns its index.
    pub(super) fn propose_membership(&mut self, change: &MembershipChange) -> Option<u64> {
        let context = Bytes::from(change.encode());
        let index = self.raft.raft.raft_log.last_index() + 1;
        if !self.propose_entries(vec![Entry { context, ..Entry::default() }]) {
            return None;
        }
        self.last_membership_change = index;
        Some(index)
    }

    /// Returns true if the leader's log has no unapplied membership change. The core treats each earlier leader's
    /// unapplied entry as a possible change.
    pub(super) fn is_settled(&self) -> bool {
        let conf = self.raft.raft.prs().conf().to_conf_state();
        !self.raft.raft.has_pending_conf()
            && conf.voters_outgoing.is_empty()
            && self.last_membership_change <= self.applied_index()
    }

    /// Returns true if the last configuration alone counts, whichever replica fails next.
    ///
    /// During joint consensus the majorities of both the former and the new voters are needed. A leader then waits
    /// further until a majority knows that the new majority suffices. If the leader failed earlier, the remaining
    /// members would still need both majorities, although a lost former voter may have been replaced.
    pub(super) fn configuration_is_complete(&self) -> bool {
        let raft = &self.raft.raft;
        if !raft.prs().conf().to_conf_state().voters_outgoing.is_empty() {
            return false;
        }
        let (own, at) = (self.identity.replica, self.configured.index);
        let has_committed = |(replica, progress): (&u64, &raft::Progress)| {
            (*replica == own || progress.committed_index >= at).then_some(*replica)
        };
        !self.leads()
            || raft.prs().has_quorum(&raft.prs().iter().filter_map(has_committed).collect())
    }

    /// Returns true if a voter was not a voter before the last change.
    pub(super) fn is_newcomer(&self, replica: u64) -> bool {
        self.configured.newcomers.contains(&replica)
    }

    /// Proposes a configuration. None during another change, because the core would replace the entry by an empty
    /// entry.
    pub(super) fn propose_configuration(&mut self, change: ConfChangeV2) -> Option<u64> {
        if !self.is_settled() {
            return None;
        }
        let index = self.raft.raft.raft_log.last_index() + 1;
        self.raft.propose_conf_change(vec![], change).is_ok().then_some(index)
    }

    /// Asks a majority to confirm the leader, on behalf of the waiting reads.
    fn ask_for_reads(&mut self) -> bool {
        // Before the leader commits an entry of its term, it does not know the commit index, and the core would drop
        // the question.
        if !self.reads.may_ask() || !self.leads() || !self.raft.raft.commit_to_current_term() {
            return false;
        }
        let question = self.reads.ask();
        if planted("kv_read_without_asking") {
            self.reads.confirm(question, self.applied.0);
        }
        self.raft.read_index(question.to_le_bytes().to_vec());
        true
    }

    fn answer_reads(&mut self, cx: &mut Context<'_>) {
        while let Some(due) = self.reads.take_due(self.applied.0) {
            let mut due = due.into_iter();
            while !due.as_slice().is_empty() {
                let together = reads::prefetch_reads(&self.store, due.as_slice());
                for read in due.by_ref().take(together) {
                    let mut reply = std::mem::take(&mut self.reply);
                    reply.clear();
                    self.answer_read(cx, read.method, &read.request, &mut reply);
                    read.responder.reply(cx, &reply);
                    self.reply = reply;
                }
            }
        }
    }

    /// Answers a read from the present state.
    pub(crate) fn answer_read(
        &mut self,
        cx: &Context<'_>,
        method: u16,
        request: &[u8],
        reply: &mut Vec<u8>,
    ) {
        if self.store.is_restoring() {
            Refusal::Restoring.encode(reply);
        } else if method == methods::SAVE {
            self.saves.answer(cx.now().as_ns(), &self.store, request, reply);
        } else if method == methods::LEASE {
            let clock_ms = self.lease_clock_ms(cx.clock_now().as_ns());
            match LeaseRequest::decode(request) {
                Ok(request) => request.answer(&self.store, clock_ms, reply),
                Err(error) => Refusal::Malformed(&error.to_string()).encode(reply),
            }
        } else {
            reads::answer(&self.store, method, request, reply);
        }
    }

    fn note_read_states(&mut self) {
        for state in std::mem::take(&mut self.raft.raft.read_states) {
            if let Ok(question) = <[u8; 8]>::try_from(&state.request_ctx[..]) {
                self.reads.confirm(u64::from_le_bytes(question), state.index);
            }
        }
    }

    /// After answers of peers: applies and answers at once the entries that became certain.
    pub(super) fn handle_progress(&mut self, cx: &mut Context<'_>) {
        self.note_read_states();
        self.answer_changes(cx);
        if self.leads() {
            self.answer_committed(cx);
        }
        self.answer_reads(cx);
    }

    fn handle_ready(
        &mut self,
        cx: &mut Context<'_>,
        links: &mut Links,
    ) -> Result<(), ReplicaError> {
        let mut ready = self.raft.ready();
        let number = ready.number();
        for message in ready.take_messages() {
            links.push(message);
        }
        let committed = ready.take_committed_entries();
        let read_states = ready.take_read_states();
        let held = ready.take_persisted_messages();
        let batch = self.keep(&ready)?;
        self.raft.advance_append_async(ready);
        self.raft.raft.read_states.extend(read_states);
        self.note_read_states();
        self.held.push_back((number, held));
        self.disk.write(batch);
        self.apply_committed(cx, &committed)?;
        self.note_durable(links)
    }

    /// Puts a ready's state into the log in memory, and into a batch for the durable log.
    fn keep(&mut self, ready: &Ready) -> Result<Batch, ReplicaError> {
        let mut batch = Batch { number: ready.number(), ..Batch::default() };
        if !ready.snapshot().is_empty() {
            batch.checkpoint = Some(self.install(ready.snapshot())?);
            self.installing = Some((ready.number(), ready.snapshot().get_metadata().index));
        }
        if let Some(hard_state) = ready.hs() {
            self.log.get_mut().set_hard_state(hard_state.clone());
            batch.hard_state = Some(hard_state.clone());
        }
        if !ready.entries().is_empty() {
            self.log.get_mut().append(ready.entries());
            self.stats.entries += ready.entries().len() as u64;
            if !self.disk.is_volatile() {
                batch.entries = ready.entries().clone();
            }
        }
        Ok(batch)
    }

    fn note_durable(&mut self, links: &mut Links) -> Result<(), ReplicaError> {
        let durable = self.disk.durable().map_err(|failure| ReplicaError::Log(failure.0))?;
        if durable > self.durable {
            self.durable = durable;
            self.raft.on_persist_ready(durable);
        }
        if let Some((_, index)) = self.installing.take_if(|(number, _)| *number <= durable) {
            self.raft.advance_apply_to(index);
        }
        while self.held.front().is_some_and(|(number, _)| *number <= durable) {
            for message in self.held.pop_front().into_iter().flat_map(|(_, messages)| messages) {
                links.push(message);
            }
        }
        Ok(())
    }

    fn note_unreachable(&mut self, links: &mut Links) {
        for peer in links.take_unreachable() {
            self.raft.report_unreachable(peer);
        }
        for peer in links.take_unoffered() {
            self.raft.report_snapshot(peer, raft::SnapshotStatus::Failure);
        }
    }

    pub(super) fn applied_index(&self) -> u64 {
        self.applied.0
    }
}

/// The settings, and a leader of as many replicas as the settings have peers, without an answer of the others.
#[cfg(test)]
pub(super) fn test_leader(nodes: u16) -> (ReplicaConfig, Member) {
    test_leader_with(nodes, Box::<crate::persist::Volatile>::default())
}

#[cfg(test)]
fn test_leader_with(nodes: u16, disk: Box<dyn LogStore>) -> (ReplicaConfig, Member) {
    use super::membership::replica_name;
    let at = |node: u16| std::net::SocketAddr::from(([127, 0, 0, 1], node));
    let config =
        ReplicaConfig::new(1, at(1), (1..=nodes).map(|node| (node, at(node))).collect(), 7);
    let name = |node| (replica_name(node, 5), at(node).to_string());
    let identity = Identity { cluster: 3, replica: replica_name(1, 5) };
    let members = (1..=nodes).map(name).collect();
    let mut member = Member::bootstrap(&config, identity, members, disk).expect("valid settings");
    member.raft.raft.become_candidate();
    member.raft.raft.become_leader();
    (config, member)
}

#[cfg(test)]
pub(super) fn test_endpoint() -> petrel::Endpoint {
    let nexus = petrel::Nexus::builder().start().expect("a nexus");
    nexus.endpoint(petrel::endpoint::EndpointConfig::default()).expect("an endpoint")
}
