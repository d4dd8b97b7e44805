//! Requests for whose answer nobody waits any more, at the server (`docs/wire-protocol.md` §6.2): the
//! client sends a CANCEL, or the slot's next request, or the session ends.

use super::request::{Age, age};
use super::respond::running;
use super::{Core, Notice, RequestHandle, Shared};
use crate::buffer::Buffer;
use crate::session::server::{ServerSession, ServerSlot, ServerState};
use crate::session::{Role, SessionId};
use crate::wire::{Header, check_cancel};

impl<B: Buffer, T> Core<B, T> {
    /// Whether a request runs and its client waits for the answer, as far as is known.
    pub fn is_waited_for(&self, handle: RequestHandle) -> bool {
        match self.sessions.get(handle.session).map(|entry| &entry.role) {
            Some(Role::Server(server)) => server.runs(handle.number).is_some(),
            _ => false,
        }
    }

    /// Has [`Event::Cancelled`](super::Event) come once if nobody waits for a request's answer any more
    /// before it is given. False if that is so already: then it does not come.
    pub fn watch(&mut self, handle: RequestHandle) -> bool {
        let Some((server, slot)) = running(&mut self.sessions, handle) else { return false };
        server.slots[slot].watch();
        true
    }
}

impl<B: Buffer> Shared<B> {
    /// The client has given a request up.
    #[cold]
    pub(super) fn on_cancel(
        &mut self,
        id: SessionId,
        server: &mut ServerSession<B>,
        header: Header,
        rest: &[u8],
    ) {
        if check_cancel(header.flags, rest).is_err() {
            self.counters.dropped_malformed += 1;
            return;
        }
        let slot = server.slot_index(header.request);
        let age = age(server, slot, header.request);
        match age {
            Age::Future => return self.counters.dropped_future += 1,
            Age::Stale => return self.counters.dropped_stale += 1,
            Age::New | Age::Current => server.make_ready(slot),
        }
        let state = &mut server.slots[slot];
        match (age, state.state) {
            (Age::Current, ServerState::Idle) => self.counters.dropped_stale += 1,
            (Age::Current, ServerState::Answered) => {
                self.counters.frames_accepted += 1;
                self.counters.cancels_too_late += 1;
                self.release_answer(state);
            }
            _ => {
                self.counters.frames_accepted += 1;
                self.counters.cancels_received += 1;
                self.note_superseded(id, state);
                self.let_go(state);
                state.give_up(header.request, &mut self.server_parts);
            }
        }
    }

    /// The request that a slot holds is over. Tells its handler, if it wanted to know.
    #[inline]
    pub(super) fn note_superseded(&mut self, session: SessionId, state: &mut ServerSlot<B>) {
        if state.is_watched() {
            let handle = RequestHandle { session, number: state.current };
            self.notices.push_back(Notice::Cancelled(handle));
        }
    }

    /// A session has ended, and all its requests with it.
    pub(super) fn note_abandoned(&mut self, session: SessionId, server: &ServerSession<B>) {
        let watched = server.slots.iter().filter(|state| state.is_watched());
        let handles = watched.map(|state| RequestHandle { session, number: state.current });
        self.notices.extend(handles.map(Notice::Cancelled));
    }
}
