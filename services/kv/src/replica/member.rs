//! A replica that belongs to a cluster: the Raft core with its log, the state, and who waits for what.
//!
//! What the Raft core wants done comes out of it as a *ready*: entries and votes to keep, messages to send, entries
//! to apply. Two things do not wait for one. A leader's messages may leave before its own log has the entries
//! (Raft dissertation §10.2.1), and where the log is in memory only, so may a follower's answer: what it says it
//! has is lost with it in either order. And what the leader knows to be committed it applies and answers at once,
//! from the writes that clients wait for; the ready brings the same entries later and they are skipped.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use hdrhistogram::Histogram;
use petrel::{Context, Responder};
use raft::eraftpb::{
    ConfChangeV2, ConfState, Entry, EntryType, HardState, Message, MessageType, Snapshot,
};
use raft::{RawNode, Ready, StateRole};

use super::book::{Book, BookChange, decode_members, encode_members};
use super::codec::{Reader, message_bytes};
use super::config::{ReadMode, ReplicaConfig, TICKS_PER_HEARTBEAT};
use super::links::{ANSWER_BYTES_MAX, Links};
use super::log::{Base, Log};
use super::reads::{self, Reads};
use super::rng::Rng;
use super::shared::Shared;
use super::snapshot::{Images, Incoming, Ticket};
use super::writes::Writes;
use super::{ReplicaError, ReplicaStats};
use crate::api::{AdminReply, Certainty, Leader, Refusal};
use crate::persist::{Batch, Checkpoint, Identity, LogStore, Recovered};
use crate::store::{Store, WARMED_MAX};

/// Bytes of entries in one of the core's messages, and in flight at most.
const MESSAGE_BYTES_MAX: u64 = 256 << 10;
const MESSAGES_IN_FLIGHT_MAX: usize = 256;

/// Bytes of entries that are not committed; beyond, writes are refused.
const UNCOMMITTED_BYTES_MAX: u64 = 256 << 20;

/// Bytes of committed entries that are applied in one go.
const APPLIED_BYTES_MAX: u64 = 1 << 20;

/// The longest time of a write that is told apart from longer ones.
const WRITE_NS_MAX: u64 = 60_000_000_000;

/// Commands that are worth a look at the memory that they need before they are applied.
const WARMED_MIN: usize = 4;

/// The log before the first entry of a cluster that begins: so whoever joins later gets a snapshot, which has
/// the configuration with which it began.
const FIRST_BASE: u64 = 1;

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
    /// Votes are not given before: what this replica promised a leader before it restarted, it has forgotten.
    deaf_until_ns: u64,
    is_put_off: bool,
    rng: Rng,
    reply: Vec<u8>,
    pub(super) stats: ReplicaStats,
    /// From the arrival of a client's write to its answer, in nanoseconds.
    pub(super) write_times: Histogram<u64>,
}

/// What a member begins with.
struct Begin {
    identity: Identity,
    base: Base,
    entries: Vec<Entry>,
    store: Store,
    book: Book,
    founders: Vec<(u64, String)>,
}

impl Member {
    /// One of those with which a cluster begins.
    pub(super) fn found(
        config: &ReplicaConfig,
        identity: Identity,
        founders: Vec<(u64, String)>,
        disk: Box<dyn LogStore>,
    ) -> Result<Self, ReplicaError> {
        let voters: Vec<u64> = founders.iter().map(|(replica, _)| *replica).collect();
        let base = Base {
            index: FIRST_BASE,
            term: FIRST_BASE,
            hard_state: HardState { term: FIRST_BASE, commit: FIRST_BASE, ..HardState::default() },
            conf_state: ConfState::from((voters, vec![])),
        };
        let mut book = Book::default();
        for (replica, address) in &founders {
            book.add(*replica, address.clone());
        }
        Self::begin_anew(
            config,
            Begin { identity, base, entries: vec![], store: Store::new(), book, founders },
            disk,
        )
    }

    /// One that a cluster takes in: it knows nothing yet.
    pub(super) fn join(
        config: &ReplicaConfig,
        identity: Identity,
        disk: Box<dyn LogStore>,
    ) -> Result<Self, ReplicaError> {
        let begin = Begin {
            identity,
            base: Base::default(),
            entries: vec![],
            store: Store::new(),
            book: Book::default(),
            founders: vec![],
        };
        Self::begin_anew(config, begin, disk)
    }

    /// One that was a member before it restarted.
    pub(super) fn resume(
        config: &ReplicaConfig,
        recovered: Recovered,
        disk: Box<dyn LogStore>,
        now_ns: u64,
    ) -> Result<Self, ReplicaError> {
        let Recovered { identity, hard_state, checkpoint, store, entries } = recovered;
        let Checkpoint { index, term, conf_state, book, .. } = checkpoint;
        let (book, founders) =
            unpack(&book).map_err(|error| ReplicaError::Log(error.to_string()))?;
        let base = Base { index, term, hard_state, conf_state };
        let begin = Begin { identity, base, entries, store, book, founders };
        let mut member = Self::begin(config, begin, disk)?;
        member.deaf_until_ns = now_ns + config.election.as_nanos() as u64;
        Ok(member)
    }

    /// Begins with an empty log, which has to last before anything is said.
    fn begin_anew(
        config: &ReplicaConfig,
        begin: Begin,
        disk: Box<dyn LogStore>,
    ) -> Result<Self, ReplicaError> {
        let mut member = Self::begin(config, begin, disk)?;
        let hard_state = raft::Storage::initial_state(&member.log).map(|state| state.hard_state);
        let checkpoint = member.checkpoint();
        // Number 0: the core's own batches begin at 1.
        member.disk.write(Batch {
            identity: Some(member.identity),
            checkpoint: Some(checkpoint),
            hard_state: hard_state.ok(),
            ..Batch::default()
        });
        Ok(member)
    }

    fn begin(
        config: &ReplicaConfig,
        begin: Begin,
        disk: Box<dyn LogStore>,
    ) -> Result<Self, ReplicaError> {
        let Begin { identity, base, entries, store, book, founders } = begin;
        let applied = (base.index, base.term);
        let log = Log::new(base, entries);
        let raft =
            RawNode::new(&core_config(config, identity, applied.0), log.clone(), &config.logger)
                .map_err(|error| ReplicaError::Raft(error.to_string()))?;
        let role = (raft.raft.term, raft.raft.state);
        let mut member = Self {
            identity,
            raft,
            log,
            store,
            book,
            founders,
            applied,
            writes: Writes::default(),
            reads: Reads::default(),
            changes: Vec::new(),
            disk,
            held: VecDeque::new(),
            durable: 0,
            installing: None,
            images: Images::default(),
            incoming: None,
            offers: BTreeMap::new(),
            joining: BTreeMap::new(),
            role,
            no_lease_in: 0,
            deaf_until_ns: 0,
            is_put_off: false,
            rng: Rng::new(config.seed ^ identity.replica),
            reply: Vec::new(),
            stats: ReplicaStats::default(),
            write_times: Histogram::new_with_bounds(1, WRITE_NS_MAX, 2)
                .map_err(|error| ReplicaError::Raft(error.to_string()))?,
        };
        member.draw_election_timeout(config);
        Ok(member)
    }

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
            // While the others look at what was proposed, the memory comes that it will need.
            self.warm_writes(WARMED_MAX);
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

    /// The core offers a snapshot once, and waits until the replica has it or somebody says that it will not
    /// come. An offer may be lost, and so may the word that it could not be taken: where nobody fetches it for a
    /// while, it is offered again.
    fn tend_offers(&mut self, config: &ReplicaConfig) {
        let asked = self.images.asked();
        let mut offers = BTreeMap::new();
        for (peer, progress) in self.raft.raft.prs().iter() {
            if progress.state == raft::ProgressState::Snapshot {
                let before = self.offers.get(peer).filter(|(before, _)| *before == asked);
                offers.insert(*peer, (asked, before.map_or(0, |(_, ticks)| ticks + 1)));
            }
        }
        let is_old = |_: &u64, (_, ticks): &mut (u64, usize)| *ticks > 2 * config.election_ticks();
        for (peer, _) in offers.extract_if(.., is_old) {
            self.raft.report_snapshot(peer, raft::SnapshotStatus::Failure);
        }
        self.offers = offers;
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
            || cfg!(petrel_break = "kv_speak_before_sync")
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
            let refusal = encoded(Refusal::NotLeader { leader: self.leader() });
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
            let refusal = encoded(Refusal::Unavailable { certainty, reason });
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
        self.propose_entries(vec![Entry { context, ..Entry::default() }]).then_some(index)
    }

    /// None while another change is under way: the core would put an entry without any in the place of this one.
    pub(super) fn propose_configuration(&mut self, change: ConfChangeV2) -> Option<u64> {
        let conf = self.raft.raft.prs().conf().to_conf_state();
        if self.raft.raft.has_pending_conf() || !conf.voters_outgoing.is_empty() {
            return None;
        }
        let index = self.raft.raft.raft_log.last_index() + 1;
        self.raft.propose_conf_change(vec![], change).is_ok().then_some(index)
    }

    /// Asks a majority on behalf of the reads that wait.
    fn ask_for_reads(&mut self) -> bool {
        // Before this the core would drop the question: it does not know what is committed.
        if !self.reads.has_queued() || !self.leads() || !self.raft.raft.commit_to_current_term() {
            return false;
        }
        let question = self.reads.ask();
        #[cfg(petrel_break = "kv_read_without_asking")]
        self.reads.confirm(question, self.applied.0);
        self.raft.read_index(question.to_le_bytes().to_vec());
        true
    }

    fn answer_reads(&mut self, cx: &mut Context<'_>) {
        while let Some(due) = self.reads.take_due(self.applied.0) {
            for read in due {
                self.reply.clear();
                reads::answer(&self.store, read.method, &read.request, &mut self.reply);
                read.responder.reply(cx, &self.reply);
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
        if self.leads() {
            self.answer_committed(cx);
        }
        self.answer_reads(cx);
    }

    fn answer_committed(&mut self, cx: &mut Context<'_>) {
        let log = &self.raft.raft.raft_log;
        let certain = log.committed.min(log.persisted);
        #[cfg(petrel_break = "kv_answer_before_commit")]
        let certain = certain.max(log.last_index());
        let mut warmed = self.applied.0;
        while self.writes.next_index() == Some(self.applied.0 + 1) && self.applied.0 < certain {
            let left = certain - self.applied.0;
            if self.applied.0 == warmed && left >= WARMED_MIN as u64 {
                let count = left.min(WARMED_MAX as u64);
                self.warm_writes(count as usize);
                warmed += count;
            }
            self.apply_next(cx);
        }
    }

    /// Has the memory read that the next writes need.
    fn warm_writes(&self, count: usize) {
        self.store.warm(self.writes.next(self.applied.0 + 1).take(count));
    }

    /// Applies the write that is both the next in the log and the next that a client waits for.
    fn apply_next(&mut self, cx: &mut Context<'_>) {
        let index = self.applied.0 + 1;
        let write = self.writes.take(index).expect("it was looked at");
        self.reply.clear();
        self.store.apply(index, &write.command, &mut self.reply);
        self.applied = (index, self.raft.raft.term);
        self.stats.applied += 1;
        self.write_times.saturating_record(cx.now_ns().saturating_sub(write.at_ns));
        write.responder.reply(cx, &self.reply);
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

    fn apply_committed(
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
            self.apply_next(cx);
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
        Ok(())
    }

    fn answer_change(&mut self, cx: &mut Context<'_>, index: u64) {
        let mut reply = Vec::new();
        AdminReply::Done.encode(&mut reply);
        while let Some(place) = self.changes.iter().position(|(at, _)| *at == index) {
            self.changes.swap_remove(place).1.reply(cx, &reply);
        }
    }

    /// Whether this replica leads, and nobody else can as far as it knows.
    pub(super) fn leads(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    /// Who leads, for clients.
    pub(super) fn leader(&self) -> Option<Leader<'_>> {
        let replica = self.raft.raft.leader_id;
        let address = self.book.members.get(&replica)?;
        Some(Leader { node: super::book::node_of(replica), address })
    }

    /// Whether reads that have to see every write may be answered now, without asking anybody.
    pub(super) fn may_read_now(&self, links: &Links, now_ns: u64, config: &ReplicaConfig) -> bool {
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

    fn note_unreachable(&mut self, links: &mut Links) {
        for peer in links.take_unreachable() {
            self.raft.report_unreachable(peer);
        }
        for peer in links.take_unoffered() {
            self.raft.report_snapshot(peer, raft::SnapshotStatus::Failure);
        }
    }

    /// Looks whether this replica has begun or ceased to lead.
    fn note_role(&mut self, cx: &mut Context<'_>, config: &ReplicaConfig) {
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
    fn draw_election_timeout(&mut self, config: &ReplicaConfig) {
        let ticks = config.election_ticks();
        let drawn = ticks + self.rng.below(ticks as u64) as usize;
        self.raft.raft.set_randomized_election_timeout(drawn);
    }

    fn renew_election_timeout(&mut self, config: &ReplicaConfig) {
        if (self.raft.raft.term, self.raft.raft.state) != self.role {
            self.draw_election_timeout(config);
        }
    }

    /// Drops entries that nobody will need, or few.
    fn keep_log_short(&mut self, config: &ReplicaConfig) {
        let (entries, bytes) = self.log.size();
        let is_long = entries > config.log_entries_max || bytes > config.log_bytes_max;
        // Even when the last image is of a moment ago: the bytes may be in the entries that are kept.
        let has_new =
            self.applied.0 > self.images.last_index() + config.log_entries_kept as u64 / 2;
        if is_long && has_new {
            self.take_image();
            let checkpoint = self.checkpoint();
            self.disk.checkpoint(checkpoint);
            let kept =
                if bytes > config.log_bytes_max { 0 } else { config.log_entries_kept as u64 };
            // The core has not seen yet that the last ones were applied.
            let index =
                (self.applied.0 - kept.min(self.applied.0)).min(self.raft.raft.raft_log.applied);
            self.log.get_mut().compact_to(index);
        } else if self.log.get_mut().wants_image() {
            self.take_image();
        }
    }

    /// Makes a snapshot of what is applied, for other replicas.
    fn take_image(&mut self) {
        let (index, term) = self.applied;
        self.stats.images += 1;
        self.images.add(index, self.store.image());
        let ticket = Ticket { from: self.identity.replica, index, book: self.pack() }.encode();
        let conf = self.log.get_mut().conf_state().clone();
        self.log.get_mut().set_image(index, term, conf, ticket);
    }

    fn checkpoint(&self) -> Checkpoint {
        let (index, term) = self.applied;
        let conf_state = self.log.get_mut().conf_state().clone();
        Checkpoint { index, term, conf_state, book: self.pack(), image: self.store.image() }
    }

    /// Book and founders, as a checkpoint has them.
    fn pack(&self) -> Vec<u8> {
        let mut out = Vec::new();
        encode_members(self.founders.iter().map(|(replica, at)| (*replica, at)), &mut out);
        out.extend(self.book.encode());
        out
    }

    /// A leader offers a snapshot: tells what to fetch, if it is not being fetched.
    fn begin_fetch(&mut self, message: Message, now_ns: u64) -> Option<Fetch> {
        let ticket = Ticket::decode(&message.get_snapshot().data).ok()?;
        if ticket.index <= self.applied.0 {
            // The core answers how far this replica is, without which its owner would offer nothing else.
            self.step(message, now_ns);
            return None;
        }
        // One that is fetched, or waits for the core's ready, is not put aside for another.
        let is_waiting = self.raft.raft.raft_log.unstable.snapshot.is_some();
        if is_waiting || matches!(self.incoming, Some(Incoming::Fetching(_))) {
            return None;
        }
        self.incoming = Some(Incoming::Fetching(ticket.index));
        self.stats.snapshots_fetched += 1;
        Some(Fetch { from: ticket.from, index: ticket.index, message })
    }

    /// A snapshot has come, as a whole or not at all. Tells whether it is taken.
    pub(super) fn end_fetch(&mut self, fetch: Fetch, store: Option<Store>) -> bool {
        if self.incoming.as_ref().is_none_or(|incoming| incoming.index() != fetch.index) {
            return false;
        }
        self.incoming = store.map(|store| Incoming::Fetched(fetch.index, Box::new(store)));
        // It is for the core to say whether it is still wanted; if so, the store waits for its ready.
        let is_wanted = self.incoming.is_some()
            && self.raft.step(fetch.message).is_ok()
            && self.raft.snap().is_some_and(|snapshot| !snapshot.is_empty());
        if !is_wanted {
            self.incoming = None;
        }
        is_wanted
    }

    fn install(&mut self, snapshot: &Snapshot) -> Result<Checkpoint, ReplicaError> {
        let (index, term) = (snapshot.get_metadata().index, snapshot.get_metadata().term);
        let broken = |what: &str| ReplicaError::Log(format!("a snapshot at {index}: {what}"));
        let Some(Incoming::Fetched(fetched, store)) = self.incoming.take() else {
            return Err(broken("its content was not fetched"));
        };
        let ticket = Ticket::decode(&snapshot.data).map_err(|error| broken(&error.to_string()))?;
        if fetched != index || ticket.index != index {
            return Err(broken("its content is that of another"));
        }
        let (book, founders) = unpack(&ticket.book).map_err(|error| broken(&error.to_string()))?;
        let conf_state = snapshot.get_metadata().get_conf_state().clone();
        self.log.get_mut().restart_at(index, term, conf_state);
        (self.store, self.book, self.founders) = (*store, book, founders);
        self.applied = (index, term);
        self.images = Images::default();
        Ok(self.checkpoint())
    }

    pub(super) fn applied_index(&self) -> u64 {
        self.applied.0
    }
}

/// A snapshot that is to be fetched, and the message that offered it.
pub(super) struct Fetch {
    pub(super) from: u64,
    pub(super) index: u64,
    message: Message,
}

fn unpack(bytes: &[u8]) -> Result<(Book, Vec<(u64, String)>), super::codec::Garbled> {
    let mut input = Reader::new(bytes);
    let founders = decode_members(&mut input)?;
    Ok((Book::decode(input.rest())?, founders))
}

/// A refusal as the answer to a call of any method.
fn encoded(refusal: Refusal<'_>) -> Vec<u8> {
    let mut reply = Vec::new();
    refusal.encode(&mut reply);
    reply
}

fn core_config(config: &ReplicaConfig, identity: Identity, applied: u64) -> raft::Config {
    let election_tick = config.election_ticks();
    raft::Config {
        id: identity.replica,
        applied,
        election_tick,
        heartbeat_tick: TICKS_PER_HEARTBEAT,
        // From this range; what the core draws itself does not count: see `draw_election_timeout`.
        min_election_tick: election_tick,
        max_election_tick: 2 * election_tick,
        max_size_per_msg: MESSAGE_BYTES_MAX,
        max_inflight_msgs: MESSAGES_IN_FLIGHT_MAX,
        max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
        max_committed_size_per_ready: APPLIED_BYTES_MAX,
        check_quorum: true,
        pre_vote: true,
        // Followers learn with the next append, or heartbeat, how far the log is committed.
        skip_bcast_commit: true,
        ..raft::Config::default()
    }
}
