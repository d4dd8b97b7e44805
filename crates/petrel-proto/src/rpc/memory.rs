//! Memory for messages at the server: who may hold how much of it, and what is given up for others
//! (`docs/wire-protocol.md` §6.4).
//!
//! 1. A request of several packets is charged with its whole size when its first packet comes, and a large answer
//!    while it is kept. What has arrived would be less than what was claimed, but then a request could be refused
//!    in its middle, after its client has sent megabytes in vain.
//! 2. Where a share, or the memory, is used up, answers that were not asked for in a while are given up first, the
//!    oldest in front: most clients have them. Then half-arrived requests go whose rest does not come. Only if that
//!    is not enough is the new request refused, or the new answer replaced by an error.
//! 3. Once a second the endpoint gives up what nobody has asked for in ten seconds, memory short or not. The entry
//!    for that is in the timer wheel while anything is held.

use super::{Core, RequestHandle, RespondError, Shared};
use crate::buffer::Buffer;
use crate::limits::{ANSWER_SHORT_NS, ARRIVING_SHORT_NS, HELD_IDLE_NS, HELD_SWEEP_NS};
use crate::session::held::{HeldId, HeldKind, Holder, Shortage};
use crate::session::server::{ServerSession, ServerSlot, ServerState};
use crate::session::{Role, SessionId};
use crate::status::Status;
use crate::timer::TimerKey;

/// In place of a session in the timer wheel: the search for what was held too long.
pub(super) const SWEEP: u32 = u32::MAX;

/// Memory that was not there for a request whose first packet has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    shortage: Shortage,
    bytes: u64,
}

/// How the first packet of a request goes about memory that is not there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Patience {
    /// It asks for room, and is looked at again.
    #[default]
    Asks,
    /// It has asked, and is refused.
    Asked,
}

/// Why a holding is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Idle,
    Short,
}

impl<B: Buffer, T> Core<B, T> {
    /// Bytes of memory that half-arrived requests and kept large answers hold. For tests and checkers.
    pub fn held_bytes(&self) -> u64 {
        self.shared.held.bytes()
    }

    /// Gives up what others need more, for a request that found no memory.
    #[cold]
    pub(super) fn make_room(&mut self, wanted: Wanted) {
        self.make_room_of(wanted.shortage, wanted.bytes);
    }

    /// Gives up what others need more, for an answer that a handler found no memory for: its request is not
    /// charged any more, and may have taken the last memory for large messages. False if nothing was given up.
    #[cold]
    pub fn make_room_for_answer(&mut self, bytes: usize) -> bool {
        let before = self.shared.held.bytes();
        self.make_room_of(Shortage::All, bytes as u64);
        self.shared.held.bytes() < before
    }

    fn make_room_of(&mut self, shortage: Shortage, bytes: u64) {
        let mut freed = 0;
        let idle = [(HeldKind::Answer, ANSWER_SHORT_NS), (HeldKind::Arriving, ARRIVING_SHORT_NS)];
        for (kind, idle_ns) in idle {
            if freed < bytes {
                let left = bytes - freed;
                let victims = self.shared.held.idle(kind, idle_ns, Some(shortage), left);
                freed += self.give_up_held(&victims, Reason::Short);
            }
        }
    }

    /// The entry of the timer wheel has come due.
    #[cold]
    pub(super) fn sweep_held(&mut self) {
        self.shared.sweeps = false;
        for kind in [HeldKind::Answer, HeldKind::Arriving] {
            let victims = self.shared.held.idle(kind, HELD_IDLE_NS, None, u64::MAX);
            self.give_up_held(&victims, Reason::Idle);
        }
        self.shared.sweep_later();
    }

    fn give_up_held(&mut self, victims: &[HeldId], reason: Reason) -> u64 {
        let before = self.shared.held.bytes();
        for id in victims {
            let (Holder { session, slot, .. }, kind) = self.shared.held.holder(*id);
            let entry = self.sessions.get_mut(session).expect("a session gives back when it ends");
            let Role::Server(server) = &mut entry.role else {
                unreachable!("servers hold requests and answers");
            };
            let state = &mut server.slots[slot];
            assert_eq!(state.held, *id, "a holding and its slot name each other");
            match kind {
                HeldKind::Arriving => self.shared.drop_arriving(session, slot, state, reason),
                HeldKind::Answer => self.shared.drop_answer(state, reason),
            }
        }
        before - self.shared.held.bytes()
    }

    /// Whether a large answer may be kept. If not, the caller answers by an error.
    #[cold]
    pub(super) fn keep_answer(
        &mut self,
        handle: RequestHandle,
        slot: usize,
        bytes: u64,
    ) -> Result<HeldId, RespondError> {
        let session = handle.session;
        let entry = self.sessions.get(session).expect("the request runs");
        let Role::Server(server) = &entry.role else { unreachable!("servers answer") };
        let peer = server.agreed.peer;
        let holder = Holder { session, slot, peer };
        if let Err(shortage) = self.shared.held.check(holder, bytes) {
            self.make_room_of(shortage, bytes);
        }
        if self.shared.held.check(holder, bytes).is_err() {
            self.shared.counters.answers_over_share += 1;
            return Err(RespondError::NoRoom);
        }
        let id = self.shared.held.add(HeldKind::Answer, holder, bytes);
        self.shared.sweep_later();
        Ok(id)
    }
}

impl<B: Buffer> Shared<B> {
    /// Asks for room, if that was not done yet for the frame in hand.
    #[cold]
    pub(super) fn ask_for_room(&mut self, shortage: Shortage, bytes: u64) -> bool {
        let asks = matches!(self.patience, Patience::Asks);
        if asks {
            self.wanted = Some(Wanted { shortage, bytes });
        }
        asks
    }

    /// Counts a request for which no memory was left, and says why.
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
        assert!(state.state == ServerState::Arriving && !state.held.is_some());
        state.held = self.held.add(HeldKind::Arriving, holder, bytes);
        self.sweep_later();
    }

    /// A slot gives back what it holds, whatever that is.
    #[inline]
    pub(super) fn let_go(&mut self, state: &mut ServerSlot<B>) {
        if state.held.is_some() {
            self.held.remove(&mut state.held);
        }
    }

    /// A session has ended, and gives back all that it holds.
    pub(super) fn let_go_all(&mut self, server: &mut ServerSession<B>) {
        server.slots.iter_mut().for_each(|state| self.let_go(state));
    }

    /// The rest of a request does not come, or too late for the others: it will not run, and its client is told.
    fn drop_arriving(
        &mut self,
        id: SessionId,
        slot: usize,
        state: &mut ServerSlot<B>,
        reason: Reason,
    ) {
        assert_eq!(state.state, ServerState::Arriving);
        self.let_go(state);
        if let Some(parts) = &mut state.parts {
            parts.request = None;
        }
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
        self.let_go(state);
        state.drop_answer(&mut self.server_parts);
    }

    /// The client has the whole answer, or wants nothing of it any more.
    pub(super) fn release_answer(&mut self, state: &mut ServerSlot<B>) {
        if state.held.is_some() {
            self.counters.answers_released += 1;
            self.let_go(state);
            state.release_answer(&mut self.server_parts);
        }
    }

    /// The client asks for an answer that was given up: it has been executed, and that is all that can be said.
    #[cold]
    pub(super) fn tell_answer_gone(
        &mut self,
        id: SessionId,
        state: &mut ServerSlot<B>,
        slot: usize,
    ) {
        self.counters.answers_missed += 1;
        // It counts as sent already.
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
