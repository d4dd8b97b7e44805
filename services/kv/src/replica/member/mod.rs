//! A replica that belongs to a cluster: the Raft core with its log, the state, and who waits for what.
//!
//! What the Raft core wants done comes out of it as a *ready*: entries and votes to keep, messages to send, entries
//! to apply. Two things do not wait for one. A leader's messages may leave before its own log has the entries
//! (Raft dissertation §10.2.1), and where the log is in memory only, so may a follower's answer: what it says it
//! has is lost with it in either order. And what the leader knows to be committed it applies and answers at once,
//! from the writes that clients wait for; the ready brings the same entries later and they are skipped.

mod apply;
mod begin;
mod image;
mod role;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use hdrhistogram::Histogram;
use petrel::Context;
use petrel::endpoint::Responder;
use petrel_planted::planted;
use raft::eraftpb::{ConfChangeV2, Entry, Message, MessageType};
use raft::{RawNode, Ready, StateRole};

pub(super) use image::Fetch;

use super::book::{Book, BookChange};
use super::codec::message_bytes;
use super::config::ReplicaConfig;
use super::links::{ANSWER_BYTES_MAX, Links};
use super::log::Log;
use super::reads::{self, Reads};
use super::rng::Rng;
use super::shared::Shared;
use super::snapshot::{Images, Incoming};
use super::writes::Writes;
use super::{ReplicaError, ReplicaStats};
use crate::api::{Certainty, Refusal};
use crate::persist::{Batch, Identity, LogStore};
use crate::store::Store;

/// The last configuration that was applied.
struct Configured {
    index: u64,
    /// Its voters that the last complete one did not have. A change of several voters takes two steps (joint
    /// consensus): first the majorities of both configurations are needed, then that of the new one.
    newcomers: BTreeSet<u64>,
}

pub(super) struct Member {
    pub(super) identity: Identity,
    pub(super) raft: RawNode<Log>,
    pub(super) log: Log,
    pub(super) store: Store,
    pub(super) book: Book,
    /// With whom the cluster began, as far as this replica was there.
    pub(super) founders: Vec<(u64, String)>,
    /// The last entry that the store has seen, and its term.
    applied: (u64, u64),
    pub(super) writes: Writes,
    pub(super) reads: Reads,
    /// Changes of the members that somebody waits for, by index.
    pub(super) changes: Vec<(u64, Responder)>,
    configured: Configured,
    /// The last change of the book that this replica has proposed while it leads: its index.
    book_changes: u64,
    disk: Box<dyn LogStore>,
    /// Messages that may leave when the batch with this number is durable.
    held: VecDeque<(u64, Vec<Message>)>,
    durable: u64,
    /// The number of the batch with a snapshot that is not durable yet, and the snapshot's index.
    installing: Option<(u64, u64)>,
    pub(super) images: Images,
    incoming: Option<Incoming>,
    /// Replicas that a snapshot was offered to: chunks that were asked for when last looked, and ticks since.
    offers: BTreeMap<u64, (u64, usize)>,
    /// Replicas that ask to be taken in, by their addresses.
    pub(super) joining: BTreeMap<u64, String>,
    /// Term and whether this replica leads in it, when last looked.
    role: (u64, StateRole),
    /// No leases in this term: leadership was to be handed over, and who gets it asks nobody.
    pub(super) no_lease_in: u64,
    /// Term and end of the lease as it was when last looked. It does not get shorter within a term, unless the
    /// configuration changes.
    lease: Option<(u64, u64)>,
    /// Votes are not given before: what this replica promised a leader before it restarted, it has forgotten.
    deaf_until_ns: u64,
    is_put_off: bool,
    rng: Rng,
    reply: Vec<u8>,
    pub(super) stats: ReplicaStats,
    /// From the arrival of a client's write to its answer, in nanoseconds.
    pub(super) write_times: Histogram<u64>,
}

impl Member {
    pub(super) fn set_waker(&mut self, waker: std::task::Waker) {
        self.disk.set_waker(waker);
    }

    /// Does what is to be done after a turn of the event loop. Tells whether there is more, after what was said
    /// has left.
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
        let has_proposed = self.propose(cx);
        let has_asked = self.ask_for_reads();
        self.take_messages(links);
        links.send(cx, self.identity.cluster, shared);
        if (has_proposed || has_asked) && !self.is_put_off {
            self.is_put_off = true;
            return Ok(true);
        }
        if std::mem::take(&mut self.is_put_off) {
            self.prepare_writes();
        }
        while self.raft.has_ready() {
            self.handle_ready(cx, links)?;
        }
        self.note_role(cx, config);
        self.answer_reads(cx);
        self.keep_log_short(config);
        links.send(cx, self.identity.cluster, shared);
        Ok(false)
    }

    /// A tick of the Raft core's clock.
    pub(super) fn tick(&mut self, config: &ReplicaConfig) {
        // The core cannot stand for election between a snapshot and the word that it has been applied.
        if self.installing.is_none() {
            self.raft.tick();
        }
        self.renew_election_timeout(config);
        if self.raft.raft.state == StateRole::Leader {
            self.tend_members();
            self.tend_offers(config);
        }
    }

    /// Takes in what a peer says. Tells what to answer at once.
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
                self.step(message, now_ns);
            }
        }
        self.renew_election_timeout(config);
        fetch
    }

    fn step(&mut self, message: Message, now_ns: u64) {
        let kind = message.get_msg_type();
        let is_vote = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
        // A leader that believes more to be here than is would make the core panic.
        let last_index = self.raft.raft.raft_log.last_index();
        let is_wrong = kind == MessageType::MsgHeartbeat && message.commit > last_index;
        let is_early = kind == MessageType::MsgTimeoutNow && self.installing.is_some();
        if (is_vote && now_ns < self.deaf_until_ns) || is_wrong || is_early {
            self.stats.messages_ignored += 1;
            return;
        }
        self.stats.messages += 1;
        if self.raft.step(message).is_err() {
            self.stats.messages_ignored += 1;
        }
    }

    /// Messages for `to` that may leave now: for the answer to its call.
    pub(super) fn take_answer(&mut self, to: u64) -> Vec<Message> {
        if !self.may_speak_early() {
            return Vec::new();
        }
        let messages = &mut self.raft.raft.msgs;
        let own = |message: &&Message| message.to == to;
        // There is room for so much. Entries for somebody who is far behind go as calls.
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

    /// Whether this replica has that leader in that term; of nobody's message, yes.
    pub(super) fn follows(&self, leader: u64, term: u64) -> bool {
        let raft = &self.raft.raft;
        term == 0 || (raft.term == term && raft.leader_id == leader)
    }

    /// Whether messages need not wait for what is to be kept.
    fn may_speak_early(&self) -> bool {
        self.disk.is_volatile()
            || self.raft.raft.state == StateRole::Leader
            || planted("kv_speak_before_sync")
    }

    fn take_messages(&mut self, links: &mut Links) {
        if self.may_speak_early() {
            for message in std::mem::take(&mut self.raft.raft.msgs) {
                links.push(message);
            }
        }
    }

    /// Proposes what clients have sent, in one piece. Tells whether there was something.
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

    /// Proposes a change of the book, or of the configuration; tells its index.
    pub(super) fn propose_book(&mut self, change: &BookChange) -> Option<u64> {
        let context = Bytes::from(change.encode());
        let index = self.raft.raft.raft_log.last_index() + 1;
        if !self.propose_entries(vec![Entry { context, ..Entry::default() }]) {
            return None;
        }
        self.book_changes = index;
        Some(index)
    }

    /// Whether no change of the members is in the log that has not been applied, of a leader: of entries of others
    /// before it the core believes that each is one.
    pub(super) fn is_settled(&self) -> bool {
        let conf = self.raft.raft.prs().conf().to_conf_state();
        !self.raft.raft.has_pending_conf()
            && conf.voters_outgoing.is_empty()
            && self.book_changes <= self.applied_index()
    }

    /// Whether the cluster is as its last configuration says, whoever fails next.
    ///
    /// It is not while the majorities of the former voters and of the new ones are both needed (joint consensus). Nor
    /// is it, as far as a leader knows, before a majority has heard that the new one is enough: if the leader failed
    /// then, the others would go on to need both, and one of the former voters may have been replaced because it was lost.
    pub(super) fn configuration_is_complete(&self) -> bool {
        let raft = &self.raft.raft;
        if !raft.prs().conf().to_conf_state().voters_outgoing.is_empty() {
            return false;
        }
        let (own, at) = (self.identity.replica, self.configured.index);
        let has_heard = |(replica, progress): (&u64, &raft::Progress)| {
            (*replica == own || progress.committed_index >= at).then_some(*replica)
        };
        !self.leads() || raft.prs().has_quorum(&raft.prs().iter().filter_map(has_heard).collect())
    }

    /// Whether a voter was none before the last change.
    pub(super) fn is_newcomer(&self, replica: u64) -> bool {
        self.configured.newcomers.contains(&replica)
    }

    /// None while another change is under way: the core would put an entry without any in the place of this one.
    pub(super) fn propose_configuration(&mut self, change: ConfChangeV2) -> Option<u64> {
        if !self.is_settled() {
            return None;
        }
        let index = self.raft.raft.raft_log.last_index() + 1;
        self.raft.propose_conf_change(vec![], change).is_ok().then_some(index)
    }

    /// Asks a majority on behalf of the reads that wait.
    fn ask_for_reads(&mut self) -> bool {
        // Before this the core would drop the question: it does not know what is committed.
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
                let together = reads::fetch_together(&self.store, due.as_slice());
                for read in due.by_ref().take(together) {
                    self.reply.clear();
                    reads::answer(&self.store, read.method, &read.request, &mut self.reply);
                    read.responder.reply(cx, &self.reply);
                }
            }
        }
    }

    fn note_read_states(&mut self) {
        for state in std::mem::take(&mut self.raft.raft.read_states) {
            if let Ok(question) = <[u8; 8]>::try_from(&state.request_ctx[..]) {
                self.reads.confirm(u64::from_le_bytes(question), state.index);
            }
        }
    }

    /// After answers of peers: what became certain by them is applied and answered at once.
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

    /// Puts what is to be kept into the log in memory, and into a batch for the one that lasts.
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
