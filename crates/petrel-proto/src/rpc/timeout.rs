//! Timeouts: packets lost without evidence are sent again, and continued silence ends a call
//! (`docs/wire-protocol.md` §7).

use super::call::{CallFailure, Execution, finish};
use super::expiry::EXPIRY;
use super::memory::SWEEP;
use super::{Completion, Core, Event, Shared};
use crate::buffer::Buffer;
use crate::session::client::ClientSession;
use crate::session::{Role, SessionId};
use crate::status::Status;
use crate::timer::TimerKey;

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
        let Role::Client(client) = entry.role_mut() else { return };
        if key.slot == EXPIRY {
            return self.handle_expiries(now_ns, id);
        }
        let slot = key.slot as usize;
        let state = client.slot_mut(slot);
        state.note_due();
        if state.is_free() {
            return;
        }
        if state.timer().deadline_ns() > now_ns {
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
        let is_held_back = client.is_held_back(slot);
        let state = client.slot_mut(slot);
        if is_held_back || !state.is_waiting_for_server() {
            // The slot waits for the session's pace, or for credits held by other slots with timers of their
            // own. The slot's timer is set when it sends; until then a late time is enough.
            let key = TimerKey { session: id.index, generation: id.generation, slot: slot as u16 };
            let Shared { config, timers, .. } = self;
            state.timer_mut().set_deadline(now_ns + config.rto.max_ns);
            state.enter_wheel(now_ns, key, &config.rto, timers);
            return None;
        }
        self.note_default_expiry(now_ns, id, client, slot);
        let timer = client.slot(slot).timer();
        let (unanswered, is_probe_due) = (timer.unanswered(), timer.is_probe_due(client.trips()));
        if self.config.rto.has_probes() && is_probe_due {
            self.counters.probes += 1;
            client.note_probe(now_ns, slot, &self.config.rto);
        } else if unanswered >= self.config.retries_max {
            self.counters.calls_timed_out += 1;
            let failure = gave_up(unanswered);
            client.note_given_up(slot);
            return Some(finish(self, id, client, slot, Err(failure)));
        } else {
            self.counters.timeouts += 1;
            if client.slot(slot).is_silence() {
                client.congestion_mut().on_timeout(now_ns, &mut self.congestion);
            }
            client.note_timeout(slot);
        }
        let state = client.slot_mut(slot);
        state.repeat(self.config.recovery, &mut self.client_parts);
        self.queue_client(id.index, slot, state);
        self.arm(now_ns, id, client, slot);
        None
    }
}

#[cold]
fn gave_up(timeouts: u8) -> Box<CallFailure> {
    Box::new(CallFailure {
        status: Status::Unavailable,
        message: format!("no answer from the server after {timeouts} retransmissions"),
        execution: Execution::MayHaveExecuted,
    })
}
