//! Requests whose owner is told when their client no longer waits.

use crate::buffer::Buffer;
use crate::rpc::{RequestHandle, Shared};
use crate::session::SessionId;
use crate::session::server::{ServerSession, ServerSlot};

/// Notes that the request in a slot has ended. Notifies the owner if the request is watched.
#[inline]
pub(in crate::rpc) fn note_superseded<B: Buffer>(
    shared: &mut Shared<B>,
    session: SessionId,
    state: &mut ServerSlot<B>,
) {
    if state.is_watched() {
        shared.notices.note_cancelled(handle_of(session, state));
    }
}

/// Notes that a session and all its requests have ended.
pub(in crate::rpc) fn note_abandoned<B: Buffer>(
    shared: &mut Shared<B>,
    session: SessionId,
    server: &ServerSession<B>,
) {
    for state in server.slots().iter().filter(|state| state.is_watched()) {
        shared.notices.note_cancelled(handle_of(session, state));
    }
}

/// Returns the handle by which the application knows a running request.
fn handle_of<B>(session: SessionId, state: &ServerSlot<B>) -> RequestHandle {
    let handle = RequestHandle { session, number: state.current() };
    if state.is_ordered() { handle.in_order() } else { handle }
}
