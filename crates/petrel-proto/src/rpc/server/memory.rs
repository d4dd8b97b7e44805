//! Memory for messages at the server: the shares of sessions and peers, and the holdings given up for others
//! (`docs/wire-protocol.md` §6.4).
//!
//! 1. A request of several packets is charged with its whole size on arrival of the first packet, and a large
//!    answer while kept. Charging only arrived bytes would need less memory, but then a request could be
//!    refused in its middle, after its client has sent megabytes in vain.
//! 2. When a share or the memory is used up, the server first gives up answers that no client has asked for
//!    in a while, the oldest first: most clients have received them. Then it gives up half-arrived requests
//!    without further packets. Only if that is not enough does it refuse the new request, or replace the new
//!    answer by an error.
//! 3. Once a second the endpoint gives up holdings untouched for ten seconds, even if memory is not short.
//!    While there are holdings, the timer wheel has an entry for this search.

use super::refuse::{answer_by_text, refuse, refuse_arriving};
use super::settle::settle;
use crate::buffer::Buffer;
use crate::limits::{ANSWER_SHORT_NS, ARRIVING_SHORT_NS, HELD_IDLE_NS, HELD_SWEEP_NS};
use crate::rpc::timers::Timers;
use crate::rpc::{RequestHandle, RespondError, Shared};
use crate::session::held::{Held, Holder, HoldingId, HoldingKind, Shortage};
use crate::session::server::{ServerSession, ServerSlot, ServerState};
use crate::session::{PeerKey, Role, SessionId, SessionTable};
use crate::status::Status;

/// Memory missing for a request whose first packet has arrived.
#[derive(Clone, Copy, Debug)]
pub(in crate::rpc) struct Wanted {
    shortage: Shortage,
    bytes: u64,
}

/// The reaction of a request's first packet to missing memory.
#[derive(Clone, Copy, Debug)]
enum Patience {
    /// The packet may ask for room.
    Asks,
    /// The packet has asked, and is to be handled again.
    Wants(Wanted),
    /// The packet is handled again, and is refused.
    Asked,
}

/// The account of memory held by server slots, and the search for more.
pub(in crate::rpc) struct Memory {
    held: Held,
    /// True while the timer wheel has an entry for the next search for idle holdings.
    sweeps: bool,
    patience: Patience,
}

impl Memory {
    pub(in crate::rpc) fn new(now_ns: u64, memory_bytes: u64) -> Self {
        let held = Held::new(now_ns, memory_bytes);
        Self { held, sweeps: false, patience: Patience::Asks }
    }

    /// Sets the time of the frames that follow.
    #[inline]
    pub(in crate::rpc) fn set_time(&mut self, now_ns: u64) {
        self.held.set_time(now_ns);
    }

    /// Has the further holdings of a peer count for an account, or for none.
    pub(in crate::rpc) fn set_account(&mut self, peer: PeerKey, account: Option<u64>) {
        self.held.set_account(peer, account);
    }

    pub(in crate::rpc) fn bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// Returns the bytes that a session holds.
    pub(in crate::rpc) fn of_session(&self, session: SessionId) -> u64 {
        self.held.of_session(session)
    }

    /// Checks that `bytes` more are within all limits.
    pub(in crate::rpc) fn check(&self, holder: Holder, bytes: u64) -> Result<(), Shortage> {
        self.held.check(holder, bytes)
    }

    /// Notes that the client has asked for an answer or sent more of a request.
    #[inline]
    pub(in crate::rpc) fn touch(&mut self, id: HoldingId) {
        self.held.touch(id);
    }

    /// Adds a holding, and sets the timer of the next search for idle holdings.
    pub(in crate::rpc) fn hold(
        &mut self,
        kind: HoldingKind,
        holder: Holder,
        bytes: u64,
        timers: &mut Timers,
    ) -> HoldingId {
        let id = self.held.add(kind, holder, bytes);
        self.sweep_later(timers);
        assert!(self.sweeps, "holdings are looked at as long as there are any");
        id
    }

    /// Releases a slot's holding of any kind.
    #[inline]
    pub(in crate::rpc) fn release<B>(&mut self, state: &mut ServerSlot<B>) {
        state.release_holding(&mut self.held);
    }

    /// Asks for room, unless already done for the current frame. Returns true if the frame is to be handled
    /// again.
    #[cold]
    pub(in crate::rpc) fn ask_for_room(&mut self, shortage: Shortage, bytes: u64) -> bool {
        assert!(!matches!(self.patience, Patience::Wants(_)), "a frame asks for room once");
        let asks = matches!(self.patience, Patience::Asks);
        if asks {
            self.patience = Patience::Wants(Wanted { shortage, bytes });
        }
        asks
    }

    /// Returns the memory that the current frame has asked for: the frame is to be handled again.
    #[inline]
    pub(in crate::rpc) fn take_wanted(&mut self) -> Option<Wanted> {
        let Patience::Wants(wanted) = self.patience else { return None };
        self.patience = Patience::Asked;
        Some(wanted)
    }

    /// Notes that the frame was handled again.
    pub(in crate::rpc) fn note_handled(&mut self) {
        assert!(matches!(self.patience, Patience::Asked), "a frame is handled again if it asked");
        self.patience = Patience::Asks;
    }

    /// Sets the timer of the next search for idle holdings, while there are any.
    fn sweep_later(&mut self, timers: &mut Timers) {
        if !self.sweeps && !self.held.is_empty() {
            self.sweeps = true;
            timers.sweep_at(self.held.now_ns() + HELD_SWEEP_NS);
        }
    }

    /// Notes that the timer of the search has come due.
    fn note_sweep(&mut self) {
        assert!(self.sweeps, "a search for idle holdings comes due that was not set");
        self.sweeps = false;
    }
}

/// The reason for giving up a holding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Idle,
    Short,
}

/// Gives up holdings for a request that found no memory.
#[cold]
pub(in crate::rpc) fn make_room<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    wanted: Wanted,
) {
    make_room_of(sessions, shared, wanted.shortage, wanted.bytes);
}

fn make_room_of<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    shortage: Shortage,
    bytes: u64,
) {
    let mut freed = 0;
    let idle = [(HoldingKind::Answer, ANSWER_SHORT_NS), (HoldingKind::Arriving, ARRIVING_SHORT_NS)];
    for (kind, idle_ns) in idle {
        if freed < bytes {
            let left = bytes - freed;
            let victims = shared.memory.held.idle(kind, idle_ns, Some(shortage), left);
            freed += give_up_held(sessions, shared, &victims, Reason::Short);
        }
    }
}

/// Gives up holdings for an answer whose handler found no memory. The answer's request is no longer
/// charged, and may have taken the last memory for large messages. Returns false if nothing was given up.
#[cold]
pub(in crate::rpc) fn make_room_for_answer<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    bytes: u64,
) -> bool {
    let before = shared.memory.bytes();
    make_room_of(sessions, shared, Shortage::All, bytes);
    shared.memory.bytes() < before
}

/// Handles the due timer entry of the search.
#[cold]
pub(in crate::rpc) fn sweep_held<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
) {
    shared.memory.note_sweep();
    for kind in [HoldingKind::Answer, HoldingKind::Arriving, HoldingKind::Early] {
        let victims = shared.memory.held.idle(kind, HELD_IDLE_NS, None, u64::MAX);
        give_up_held(sessions, shared, &victims, Reason::Idle);
    }
    shared.memory.sweep_later(&mut shared.timers);
}

fn give_up_held<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    victims: &[HoldingId],
    reason: Reason,
) -> u64 {
    let before = shared.memory.bytes();
    for id in victims {
        let (Holder { session, slot, .. }, kind) = shared.memory.held.holder(*id);
        let entry = sessions.get_mut(session).expect("a session gives back when it ends");
        let Role::Server(server) = entry.role_mut() else {
            unreachable!("servers hold requests and answers");
        };
        let state = server.slot_mut(slot);
        assert_eq!(state.holding(), *id, "a holding and its slot name each other");
        match kind {
            HoldingKind::Arriving => drop_arriving(shared, session, slot, state, reason),
            HoldingKind::Answer => drop_answer(shared, state, reason),
            HoldingKind::Early => drop_early(shared, session, slot, state),
        }
        if server.order().is_some() {
            settle(shared, session, server);
        }
    }
    let after = shared.memory.bytes();
    assert!(after <= before, "no memory is charged while holdings are given up");
    before - after
}

/// Charges a large answer. On an error, the caller answers with an error.
#[cold]
pub(in crate::rpc) fn keep_answer<B: Buffer, T>(
    sessions: &mut SessionTable<B, T>,
    shared: &mut Shared<B>,
    handle: RequestHandle,
    slot: usize,
    bytes: u64,
) -> Result<HoldingId, RespondError> {
    let session = handle.session;
    let entry = sessions.get(session).expect("the request runs");
    let Role::Server(server) = entry.role() else { unreachable!("servers answer") };
    let peer = server.agreed().peer;
    let holder = Holder { session, slot, peer };
    if let Err(shortage) = shared.memory.check(holder, bytes) {
        make_room_of(sessions, shared, shortage, bytes);
    }
    if shared.memory.check(holder, bytes).is_err() {
        shared.counters.answers_over_share += 1;
        return Err(RespondError::NoRoom);
    }
    Ok(shared.memory.hold(HoldingKind::Answer, holder, bytes, &mut shared.timers))
}

/// Counts a request refused for lack of memory. Returns the reason as text.
#[cold]
pub(in crate::rpc) fn note_refused<B: Buffer>(
    shared: &mut Shared<B>,
    shortage: Shortage,
) -> &'static str {
    match shortage {
        Shortage::All => {
            shared.counters.refused_no_memory += 1;
            "the server has no memory for the request"
        }
        Shortage::Session(_) => {
            shared.counters.refused_over_share += 1;
            "the session's share of memory is used up"
        }
        Shortage::Peer(_) => {
            shared.counters.refused_over_share += 1;
            "the peer's share of memory is used up"
        }
        Shortage::Account(_) => {
            shared.counters.refused_over_share += 1;
            "the share of memory of the client's identity or address is used up"
        }
    }
}

/// Charges a request that begins to arrive.
pub(in crate::rpc) fn hold_request<B: Buffer>(
    shared: &mut Shared<B>,
    holder: Holder,
    state: &mut ServerSlot<B>,
    bytes: u64,
) {
    state.hold(shared.memory.hold(HoldingKind::Arriving, holder, bytes, &mut shared.timers));
}

pub(in crate::rpc) fn release_holdings<B: Buffer>(
    shared: &mut Shared<B>,
    server: &mut ServerSession<B>,
) {
    server.slots_mut().iter_mut().for_each(|state| shared.memory.release(state));
}

/// Drops a request whose further packets did not come, or came too slowly while memory was short. The
/// request will not run, and the client gets an error.
fn drop_arriving<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    slot: usize,
    state: &mut ServerSlot<B>,
    reason: Reason,
) {
    let (status, text) = match reason {
        Reason::Idle => {
            shared.counters.requests_dropped_idle += 1;
            (Status::Unavailable, "the rest of the request did not come")
        }
        Reason::Short => {
            shared.counters.requests_dropped_short += 1;
            (Status::ResourceExhausted, "no memory: the request came too slowly")
        }
    };
    refuse_arriving(shared, id, state, slot, status, text);
}

/// Drops a complete request that waits for earlier calls (§14.6), and whose client has gone silent: its CANCEL was lost. A
/// client that waits asks every few seconds. The request will not run.
fn drop_early<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    slot: usize,
    state: &mut ServerSlot<B>,
) {
    assert_eq!(state.state(), ServerState::Running, "a complete request that waits is RUNNING");
    shared.memory.release(state);
    shared.counters.requests_dropped_idle += 1;
    let text = "the client asked no more, and the earlier calls have not run";
    refuse(shared, id, state, slot, Status::Unavailable, text);
}

fn drop_answer<B: Buffer>(shared: &mut Shared<B>, state: &mut ServerSlot<B>, reason: Reason) {
    assert_eq!(state.state(), ServerState::Answered, "only a kept answer is dropped");
    match reason {
        Reason::Idle => shared.counters.answers_dropped_idle += 1,
        Reason::Short => shared.counters.answers_dropped_short += 1,
    }
    shared.memory.release(state);
    state.drop_answer(&mut shared.server_parts);
}

/// Frees a large answer that the client has received or no longer wants.
pub(in crate::rpc) fn release_answer<B: Buffer>(shared: &mut Shared<B>, state: &mut ServerSlot<B>) {
    if state.has_holding() {
        assert_eq!(
            state.state(),
            ServerState::Answered,
            "the client has the answer that it releases"
        );
        shared.counters.answers_released += 1;
        shared.memory.release(state);
        state.release_answer(&mut shared.server_parts);
    }
}

/// Reports to a client that its answer was given up: the request was executed, and nothing more is known.
#[cold]
pub(in crate::rpc) fn report_answer_gone<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    state: &mut ServerSlot<B>,
    slot: usize,
) {
    shared.counters.answers_missed += 1;
    assert!(shared.counters.responses_sent > 0, "an answer that is gone was counted");
    // The answer was counted as sent already.
    shared.counters.responses_sent -= 1;
    let text = "executed; its answer was given up";
    answer_by_text(shared, id, state, slot, Status::DataLoss, 0, text);
}
