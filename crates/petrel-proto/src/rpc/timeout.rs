//! Timeouts: packets lost without evidence are sent again, and continued silence ends a call
//! (`docs/wire-protocol.md` §7).

use petrel_planted::planted;

use super::call::{CallFailure, Execution, finish};
use super::expiry::EXPIRY;
use super::memory::SWEEP;
use super::{Completion, Core, Event, Recovery, Shared};
use crate::bitmap::Window;
use crate::buffer::Buffer;
use crate::session::client::{
    ClientParts, ClientSession, ClientSlot, ClientState, NOT_TIMED, ProbedPacket, TIMED_REPEAT,
};
use crate::session::free_list::FreeList;
use crate::session::{Role, SessionId};
use crate::status::Status;
use crate::timer::TimerKey;

/// Most doublings that a session passes on to its next requests.
const SESSION_BACKOFF_MAX: u8 = 6;

impl<B: Buffer, T> Core<B, T> {
    /// Handles due timers. To be called after handling all frames received so far.
    #[inline]
    pub fn handle_timeouts(&mut self, now_ns: u64) {
        self.shared.held.now_ns = now_ns;
        self.shared.timers.advance(now_ns);
        while let Some(key) = self.shared.timers.pop_due() {
            self.handle_due(now_ns, key);
        }
        self.release_paced(now_ns);
    }

    /// Returns the time for the next call of [`Core::handle_timeouts`], in nanoseconds of the same clock.
    /// Timers may have moved by then.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.shared.timers.next_due_ns()
    }

    #[inline(never)]
    fn handle_due(&mut self, now_ns: u64, key: TimerKey) {
        if key.session == SWEEP {
            return self.sweep_held();
        }
        let id = SessionId { index: key.session, generation: key.generation };
        let Some(entry) = self.sessions.get_mut(id) else { return };
        let Role::Client(client) = &mut entry.role else { return };
        if key.slot == EXPIRY {
            return self.handle_expiries(now_ns, id);
        }
        let slot = key.slot as usize;
        let state = &mut client.slots[slot];
        state.note_due();
        if state.state() == ClientState::Free {
            return;
        }
        if state.deadline_ns > now_ns {
            let Shared { config, timers, .. } = &mut self.shared;
            state.enter_wheel(now_ns, key, &config.rto, timers);
        } else if let Some(completion) = self.shared.on_timeout(now_ns, id, client, slot) {
            self.events.push_back(Event::Completed(completion));
        }
    }
}

impl<B: Buffer> Shared<B> {
    fn on_timeout<T>(
        &mut self,
        now_ns: u64,
        id: SessionId,
        client: &mut ClientSession<B, T>,
        slot: usize,
    ) -> Option<Completion<B, T>> {
        let state = &mut client.slots[slot];
        let is_held_back = client.held.contains(slot);
        if is_held_back || !is_waiting_for_server(state) {
            // The slot waits for the session's pace, or for credits held by other slots with timers of their
            // own. The slot's timer is set when it sends; until then a late time is enough.
            let key = TimerKey { session: id.index, generation: id.generation, slot: slot as u16 };
            let Shared { config, timers, .. } = self;
            state.deadline_ns = now_ns + config.rto.max_ns;
            state.enter_wheel(now_ns, key, &config.rto, timers);
            return None;
        }
        self.note_default_expiry(now_ns, id, client, slot);
        let state = &mut client.slots[slot];
        if self.config.rto.has_probes() && is_probe_due(state, client.trips.backoff) {
            self.counters.probes += 1;
            state.probed = true;
            if state.timed_packet < TIMED_REPEAT {
                let waited_ns = now_ns.saturating_sub(state.timed_ns);
                client.trips.note_probe(waited_ns, &self.config.rto);
            }
            repeat(state, self.config.recovery, &mut self.client_parts);
            self.queue_client(id.index, slot, state);
            self.arm(now_ns, id, client, slot);
            return None;
        }
        if state.unanswered >= self.config.retries_max {
            self.counters.calls_timed_out += 1;
            let failure = gave_up(state.unanswered);
            client.note_given_up(slot);
            return Some(finish(self, id, client, slot, Err(failure)));
        }
        self.counters.timeouts += 1;
        if is_silence(state) {
            client.congestion.on_timeout(now_ns, &mut self.congestion);
        }
        state.unanswered += 1;
        if !planted("proto_no_backoff") {
            // The slot's timeout was doubled as often as the session's, and is doubled further from there.
            state.backoff = state.backoff.max(client.trips.backoff).saturating_add(1);
        }
        repeat(state, self.config.recovery, &mut self.client_parts);
        if state.state() == ClientState::Sending {
            client.trips.backoff = client.trips.backoff.max(state.backoff.min(SESSION_BACKOFF_MAX));
        }
        self.queue_client(id.index, slot, state);
        self.arm(now_ns, id, client, slot);
        None
    }
}

/// Returns true if nothing was repeated since the last frame taken, and the session's timeouts are not
/// doubled.
fn is_probe_due<B, T>(state: &ClientSlot<B, T>, session_backoff: u8) -> bool {
    !state.probed && state.unanswered == 0 && state.backoff.max(session_backoff) == 0
}

/// Returns true if the next step is the server's.
fn is_waiting_for_server<B, T>(state: &ClientSlot<B, T>) -> bool {
    let count = |window: fn(&ClientParts) -> &Window| {
        state.parts.as_ref().map_or(0, |parts| window(parts).count())
    };
    match state.state() {
        ClientState::Free => false,
        ClientState::Sending => count(|parts| &parts.acknowledged) < state.request_sent(),
        ClientState::Waiting => true,
        ClientState::Receiving => count(|parts| &parts.received) < state.response_limit,
    }
}

/// Returns true if a timeout is a sign of congestion. The first timeout of a request that may still be
/// running is not.
fn is_silence<B, T>(state: &ClientSlot<B, T>) -> bool {
    let has_unacknowledged = state.request_packets > 1 && state.state() == ClientState::Sending;
    has_unacknowledged || state.state() == ClientState::Receiving || state.unanswered > 0
}

/// Selects the packets to send again (§7.2).
fn repeat<B, T>(
    state: &mut ClientSlot<B, T>,
    recovery: Recovery,
    spare: &mut FreeList<ClientParts>,
) {
    if state.state() == ClientState::Sending {
        let sent = state.request_sent();
        let parts = state.parts(spare);
        let first = parts.acknowledged.cumulative();
        let end = if recovery == Recovery::GoBackN { sent } else { first + 1 };
        assert!(first < end && end <= sent, "a timeout repeats packets that were sent");
        if let Some(announced) = &mut parts.announced
            && parts.acknowledged.count() == 0
        {
            // The ANNOUNCE may have been lost: once it arrives, the packets received by multicast count.
            announced.is_due = true;
        }
        let ClientParts { acknowledged, lost, .. } = parts;
        (first..end)
            .filter(|&packet| !acknowledged.contains(packet))
            .for_each(|packet| lost.set(packet));
        return;
    }
    // A response may now answer the repetition.
    state.timed_packet = NOT_TIMED;
    state.pull_due = true;
    let limit = state.response_limit;
    let parts = state.parts(spare);
    let first = parts.received.cumulative();
    let end = if recovery == Recovery::GoBackN { limit } else { first + 1 };
    assert!(first < end && end <= limit, "a timeout asks for packets that the server may send");
    parts.resend_below = parts.resend_below.max(end);
    parts.probed_packet = Some(ProbedPacket { packet: first, limit });
}

#[cold]
fn gave_up(timeouts: u8) -> Box<CallFailure> {
    Box::new(CallFailure {
        status: Status::Unavailable,
        message: format!("no answer from the server after {timeouts} retransmissions"),
        execution: Execution::MayHaveExecuted,
    })
}
