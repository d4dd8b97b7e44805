//! Errors that the core itself answers, and frames that the core drops (`docs/wire-protocol.md` §6.2).

use crate::buffer::Buffer;
use crate::rpc::{Received, Shared};
use crate::session::SessionId;
use crate::session::server::{Age, ServerSlot, ServerState};
use crate::status::Status;
use crate::wire::{ANSWERED_LATER, REFUSED};

/// Answers with an error, marked as refused: the handler was not called.
pub(in crate::rpc) fn refuse<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    state: &mut ServerSlot<B>,
    slot: usize,
    status: Status,
    text: &'static str,
) {
    answer_by_text(shared, id, state, slot, status, REFUSED, text);
}

/// Gives up an arriving request: the handler will not be called. Packets that have had an effect already leave the request's
/// outcome unknown, and the error is then no refusal (§15.2).
pub(in crate::rpc) fn refuse_arriving<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    state: &mut ServerSlot<B>,
    slot: usize,
    status: Status,
    text: &'static str,
) {
    assert!(
        state.state() == ServerState::Arriving,
        "a request is given up before its handler is called"
    );
    let bits = if state.has_effect() { 0 } else { REFUSED };
    shared.memory.release(state);
    state.drop_request();
    answer_by_text(shared, id, state, slot, status, bits, text);
}

/// Answers with an error that needs no buffer, and with these aux bits beside the status.
pub(in crate::rpc) fn answer_by_text<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    state: &mut ServerSlot<B>,
    slot: usize,
    status: Status,
    bits: u16,
    text: &'static str,
) {
    // Marked as answered later even if immediate: the round trip of an error is not needed.
    let bits = bits | ANSWERED_LATER;
    state.set_error_answer(status, bits, text, &mut shared.server_parts);
    shared.counters.responses_sent += 1;
    shared.queue.push_server(id.index, slot, state);
}

#[cold]
pub(in crate::rpc) fn count_stale_or_future<'f, B: Buffer, T>(
    shared: &mut Shared<B>,
    age: Age,
) -> Received<'f, B, T> {
    match age {
        Age::Stale => shared.counters.dropped_stale += 1,
        _ => shared.counters.dropped_future += 1,
    }
    Received::Nothing
}
