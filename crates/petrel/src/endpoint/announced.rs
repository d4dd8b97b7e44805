//! Calls announced ahead: prefetches the memory of the sessions that the application will call.
//!
//! With thousands of sessions no cache has the memory of a random one. A call then waits for the session's entry, and
//! after that for its slot. The server learns of a request when the burst arrives (`ahead.rs`); the client learns of a
//! call when the application makes it, unless the application announces it.

use petrel_proto::{Core, SessionId};

use super::Endpoint;
use super::context::Context;
use super::context::continuation::Continuation;
use crate::control::ControlPlane;
use crate::msgbuf::MsgBuf;
use crate::prefetch::prefetch;
use petrel_transport::Transport;

/// Announcements between the two steps: the first one's line must have arrived when the second step reads it.
const SLOT_BEHIND: usize = 4;

/// The latest announced sessions, whose slots were not prefetched yet.
#[derive(Default)]
pub(super) struct Announced {
    sessions: [Option<SessionId>; SLOT_BEHIND],
    next: usize,
}

impl Announced {
    /// Takes the first step for a session, and the second one for an earlier session.
    #[inline]
    fn announce(&mut self, core: &Core<MsgBuf, Continuation>, session: SessionId) {
        core.call_session_addresses(session).into_iter().for_each(prefetch);
        if let Some(earlier) = self.replace(session) {
            core.call_slot_addresses(earlier).into_iter().for_each(prefetch);
        }
    }

    /// Remembers a session. Returns the oldest remembered one, which is forgotten.
    #[inline]
    fn replace(&mut self, session: SessionId) -> Option<SessionId> {
        let earlier = self.sessions[self.next].replace(session);
        self.next = (self.next + 1) % SLOT_BEHIND;
        earlier
    }
}

impl<S: 'static> Context<'_, S> {
    /// Announces a call: starts loading the memory of a client session, without waiting. Announce eight to sixteen
    /// calls ahead, in the order of the calls: the second half of the memory is loaded four announcements later.
    ///
    /// For applications that call thousands of sessions and know their next calls. No cache has the memory of all
    /// sessions, and a call that is not announced waits for it. An announcement changes nothing else: the call need not
    /// follow, and a session that has ended is ignored.
    ///
    /// ```
    /// # use petrel::{Context, endpoint::SessionId};
    /// # fn call_one(cx: &mut Context<'_, ()>, session: SessionId) {}
    /// fn call_all(cx: &mut Context<'_, ()>, sessions: &[SessionId]) {
    ///     const AHEAD: usize = 8;
    ///     sessions.iter().take(AHEAD).for_each(|session| cx.prefetch_session(*session));
    ///     for (index, session) in sessions.iter().enumerate() {
    ///         if let Some(later) = sessions.get(index + AHEAD) {
    ///             cx.prefetch_session(*later);
    ///         }
    ///         call_one(cx, *session);
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn prefetch_session(&mut self, session: SessionId) {
        self.local.announced.announce(&self.local.core, session);
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Announces a call: see [`Context::prefetch_session`].
    #[inline]
    pub fn prefetch_session(&mut self, session: SessionId) {
        self.local.announced.announce(&self.local.core, session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replace__returns_the_session_announced_four_before() {
        let session = |index| SessionId { index, generation: 1 };
        let mut announced = Announced::default();
        for index in 0..4 * SLOT_BEHIND as u32 {
            let earlier = index.checked_sub(SLOT_BEHIND as u32).map(session);
            assert_eq!(announced.replace(session(index)), earlier);
        }
    }
}
