//! The server's handling of PULL frames (`docs/wire-protocol.md` §6.3).

use super::memory::{release_answer, report_answer_gone};
use super::order::take_order;
use super::run::credit_due;
use crate::buffer::Buffer;
use crate::rpc::Shared;
use crate::session::SessionId;
use crate::session::server::{ServerSession, ServerState};
use crate::wire::{Header, Pull};

pub(in crate::rpc) fn on_pull<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: Header,
    rest: &[u8],
) {
    let Ok(pull) = Pull::parse(header.flags, rest) else {
        shared.counters.dropped_malformed += 1;
        return;
    };
    if header.flags.extended() && take_order(shared, id, server, &header, rest).is_err() {
        shared.counters.dropped_malformed += 1;
        return;
    }
    let slot = server.slot_index(header.request);
    let current = server.current(slot);
    let known = server.slots_mut().get_mut(slot);
    let known = known.filter(|state| state.state() != ServerState::Idle);
    let Some(state) = known.filter(|_| header.request == current) else {
        if header.request > current {
            shared.counters.dropped_future += 1;
        } else {
            shared.counters.dropped_stale += 1;
        }
        return;
    };
    if state.state() != ServerState::Answered {
        shared.counters.frames_accepted += 1;
        if state.state() == ServerState::Running {
            // An ordered request may wait for others.
            shared.memory.touch(state.holding());
        }
        state.note_asked();
        let (echo, repeats) = state.echo();
        credit_due(shared, id.index, slot, state, echo, repeats);
        return;
    }
    if state.is_given_up() {
        // Overtaken by the frame with which the client gave up or confirmed the answer.
        shared.counters.dropped_stale += 1;
        return;
    }
    if state.is_answer_gone() {
        shared.counters.frames_accepted += 1;
        return report_answer_gone(shared, id, state, slot);
    }
    if state.is_error_answer() {
        // The client may have packets of the replaced answer; the error is sent for any `cumulative`.
        shared.counters.frames_accepted += 1;
        if state.response_sent() > 0 && (pull.resend_below > 0 || pull.cumulative > 0) {
            state.repeat_first(&mut shared.server_parts);
        }
        return shared.queue.push_server(id.index, slot, state);
    }
    if pull.cumulative > state.response_sent() {
        shared.counters.dropped_malformed += 1;
        return;
    }
    shared.counters.frames_accepted += 1;
    if pull.cumulative == state.response_packets() {
        return release_answer(shared, state);
    }
    shared.memory.touch(state.holding());
    state.note_pull(&pull, &mut shared.server_parts);
    shared.queue.push_server(id.index, slot, state);
}
