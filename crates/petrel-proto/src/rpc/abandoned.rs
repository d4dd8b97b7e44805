//! Requests whose client no longer waits for the answer, at the server (`docs/wire-protocol.md` §6.2). The
//! sign is a CANCEL, the slot's next request, or the end of the session.

use super::respond::running;
use super::{Core, Notice, RequestHandle, Shared};
use crate::buffer::Buffer;
use crate::session::server::{Age, ServerSession, ServerSlot, ServerState};
use crate::session::{Role, SessionId};
use crate::wire::{Header, check_cancel};

impl<B: Buffer, T> Core<B, T> {
    /// Returns true if a request runs and its client is not known to have given up.
    pub fn is_awaited(&self, handle: RequestHandle) -> bool {
        match self.sessions.get(handle.session).map(|entry| entry.role()) {
            Some(Role::Server(server)) => server.runs(handle.number).is_some(),
            _ => false,
        }
    }

    /// Asks for an [`Event::Cancelled`](super::Event) if the client gives up a request before the answer.
    /// Returns false if the request is no longer running: then no event follows.
    pub fn watch(&mut self, handle: RequestHandle) -> bool {
        let Some((server, slot)) = running(&mut self.sessions, handle) else { return false };
        server.slot_mut(slot).watch();
        true
    }
}

impl<B: Buffer> Shared<B> {
    /// Handles a CANCEL.
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
        let age = server.age(slot, header.request);
        match age {
            Age::Future => return self.counters.dropped_future += 1,
            Age::Stale => return self.counters.dropped_stale += 1,
            Age::New | Age::Current => server.make_ready(slot),
        }
        let state = server.slot_mut(slot);
        match (age, state.state()) {
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
                self.release_holding(state);
                state.give_up(header.request, &mut self.server_parts);
            }
        }
    }

    /// Notes that the request in a slot has ended. Notifies the owner if the request is watched.
    #[inline]
    pub(super) fn note_superseded(&mut self, session: SessionId, state: &mut ServerSlot<B>) {
        if state.is_watched() {
            let handle = RequestHandle { session, number: state.current() };
            self.notices.push_back(Notice::Cancelled(handle));
        }
    }

    /// Notes that a session and all its requests have ended.
    pub(super) fn note_abandoned(&mut self, session: SessionId, server: &ServerSession<B>) {
        let watched = server.slots().iter().filter(|state| state.is_watched());
        let handles = watched.map(|state| RequestHandle { session, number: state.current() });
        self.notices.extend(handles.map(Notice::Cancelled));
    }
}
