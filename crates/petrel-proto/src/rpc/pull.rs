//! The server's handling of PULL frames (`docs/wire-protocol.md` §6.3).

use super::Shared;
use crate::session::SessionId;
use crate::session::server::{ServerSession, ServerState};
use crate::wire::{Header, Pull};

impl<B: crate::buffer::Buffer> Shared<B> {
    pub(super) fn on_pull(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        header: Header,
        rest: &[u8],
    ) {
        let Ok(pull) = Pull::parse(header.flags, rest) else {
            self.counters.dropped_malformed += 1;
            return;
        };
        let slot = server.slot_index(header.request);
        let current = server.current(slot);
        let known = server.slots_mut().get_mut(slot);
        let known = known.filter(|state| state.state() != ServerState::Idle);
        let Some(state) = known.filter(|_| header.request == current) else {
            if header.request > current {
                self.counters.dropped_future += 1;
            } else {
                self.counters.dropped_stale += 1;
            }
            return;
        };
        if state.state() != ServerState::Answered {
            self.counters.frames_accepted += 1;
            state.note_asked();
            let (echo, repeats) = state.echo();
            self.credit_due(id.index, slot, state, echo, repeats);
            return;
        }
        if state.is_given_up() {
            // Overtaken by the frame with which the client gave up or confirmed the answer.
            self.counters.dropped_stale += 1;
            return;
        }
        if state.is_answer_gone() {
            self.counters.frames_accepted += 1;
            return self.report_answer_gone(id, state, slot);
        }
        if state.is_error_answer() {
            // The client may have packets of the replaced answer; the error is sent for any `cumulative`.
            self.counters.frames_accepted += 1;
            if state.response_sent() > 0 && (pull.resend_below > 0 || pull.cumulative > 0) {
                state.repeat_first(&mut self.server_parts);
            }
            return self.queue_server(id.index, slot, state);
        }
        if pull.cumulative > state.response_sent() {
            self.counters.dropped_malformed += 1;
            return;
        }
        self.counters.frames_accepted += 1;
        if pull.cumulative == state.response_packets() {
            return self.release_answer(state);
        }
        self.held.touch(state.holding());
        state.note_pull(&pull, &mut self.server_parts);
        self.queue_server(id.index, slot, state);
    }
}
