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

use super::{Core, RequestHandle, RespondError, Shared};
use crate::buffer::Buffer;
use crate::limits::{ANSWER_SHORT_NS, ARRIVING_SHORT_NS, HELD_IDLE_NS, HELD_SWEEP_NS};
use crate::session::held::{Holder, HoldingId, HoldingKind, Shortage};
use crate::session::server::{ServerSession, ServerSlot, ServerState};
use crate::session::{Role, SessionId};
use crate::status::Status;
use crate::timer::TimerKey;

/// The session field of a timer entry for the search for idle holdings.
pub(super) const SWEEP: u32 = u32::MAX;

/// Memory missing for a request whose first packet has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    shortage: Shortage,
    bytes: u64,
}

/// The reaction of a request's first packet to missing memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Patience {
    /// The packet asks for room, and is handled again.
    #[default]
    Asks,
    /// The packet has asked, and is refused.
    Asked,
}

/// The reason for giving up a holding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Idle,
    Short,
}

impl<B: Buffer, T> Core<B, T> {
    /// Returns the bytes of memory held by half-arrived requests and kept large answers. For tests and
    /// checkers.
    pub fn held_bytes(&self) -> u64 {
        self.shared.held.bytes()
    }

    /// Gives up holdings for a request that found no memory.
    #[cold]
    pub(super) fn make_room(&mut self, wanted: Wanted) {
        self.make_room_of(wanted.shortage, wanted.bytes);
    }

    /// Gives up holdings for an answer whose handler found no memory. The answer's request is no longer
    /// charged, and may have taken the last memory for large messages. Returns false if nothing was given up.
    #[cold]
    pub fn make_room_for_answer(&mut self, bytes: usize) -> bool {
        let before = self.shared.held.bytes();
        self.make_room_of(Shortage::All, bytes as u64);
        self.shared.held.bytes() < before
    }

    fn make_room_of(&mut self, shortage: Shortage, bytes: u64) {
        let mut freed = 0;
        let idle =
            [(HoldingKind::Answer, ANSWER_SHORT_NS), (HoldingKind::Arriving, ARRIVING_SHORT_NS)];
        for (kind, idle_ns) in idle {
            if freed < bytes {
                let left = bytes - freed;
                let victims = self.shared.held.idle(kind, idle_ns, Some(shortage), left);
                freed += self.give_up_held(&victims, Reason::Short);
            }
        }
    }

    /// Handles the due timer entry of the search.
    #[cold]
    pub(super) fn sweep_held(&mut self) {
        assert!(self.shared.sweeps, "a search for idle holdings comes due that was not set");
        self.shared.sweeps = false;
        for kind in [HoldingKind::Answer, HoldingKind::Arriving] {
            let victims = self.shared.held.idle(kind, HELD_IDLE_NS, None, u64::MAX);
            self.give_up_held(&victims, Reason::Idle);
        }
        self.shared.sweep_later();
    }

    fn give_up_held(&mut self, victims: &[HoldingId], reason: Reason) -> u64 {
        let before = self.shared.held.bytes();
        for id in victims {
            let (Holder { session, slot, .. }, kind) = self.shared.held.holder(*id);
            let entry = self.sessions.get_mut(session).expect("a session gives back when it ends");
            let Role::Server(server) = entry.role_mut() else {
                unreachable!("servers hold requests and answers");
            };
            let state = server.slot_mut(slot);
            assert_eq!(state.holding(), *id, "a holding and its slot name each other");
            match kind {
                HoldingKind::Arriving => self.shared.drop_arriving(session, slot, state, reason),
                HoldingKind::Answer => self.shared.drop_answer(state, reason),
            }
        }
        before - self.shared.held.bytes()
    }

    /// Charges a large answer. On an error, the caller answers with an error.
    #[cold]
    pub(super) fn keep_answer(
        &mut self,
        handle: RequestHandle,
        slot: usize,
        bytes: u64,
    ) -> Result<HoldingId, RespondError> {
        let session = handle.session;
        let entry = self.sessions.get(session).expect("the request runs");
        let Role::Server(server) = entry.role() else { unreachable!("servers answer") };
        let peer = server.peer();
        let holder = Holder { session, slot, peer };
        if let Err(shortage) = self.shared.held.check(holder, bytes) {
            self.make_room_of(shortage, bytes);
        }
        if self.shared.held.check(holder, bytes).is_err() {
            self.shared.counters.answers_over_share += 1;
            return Err(RespondError::NoRoom);
        }
        let id = self.shared.held.add(HoldingKind::Answer, holder, bytes);
        self.shared.sweep_later();
        Ok(id)
    }
}

impl<B: Buffer> Shared<B> {
    /// Asks for room, unless already done for the current frame. Returns true if the frame is to be handled
    /// again.
    #[cold]
    pub(super) fn ask_for_room(&mut self, shortage: Shortage, bytes: u64) -> bool {
        assert!(self.wanted.is_none(), "a frame asks for room once");
        let asks = matches!(self.patience, Patience::Asks);
        if asks {
            self.wanted = Some(Wanted { shortage, bytes });
        }
        asks
    }

    /// Counts a request refused for lack of memory. Returns the reason as text.
    #[cold]
    pub(super) fn note_refused(&mut self, shortage: Shortage) -> &'static str {
        match shortage {
            Shortage::All => {
                self.counters.refused_no_memory += 1;
                "the server has no memory for the request"
            }
            Shortage::Session(_) => {
                self.counters.refused_over_share += 1;
                "the session's share of memory is used up"
            }
            Shortage::Peer(_) => {
                self.counters.refused_over_share += 1;
                "the peer's share of memory is used up"
            }
        }
    }

    /// Charges a request that begins to arrive.
    pub(super) fn hold_request(&mut self, holder: Holder, state: &mut ServerSlot<B>, bytes: u64) {
        state.hold(self.held.add(HoldingKind::Arriving, holder, bytes));
        self.sweep_later();
    }

    /// Releases a slot's holding of any kind.
    #[inline]
    pub(super) fn release_holding(&mut self, state: &mut ServerSlot<B>) {
        state.release_holding(&mut self.held);
    }

    /// Releases all holdings of an ended session.
    pub(super) fn release_holdings(&mut self, server: &mut ServerSession<B>) {
        server.slots_mut().iter_mut().for_each(|state| self.release_holding(state));
    }

    /// Drops a request whose further packets did not come, or came too slowly while memory was short. The
    /// request will not run, and the client gets an error.
    fn drop_arriving(
        &mut self,
        id: SessionId,
        slot: usize,
        state: &mut ServerSlot<B>,
        reason: Reason,
    ) {
        assert_eq!(state.state(), ServerState::Arriving, "only an arriving request is dropped");
        self.release_holding(state);
        state.drop_request();
        let (status, text) = match reason {
            Reason::Idle => {
                self.counters.requests_dropped_idle += 1;
                (Status::Unavailable, "the rest of the request did not come")
            }
            Reason::Short => {
                self.counters.requests_dropped_short += 1;
                (Status::ResourceExhausted, "no memory: the request came too slowly")
            }
        };
        self.refuse(id, state, slot, status, text);
    }

    fn drop_answer(&mut self, state: &mut ServerSlot<B>, reason: Reason) {
        match reason {
            Reason::Idle => self.counters.answers_dropped_idle += 1,
            Reason::Short => self.counters.answers_dropped_short += 1,
        }
        self.release_holding(state);
        state.drop_answer(&mut self.server_parts);
    }

    /// Frees a large answer that the client has received or no longer wants.
    pub(super) fn release_answer(&mut self, state: &mut ServerSlot<B>) {
        if state.has_holding() {
            self.counters.answers_released += 1;
            self.release_holding(state);
            state.release_answer(&mut self.server_parts);
        }
    }

    /// Reports to a client that its answer was given up: the request was executed, and nothing more is known.
    #[cold]
    pub(super) fn report_answer_gone(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
    ) {
        self.counters.answers_missed += 1;
        // The answer was counted as sent already.
        self.counters.responses_sent -= 1;
        let text = "executed; its answer was given up";
        self.answer_by_text(id, state, slot, Status::DataLoss, 0, text);
    }

    fn sweep_later(&mut self) {
        if !self.sweeps && !self.held.is_empty() {
            self.sweeps = true;
            let key = TimerKey { session: SWEEP, generation: 0, slot: 0 };
            self.timers.insert(key, self.held.now_ns + HELD_SWEEP_NS);
        }
    }
}
