//! State shared by a replica's handlers, continuations and tasks, all on the endpoint's thread.

mod discovery;
mod fetching;
mod serving;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use petrel::endpoint::Handled;
use petrel::task::Handle;
use petrel::{Context, Reply, Request, Status};
use petrel_planted::planted;

use super::ReplicaError;
use super::codec::{frame_bytes, read_frame, write_frame};
use super::config::ReplicaConfig;
use super::hello::Hello;
use super::links::{Links, Sent, leader_term};
use super::member::Member;
use super::membership::replica_name;
use super::rng::Rng;
use super::watch::Watchers;
use crate::persist::{Identity, LogStore};

/// A handle to a replica's state.
#[derive(Clone)]
pub(super) struct Shared(Rc<RefCell<State>>);

pub(super) struct State {
    pub(super) config: ReplicaConfig,
    pub(super) handle: Handle,
    /// The replica's name, unless the log has another name.
    name: u64,
    pub(super) links: Links,
    pub(super) member: Option<Member>,
    /// The log, until a member owns it.
    disk: Option<Box<dyn LogStore>>,
    /// The last hello of each address.
    hellos: BTreeMap<SocketAddr, Hello>,
    /// Without a cluster: for every peer's node, the sender of the last hello.
    hellos_received: BTreeMap<u16, u64>,
    /// Addresses with a task that keeps a session.
    session_tasks: BTreeSet<SocketAddr>,
    ticks_due: u32,
    pub(super) watchers: Watchers,
    /// Ticks without a leader.
    leaderless_ticks: usize,
    /// The reason why the replica has to stop.
    failure: Option<ReplicaError>,
    rng: Rng,
    reply: Vec<u8>,
}

/// Timeout for a question to another replica.
const PEER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Most ticks of the Raft core to catch up on after a pause of the process; further ticks are dropped, as if time had
/// stood still, too. An election caused by a replica's own pause would be useless.
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
            None if planted("kv_keeps_name") => replica_name(config.node, 1),
            None => replica_name(config.node, rng.next()),
        };
        let watchers_max = config.watchers_max;
        let state = State {
            config,
            handle,
            name,
            links: Links::default(),
            member,
            disk,
            hellos: BTreeMap::new(),
            hellos_received: BTreeMap::new(),
            session_tasks: BTreeSet::new(),
            ticks_due: 0,
            watchers: Watchers::new(watchers_max),
            leaderless_ticks: 0,
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

    /// Does the work that follows a turn of the event loop.
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
            member.tick(cx.now().as_ns(), config);
        }
        let more = member.turn(cx, links, self, config);
        if let Err(failure) = &more {
            state.failure = Some(failure.clone());
        }
        state.watchers.note(&member.store);
        more
    }

    /// Counts the ticks that are due for the Raft core.
    pub(super) async fn run_ticks(self) {
        let (handle, tick) = {
            let state = self.borrow();
            (state.handle.clone(), state.config.tick())
        };
        loop {
            handle.sleep(tick).await;
            let state = &mut *self.borrow_mut();
            state.ticks_due = (state.ticks_due + 1).min(TICKS_DUE_MAX);
            state.connect_members(&self);
            state.note_replacement();
            if !state.serves_watchers() {
                state.watchers.wake_all();
            }
        }
    }

    /// Wakes the event loop when more of the log is durable.
    pub(super) async fn wake_on_durable(self) {
        poll_fn(|cx| {
            let state = &mut *self.borrow_mut();
            if let Some(member) = &mut state.member {
                member.set_waker(cx.waker().clone());
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Handles the end of a call with Raft's messages.
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
                let fetch = member.handle_messages(messages, cx.now().as_ns(), &state.config);
                member.handle_progress(cx);
                if let Some(fetch) = fetch {
                    // If the snapshot cannot be fetched, the owner offers it again after a while without requests.
                    let _ = self.begin_fetch(state, fetch);
                }
            }
            _ => member.stats.messages_ignored += 1,
        }
    }

    /// Handles the messages of a peer.
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
        let leader_term = messages.iter().map(leader_term).max().unwrap_or(0);
        let ignored = member.stats.messages_ignored;
        let fetch = member.handle_messages(messages, cx.now().as_ns(), &state.config);
        // A follower that has synced reports in a request of its own, and may then send nothing for long.
        member.handle_progress(cx);
        if fetch.is_some_and(|fetch| !self.begin_fetch(state, fetch)) {
            let text = "no member that has the snapshot can be reached from here";
            return request.fail(cx, Status::Unavailable, text);
        }
        let Some(member) = &mut state.member else { unreachable!("it is one for good") };
        // The lease relies on acknowledgements: a follower that acknowledges the leader's message votes for no other
        // replica for a while.
        let rejects =
            member.stats.messages_ignored != ignored || !member.follows(from, leader_term);
        let answer = if rejects { Vec::new() } else { member.take_answer(from) };
        if answer.is_empty() && !rejects {
            return request.reply(cx, &[]);
        }
        let bytes = frame_bytes(&answer);
        request.reply_with(cx, bytes, |_, out| {
            write_frame(cluster, &answer, out);
            bytes
        })
    }
}

impl State {
    /// Ticks without a leader.
    pub(super) fn leaderless_ticks(&self) -> usize {
        self.leaderless_ticks
    }

    pub(super) fn own_name(&self) -> u64 {
        self.member.as_ref().map_or(self.name, |member| member.identity.replica)
    }
}
