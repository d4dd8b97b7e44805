//! Requests whose client no longer waits for the answer, at the server (`docs/wire-protocol.md` §6.2). The
//! sign is a CANCEL, the slot's next request, or the end of the session.

use super::memory::release_answer;
use super::run::make_ready;
use super::settle::settle;
use super::watched::note_superseded;
use crate::buffer::Buffer;
use crate::rpc::Shared;
use crate::session::SessionId;
use crate::session::server::{Age, ServerSession, ServerState};
use crate::wire::{Header, check_cancel};

#[cold]
pub(in crate::rpc) fn on_cancel<B: Buffer>(
    shared: &mut Shared<B>,
    id: SessionId,
    server: &mut ServerSession<B>,
    header: Header,
    rest: &[u8],
) {
    if check_cancel(header.flags, rest).is_err() {
        shared.counters.dropped_malformed += 1;
        return;
    }
    let slot = server.slot_index(header.request);
    let age = server.age(slot, header.request);
    match age {
        Age::Future => return shared.counters.dropped_future += 1,
        Age::Stale => return shared.counters.dropped_stale += 1,
        Age::New | Age::Current => make_ready(shared, id, server, slot),
    }
    let state = server.slot_mut(slot);
    match (age, state.state()) {
        (Age::Current, ServerState::Idle) => shared.counters.dropped_stale += 1,
        (Age::Current, ServerState::Answered) => {
            shared.counters.frames_accepted += 1;
            shared.counters.cancels_too_late += 1;
            release_answer(shared, state);
        }
        _ => {
            shared.counters.frames_accepted += 1;
            shared.counters.cancels_received += 1;
            note_superseded(shared, id, state);
            shared.memory.release(state);
            state.give_up(header.request, &mut shared.server_parts);
            if server.order().is_some() {
                settle(shared, id, server);
            }
        }
    }
}
