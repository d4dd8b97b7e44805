//! Announcements of calls by the application (see `announced.rs`).

use petrel_proto::SessionId;
use petrel_transport::Transport;

use super::Endpoint;
use super::context::Context;
use crate::control::ControlPlane;

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
