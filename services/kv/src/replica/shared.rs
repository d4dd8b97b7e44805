//! What a replica's handlers, continuations and tasks have in common, all on the endpoint's thread.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use petrel::{CallOptions, Context, Handle, Handled, Reply, Request, Session, Status};

use super::book::{node_of, replica_name};
use super::codec::{frame_bytes, read_frame, write_frame};
use super::config::ReplicaConfig;
use super::founding::{Beginning, find_beginning};
use super::hello::{Hello, Join};
use super::links::{Links, Sent, leads_in};
use super::member::{Fetch, Member};
use super::reads::{self, Read};
use super::rng::Rng;
use super::snapshot::{ChunkReply, ChunkRequest};
use super::writes::Write;
use super::{ReplicaError, methods};
use crate::api::{Certainty, Refusal};
use crate::persist::{Identity, LogStore};
use crate::store::{Builder, Store};

/// A replica's state, as all who work on it have it.
#[derive(Clone)]
pub(super) struct Shared(Rc<RefCell<State>>);

pub(super) struct State {
    pub(super) config: ReplicaConfig,
    pub(super) handle: Handle,
    /// This replica's name, unless its log has another.
    name: u64,
    pub(super) links: Links,
    pub(super) member: Option<Member>,
    /// The log, until there is a member that has it.
    disk: Option<Box<dyn LogStore>>,
    /// What was last heard of others, by their addresses.
    heard: BTreeMap<SocketAddr, Hello>,
    /// Addresses that a task keeps in touch with.
    dialled: BTreeSet<SocketAddr>,
    ticks_due: u32,
    /// Why the replica has to stop.
    failure: Option<ReplicaError>,
    rng: Rng,
    reply: Vec<u8>,
}

/// How long one replica waits for another's answer to a question.
const QUESTION: std::time::Duration = std::time::Duration::from_secs(2);

/// How long a chunk of a snapshot may take.
const CHUNK: std::time::Duration = std::time::Duration::from_secs(10);

/// Ticks of the Raft core that are made up for at most, after the process stood still: as if time had stood
/// still, too. Elections because of one's own pause help nobody.
const TICKS_DUE_MAX: u32 = 2;

impl Shared {
    pub(super) fn new(
        config: ReplicaConfig,
        handle: Handle,
        member: Option<Member>,
        disk: Option<Box<dyn LogStore>>,
    ) -> Self {
        let mut rng = Rng::new(config.seed);
        let name = match &member {
            Some(member) => member.identity.replica,
            None if cfg!(petrel_break = "kv_keeps_name") => replica_name(config.node, 1),
            None => replica_name(config.node, rng.next()),
        };
        let state = State {
            config,
            handle,
            name,
            links: Links::default(),
            member,
            disk,
            heard: BTreeMap::new(),
            dialled: BTreeSet::new(),
            ticks_due: 0,
            failure: None,
            rng,
            reply: Vec::new(),
        };
        Self(Rc::new(RefCell::new(state)))
    }

    pub(super) fn borrow_mut(&self) -> std::cell::RefMut<'_, State> {
        self.0.borrow_mut()
    }

    pub(super) fn borrow(&self) -> std::cell::Ref<'_, State> {
        self.0.borrow()
    }

    /// What is to be done after a turn of the event loop.
    pub(super) fn turn(&self, cx: &mut Context<'_>) -> Result<bool, ReplicaError> {
        let state = &mut *self.borrow_mut();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let State { config, links, member, .. } = state;
        let Some(member) = member else {
            state.ticks_due = 0;
            return Ok(false);
        };
        for _ in 0..std::mem::take(&mut state.ticks_due) {
            member.tick(config);
        }
        let more = member.turn(cx, links, self, config);
        if let Err(failure) = &more {
            state.failure = Some(failure.clone());
        }
        more
    }

    /// Lets the Raft core's clock tick.
    pub(super) async fn keep_ticking(self) {
        let (handle, tick) = {
            let state = self.borrow();
            (state.handle.clone(), state.config.tick())
        };
        loop {
            handle.sleep(tick).await;
            let state = &mut *self.borrow_mut();
            state.ticks_due = (state.ticks_due + 1).min(TICKS_DUE_MAX);
            state.dial_members(&self);
        }
    }

    /// Lets the event loop turn when something has become durable.
    pub(super) async fn keep_writing(self) {
        poll_fn(|cx| {
            let state = &mut *self.borrow_mut();
            if let Some(member) = &mut state.member {
                member.set_waker(cx.waker().clone());
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Keeps a session to whoever is at an address.
    async fn keep_in_touch(self, address: SocketAddr) {
        let (handle, pause) = {
            let state = self.borrow();
            (state.handle.clone(), state.config.heartbeat)
        };
        loop {
            if let Ok(session) = handle.connect(address).await {
                self.talk(&handle, address, &session).await;
                session.close();
            }
            handle.sleep(pause).await;
        }
    }

    /// Asks who is there, now and then until it is a member of this cluster, and then until it goes away.
    async fn talk(&self, handle: &Handle, address: SocketAddr, session: &Session) {
        loop {
            let hello = self.borrow().hello().encode();
            let options = CallOptions::new().timeout(QUESTION);
            let Ok(answer) = session.start_with(methods::HELLO, &hello, options).await else {
                return;
            };
            let Ok(Some(hello)) = Hello::decode(&answer) else { return };
            let peer = hello.replica;
            let is_fellow = self.borrow_mut().meet(self, address, hello, session);
            if is_fellow {
                self.keep_listening(handle, address, session).await;
                self.borrow_mut().links.remove(peer, session);
                return;
            }
            let pause = self.borrow().config.heartbeat;
            if handle.timeout(pause, session.left()).await.is_ok() {
                return;
            }
        }
    }

    /// Hears now and then whom a fellow knows, until it goes away: who was away when somebody became a member may
    /// have that one as its leader, and has to find it before it has its log.
    async fn keep_listening(&self, handle: &Handle, address: SocketAddr, session: &Session) {
        while handle.timeout(QUESTION, session.left()).await.is_err() {
            let hello = self.borrow().hello().encode();
            let options = CallOptions::new().timeout(QUESTION);
            let Ok(answer) = session.start_with(methods::HELLO, &hello, options).await else {
                continue;
            };
            if let Ok(Some(hello)) = Hello::decode(&answer) {
                self.borrow_mut().heard.insert(address, hello);
            }
        }
    }

    /// A call with Raft's messages has ended.
    pub(super) fn raft_ended(&self, cx: &mut Context<'_>, sent: Sent, reply: &Reply) {
        let state = &mut *self.borrow_mut();
        state.links.ended(sent, reply);
        let Some(member) = &mut state.member else { return };
        let Ok(answer) = reply.message() else { return };
        if answer.is_empty() {
            return;
        }
        match read_frame(answer, member.identity.replica) {
            Ok((cluster, messages)) if cluster == member.identity.cluster => {
                let fetch = member.handle_messages(messages, cx.now_ns(), &state.config);
                member.handle_progress(cx);
                if let Some(fetch) = fetch {
                    // Where it cannot be had, its owner offers it again when nobody has asked for a while.
                    let _ = self.begin_fetch(state, fetch);
                }
            }
            _ => member.stats.messages_ignored += 1,
        }
    }

    /// A peer's messages.
    pub(super) fn handle_raft(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let state = &mut *self.borrow_mut();
        let Some(member) = &mut state.member else {
            return request.fail(cx, Status::FailedPrecondition, "this replica is no member yet");
        };
        let Identity { cluster, replica } = member.identity;
        let (theirs, messages) = match read_frame(request.data(), replica) {
            Ok(frame) => frame,
            Err(error) => return request.fail(cx, Status::InvalidArgument, &error.to_string()),
        };
        if theirs != cluster {
            return request.fail(cx, Status::FailedPrecondition, "this is another cluster");
        }
        let from = messages.first().map_or(0, |message| message.from);
        let told_in = messages.iter().map(leads_in).max().unwrap_or(0);
        let ignored = member.stats.messages_ignored;
        let fetch = member.handle_messages(messages, cx.now_ns(), &state.config);
        if fetch.is_some_and(|fetch| !self.begin_fetch(state, fetch)) {
            let text = "whoever has the snapshot cannot be reached from here";
            return request.fail(cx, Status::Unavailable, text);
        }
        let Some(member) = &mut state.member else { unreachable!("it is one for good") };
        // A leader counts on it for its lease that who hears it elects nobody else for a while.
        let denies = member.stats.messages_ignored != ignored || !member.follows(from, told_in);
        let answer = if denies { Vec::new() } else { member.take_answer(from) };
        if answer.is_empty() && !denies {
            return request.reply(cx, &[]);
        }
        let bytes = frame_bytes(&answer);
        request.reply_with(cx, bytes, |_, out| {
            write_frame(cluster, &answer, out);
            bytes
        })
    }

    /// Fetches a snapshot, and tells its owner if that fails. Tells whether its owner can be reached.
    fn begin_fetch(&self, state: &mut State, fetch: Fetch) -> bool {
        let Some(session) = state.links.session(fetch.from).cloned() else {
            if let Some(member) = &mut state.member {
                member.end_fetch(fetch, None);
            }
            return false;
        };
        let shared = self.clone();
        state.handle.spawn(async move {
            let store = fetch_store(&session, fetch.index).await;
            let end = |state: &mut State| {
                let member = state.member.as_mut();
                member.is_some_and(|member| member.end_fetch(fetch, store))
            };
            let is_taken = end(&mut shared.borrow_mut());
            if !is_taken {
                let name = shared.borrow().own_name().to_le_bytes();
                let options = CallOptions::new().timeout(QUESTION);
                // If this is lost, the owner notices that nobody asks for the snapshot.
                let _ = session.start_with(methods::SNAPSHOT_FAILED, &name, options).await;
            }
        });
        true
    }

    /// Somebody says who it is.
    pub(super) fn handle_hello(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        match Hello::decode(request.data()) {
            Ok(Some(_)) => {
                let hello = self.borrow().hello().encode();
                request.reply(cx, &hello)
            }
            Ok(None) => {
                request.fail(cx, Status::FailedPrecondition, "the replicas' versions do not agree")
            }
            Err(error) => request.fail(cx, Status::InvalidArgument, &error.to_string()),
        }
    }

    pub(super) fn handle_join(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let joined = match Join::decode(request.data()) {
            Err(error) => return request.fail(cx, Status::InvalidArgument, &error.to_string()),
            Ok(join) => match &mut self.borrow_mut().member {
                Some(member) => member.handle_join(join),
                None => Err("this replica is no member yet"),
            },
        };
        match joined {
            Ok(()) => request.reply(cx, &[]),
            Err(why) => request.fail(cx, Status::FailedPrecondition, why),
        }
    }

    pub(super) fn handle_snapshot(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let answer = match (ChunkRequest::decode(request.data()), &mut self.borrow_mut().member) {
            (Err(_), _) => Err("the request is none for a chunk"),
            (_, None) => Err("this replica is no member yet"),
            (Ok(wanted), Some(member)) => member.images.answer(wanted),
        };
        match answer {
            Ok(chunk) => request.reply(cx, &chunk),
            Err(why) => request.fail(cx, Status::NotFound, why),
        }
    }

    pub(super) fn handle_snapshot_failed(
        &self,
        cx: &mut Context<'_>,
        request: Request<'_>,
    ) -> Handled {
        let peer = <[u8; 8]>::try_from(request.data()).map(u64::from_le_bytes);
        if let (Ok(peer), Some(member)) = (peer, &mut self.borrow_mut().member) {
            member.raft.report_snapshot(peer, raft::SnapshotStatus::Failure);
        }
        request.reply(cx, &[])
    }

    /// A client writes.
    pub(super) fn handle_write(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let state = &mut *self.borrow_mut();
        state.reply.clear();
        let refusal = match &state.member {
            None => Some(Refusal::NotLeader { leader: None }),
            Some(member) if !member.leads() => Some(Refusal::NotLeader { leader: member.leader() }),
            Some(member) if member.writes.len() >= state.config.writes_max => {
                let (certainty, reason) = (Certainty::NotApplied, "too many writes wait already");
                Some(Refusal::Unavailable { certainty, reason })
            }
            Some(_) => None,
        };
        if let Some(refusal) = refusal {
            refusal.encode(&mut state.reply);
            return request.reply(cx, &state.reply);
        }
        if let Err(error) = crate::command::Command::decode(request.data()) {
            Refusal::Malformed(&error.to_string()).encode(&mut state.reply);
            return request.reply(cx, &state.reply);
        }
        let command = bytes::Bytes::copy_from_slice(request.data());
        let (responder, handled) = request.defer(cx);
        if let Some(member) = &mut state.member {
            member.writes.queue(Write { at_ns: cx.now_ns(), command, responder });
        }
        handled
    }

    /// A client reads.
    pub(super) fn handle_read(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let state = &mut *self.borrow_mut();
        let (method, reply) = (request.method(), &mut state.reply);
        reply.clear();
        let Some(member) = &mut state.member else {
            Refusal::NotLeader { leader: None }.encode(reply);
            return request.reply(cx, reply);
        };
        match reads::may_be_stale(method, request.data()) {
            Err(error) => Refusal::Malformed(&error).encode(reply),
            Ok(true) => reads::answer(&member.store, method, request.data(), reply),
            Ok(false) if !member.leads() => {
                Refusal::NotLeader { leader: member.leader() }.encode(reply);
            }
            Ok(false) if member.may_read_now(&state.links, cx.now_ns(), &state.config) => {
                reads::answer(&member.store, method, request.data(), reply);
            }
            Ok(false) => {
                let data = request.data().to_vec();
                let (responder, handled) = request.defer(cx);
                member.reads.queue(Read { method, request: data, responder });
                return handled;
            }
        }
        request.reply(cx, reply)
    }

    pub(super) fn handle_status(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let mut reply = Vec::new();
        self.borrow().status().encode(&mut reply);
        request.reply(cx, &reply)
    }

    pub(super) fn handle_member(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        match &mut self.borrow_mut().member {
            Some(member) => member.handle_member(cx, request),
            None => request.fail(cx, Status::Unavailable, "this replica is no member yet"),
        }
    }

    pub(super) fn handle_transfer(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        match &mut self.borrow_mut().member {
            Some(member) => member.handle_transfer(cx, request),
            None => request.fail(cx, Status::Unavailable, "this replica is no member yet"),
        }
    }
}

impl State {
    pub(super) fn own_name(&self) -> u64 {
        self.member.as_ref().map_or(self.name, |member| member.identity.replica)
    }

    /// Sees to it that a task keeps in touch with each peer and member.
    pub(super) fn dial_members(&mut self, shared: &Shared) {
        let own = self.config.address;
        let peers = self.config.others().map(|(_, address)| address);
        let members = self.member.iter().flat_map(|member| member.book.members.values());
        let heard = self.heard.values().flat_map(|hello| hello.members.iter().map(|(_, at)| at));
        let others = members.chain(heard).filter_map(|address| address.parse().ok());
        let new: Vec<SocketAddr> = peers
            .chain(others)
            .filter(|address| *address != own && !self.dialled.contains(address))
            .collect();
        for address in new {
            if self.dialled.insert(address) {
                self.handle.spawn(shared.clone().keep_in_touch(address));
            }
        }
    }

    /// What this replica says of itself.
    fn hello(&self) -> Hello {
        let Some(member) = &self.member else {
            return Hello { replica: self.name, ..Hello::default() };
        };
        Hello {
            cluster: member.identity.cluster,
            replica: member.identity.replica,
            leader: member.raft.raft.leader_id,
            founders: member.founders.clone(),
            members: member.book.members.clone().into_iter().collect(),
        }
    }

    /// Hears who is at an address. Tells whether it is a fellow member.
    fn meet(
        &mut self,
        shared: &Shared,
        address: SocketAddr,
        hello: Hello,
        session: &Session,
    ) -> bool {
        self.heard.insert(address, hello.clone());
        if self.member.is_none() {
            self.look_for_beginning(shared, session, &hello);
        }
        let Some(member) = &self.member else { return false };
        let is_fellow = hello.cluster == member.identity.cluster;
        if is_fellow {
            self.links.add(hello.replica, session.clone());
        } else if hello.cluster != 0 {
            slog::warn!(self.config.logger, "somebody of another cluster is at a member's address";
                "address" => %address);
        }
        is_fellow
    }

    /// Looks whether this replica can begin: a cluster of its own, or in one that there is.
    fn look_for_beginning(&mut self, shared: &Shared, session: &Session, hello: &Hello) {
        match find_beginning(&self.config, self.name, &self.heard) {
            Beginning::None => {}
            Beginning::Found(founders) => self.found(shared, founders),
            Beginning::Belong { cluster, founders } => self.begin(shared, cluster, founders),
            Beginning::Ask { cluster } if hello.leader == hello.replica => {
                let address = self.config.address.to_string();
                let join = Join { cluster, replica: self.name, address };
                let options = CallOptions::new().timeout(QUESTION);
                let asked = session.start_with(methods::JOIN, &join.encode(), options);
                let logger = self.config.logger.clone();
                let task = async move {
                    if let Err(failure) = asked.await {
                        slog::warn!(logger, "the leader does not take this replica in";
                            "reason" => failure.message.clone());
                    }
                };
                self.handle.spawn(task);
            }
            Beginning::Ask { .. } => {}
        }
    }

    /// A cluster of one needs to hear nobody before it begins.
    pub(super) fn begin_alone(&mut self, shared: &Shared) {
        if let Beginning::Found(founders) = find_beginning(&self.config, self.name, &self.heard) {
            self.found(shared, founders);
        }
    }

    fn found(&mut self, shared: &Shared, founders: Vec<(u64, String)>) {
        let cluster = self.rng.next().max(1);
        self.begin(shared, cluster, Some(founders));
    }

    fn begin(&mut self, shared: &Shared, cluster: u64, founders: Option<Vec<(u64, String)>>) {
        let Some(disk) = self.disk.take() else { return };
        let identity = Identity { cluster, replica: self.name };
        let member = match founders {
            Some(founders) => Member::found(&self.config, identity, founders, disk),
            None => Member::join(&self.config, identity, disk),
        };
        slog::info!(self.config.logger, "this replica belongs to a cluster";
            "cluster" => cluster, "replica" => self.name, "node" => node_of(self.name));
        match member {
            Ok(member) => self.member = Some(member),
            Err(error) => self.failure = Some(error),
        }
        self.handle.spawn(shared.clone().keep_writing());
    }
}

/// Gets a snapshot, chunk by chunk.
async fn fetch_store(session: &Session, index: u64) -> Option<Store> {
    let mut builder = Builder::new();
    for chunk in 0.. {
        let request = ChunkRequest { index, chunk }.encode();
        let options = CallOptions::new().timeout(CHUNK);
        let answer = session.start_with(methods::SNAPSHOT, &request, options).await.ok()?;
        let ChunkReply { is_last, chunk } = ChunkReply::decode(&answer).ok()?;
        builder.add(chunk).ok()?;
        if is_last {
            return builder.finish().ok();
        }
    }
    None
}
