//! Events of sessions and requests, as the owner of the core learns of them.

use std::collections::VecDeque;

use super::{Completion, RequestHandle};
use crate::session::SessionId;

/// An event not caused by a received frame.
#[derive(Debug)]
pub enum Event<B, T = u64> {
    /// A call ended.
    Completed(Completion<B, T>),
    /// The client gave up a request registered by [`Core::watch`](super::Core::watch). Comes once, and only
    /// before the answer.
    Cancelled(RequestHandle),
    /// A session has used up the request numbers, or those acceptable to the server: close the session and
    /// open a new one.
    SessionExhausted(SessionId),
}

/// An [`Event`] without the core's type parameters.
enum Notice {
    Exhausted(SessionId),
    Cancelled(RequestHandle),
}

/// The notices that the owner has not taken yet.
#[derive(Default)]
pub(super) struct Notices(VecDeque<Notice>);

impl Notices {
    /// Notes that a session has too few request numbers left.
    pub(super) fn note_exhausted(&mut self, session: SessionId) {
        self.0.push_back(Notice::Exhausted(session));
    }

    /// Notes that a client gave up a watched request.
    pub(super) fn note_cancelled(&mut self, request: RequestHandle) {
        self.0.push_back(Notice::Cancelled(request));
    }

    /// Returns the next notice as an event.
    pub(super) fn pop<B, T>(&mut self) -> Option<Event<B, T>> {
        Some(match self.0.pop_front()? {
            Notice::Exhausted(session) => Event::SessionExhausted(session),
            Notice::Cancelled(request) => Event::Cancelled(request),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
