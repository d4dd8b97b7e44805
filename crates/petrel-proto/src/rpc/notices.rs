//! Events of sessions and requests, as the owner of the core learns of them.

use std::collections::VecDeque;

use super::{Completion, RequestHandle};
use crate::buffer::Placed;
use crate::session::{PeerKey, SessionId};

/// An event not caused by a received frame.
#[derive(Debug)]
pub enum Event<B, T = u64> {
    /// A call ended.
    Completed(Completion<B, T>),
    /// The client gave up a request registered by [`Core::watch`](super::Core::watch). Comes once, and only
    /// before the answer.
    Cancelled(RequestHandle),
    /// A request of an ordered call that waited may run: all earlier ones of its session have run (§14.6). It must be
    /// answered.
    Request {
        /// Names the request in the answer.
        handle: RequestHandle,
        /// The method called.
        method: u16,
        /// The whole request.
        message: B,
        /// As in [`Received::Message`](super::Received::Message).
        placed: Option<Placed>,
        /// The request's deadline, if any: later than now, on this core's clock.
        deadline_ns: Option<u64>,
    },
    /// A session has used up all request numbers, or all numbers acceptable to the server: close the session and open a
    /// new session.
    SessionExhausted(SessionId),
    /// A call has been without a sign of the server for tens of milliseconds, in spite of a question: its process may be
    /// dead (§8.6). May come again and again.
    ServerSilent(SessionId),
    /// The first request of a session has come to its server.
    SessionUsed(SessionId),
    /// A frame came back from the server of a session that is being opened: the answer to [`Core::probe`](super::Core::probe).
    Probed {
        /// The session.
        session: SessionId,
        /// The peer from which the answer came.
        peer: PeerKey,
        /// The number of the probe.
        number: u64,
    },
}

/// The cause of an [`Event`].
pub(super) enum Notice {
    Exhausted(SessionId),
    Silent(SessionId),
    Used(SessionId),
    Probed(SessionId, PeerKey, u64),
    Cancelled(RequestHandle),
    /// A request of the session that waited for earlier requests may run, unless the request has ended since.
    Ready(SessionId),
}

/// The notices that the owner has not taken yet.
#[derive(Default)]
pub(super) struct Notices(VecDeque<Notice>);

impl Notices {
    /// Notes that a session has too few request numbers left.
    pub(super) fn note_exhausted(&mut self, session: SessionId) {
        self.0.push_back(Notice::Exhausted(session));
    }

    /// Notes that a server has got the first request of a session.
    #[cold]
    pub(super) fn note_used(&mut self, session: SessionId) {
        self.0.push_back(Notice::Used(session));
    }

    /// Notes that the server of a session may be dead.
    pub(super) fn note_silent(&mut self, session: SessionId) {
        self.0.push_back(Notice::Silent(session));
    }

    /// Notes the answer to a probe.
    pub(super) fn note_probed(&mut self, session: SessionId, peer: PeerKey, number: u64) {
        self.0.push_back(Notice::Probed(session, peer, number));
    }

    /// Notes that a client gave up a watched request.
    pub(super) fn note_cancelled(&mut self, request: RequestHandle) {
        self.0.push_back(Notice::Cancelled(request));
    }

    /// Notes that a request that waited for earlier requests may run.
    pub(super) fn note_ready(&mut self, session: SessionId) {
        self.0.push_back(Notice::Ready(session));
    }

    /// Returns true if the next notice is about a request that waited.
    pub(super) fn is_ready_next(&self) -> bool {
        matches!(self.0.front(), Some(Notice::Ready(_)))
    }

    pub(super) fn pop(&mut self) -> Option<Notice> {
        self.0.pop_front()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
