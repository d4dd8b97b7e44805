//! The sessions of an endpoint: opening and closing them, draining, multicast to groups of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use petrel_proto::{SessionId, Status};
use petrel_transport::{PeerId, Transport};

use super::Endpoint;
use super::drain::CHECK_INTERVAL_NS;
use super::groups::{MembershipState, MulticastConfig};
use super::health::Health;
use super::in_loop::InLoop;
use super::peer::Peer;
use super::sessions::SessionControl;
use crate::control::{ControlPlane, EndpointId, Reason};
use crate::error::{Error, SetupError};
use crate::time::as_ns;
use crate::values::{SessionEnd, SessionState};

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Opens a session to endpoint 0 of the process whose control address is `remote`.
    ///
    /// Returns at once: the session opens while the event loop runs, and calls wait until then. If the session cannot
    /// be opened, they fail, and [`Endpoint::session_state`] returns the reason.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint has no room for another session.
    pub fn connect(&mut self, remote: SocketAddr) -> Result<SessionId, Error> {
        self.connect_to(remote, EndpointId(0))
    }

    /// Opens a session to an endpoint of the process whose control address is `remote`; see [`Endpoint::connect`].
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub fn connect_to(
        &mut self,
        remote: SocketAddr,
        endpoint: EndpointId,
    ) -> Result<SessionId, Error> {
        self.session_control().connect(remote, endpoint, None)
    }

    /// Opens a session back to the client of a session: on the same link, with this endpoint as the client. Each call opens another session.
    /// The client must have set [`SessionConfig::reverse`](super::SessionConfig::reverse) or
    /// [callbacks](crate::client::ClientBuilder::serve).
    ///
    /// Returns at once, like [`Endpoint::connect`]. The session ends with the link, at the latest.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the client takes no calls; NOT_FOUND if the session has ended; RESOURCE_EXHAUSTED when the endpoint has no room
    /// for another session.
    pub fn connect_back(&mut self, session: SessionId) -> Result<SessionId, Error> {
        let link = self.local.sessions.link_of(session);
        self.session_control().connect_on(link)
    }

    /// Opens a session and runs the event loop until it is open.
    ///
    /// # Errors
    /// The status and text with which the session ended, in bounded time.
    pub fn connect_wait(&mut self, remote: SocketAddr) -> Result<SessionId, Error> {
        self.connect_wait_to(remote, EndpointId(0))
    }

    /// Opens a session to an endpoint and runs the event loop until it is open.
    ///
    /// # Errors
    /// The status and text with which the session ended, in bounded time.
    pub fn connect_wait_to(
        &mut self,
        remote: SocketAddr,
        endpoint: EndpointId,
    ) -> Result<SessionId, Error> {
        let _running = InLoop::enter();
        let id = self.connect_to(remote, endpoint)?;
        loop {
            match self.session_state(id) {
                SessionState::Opening => self.turn(),
                SessionState::Open | SessionState::Draining => return Ok(id),
                SessionState::Ended(reason) => {
                    let reason = reason.unwrap_or_else(|| Reason::new(Status::Unknown, "closed"));
                    return Err(Error::cannot_connect(remote, &reason));
                }
            }
        }
    }

    /// Returns the state of a session.
    pub fn session_state(&self, id: SessionId) -> SessionState {
        if self.local.core.is_draining(id) {
            return SessionState::Draining;
        }
        if self.local.core.agreed(id).is_some() {
            return SessionState::Open;
        }
        if self.local.core.is_open(id) {
            return SessionState::Opening;
        }
        SessionState::Ended(self.local.sessions.end_of(id).map(|(_, reason)| reason.clone()))
    }

    /// Returns the process at the other end of an open session.
    pub fn session_peer(&self, id: SessionId) -> Option<&Peer> {
        self.local.sessions.peer_of(id).map(Arc::as_ref)
    }

    /// Returns the transport's name of the peer of an open session.
    pub fn session_peer_id(&self, id: SessionId) -> Option<PeerId> {
        Some(self.local.sessions.link_with(id)?.id())
    }

    /// Closes a session, in either role. Its pending calls end with CANCELLED.
    pub fn close(&mut self, id: SessionId) {
        let text = "the session was closed here";
        let (end, status) = (SessionEnd::ClosedHere, Status::Cancelled);
        self.session_control().end_session(id, end, status, text);
    }

    /// Returns how and why a session ended, in either role; `None` for an existing session, or after a long time: the
    /// last 1 024 ends are kept.
    pub fn session_end(&self, id: SessionId) -> Option<(SessionEnd, &Reason)> {
        self.local.sessions.end_of(id)
    }

    /// Begins to drain: asks all clients to make no further calls, and accepts no further sessions. Outstanding calls
    /// are served while the event loop runs.
    pub fn begin_drain(&mut self) {
        self.set_health(Health::NotServing);
        self.session_control().begin_drain();
    }

    /// Drains: runs the event loop until all clients have left. After `limit` the remaining clients are sent away:
    /// their sessions are closed, and outstanding calls fail. Returns the number of those sessions, 0 when all have
    /// left in time. Sessions with this endpoint as the client stay.
    ///
    /// ```no_run
    /// # fn serve(mut endpoint: petrel::Endpoint, stop: petrel::endpoint::Stop) {
    /// endpoint.run(&stop); // until a signal handler uses the `Stop`
    /// let sent_away = endpoint.drain(std::time::Duration::from_secs(30));
    /// if sent_away > 0 {
    ///     eprintln!("{sent_away} sessions were still there after 30 s");
    /// }
    /// # }
    /// ```
    #[must_use = "calls of those that were sent away have failed"]
    pub fn drain(&mut self, limit: Duration) -> usize {
        self.begin_drain();
        let end_ns = self.transport.now().saturating_add(as_ns(limit));
        while self.sessions_served() > 0 && self.transport.now() < end_ns {
            self.run_for(Duration::from_nanos(CHECK_INTERVAL_NS), |_, _| false);
        }
        self.session_control().end_drain()
    }

    /// Returns the number of other endpoints' sessions to this endpoint.
    pub fn sessions_served(&self) -> usize {
        let links = self.local.sessions.with_links();
        links.filter(|(id, _)| self.local.core.is_server(*id)).count()
    }

    /// Sends messages to these sessions by multicast where useful, and asks the sessions now. Returns the group's number.
    ///
    /// # Errors
    /// As [`Endpoint::start_multicast`].
    pub(crate) fn send_to_members(
        &mut self,
        members: &[SessionId],
        config: MulticastConfig,
    ) -> Result<u32, SetupError> {
        self.session_control().start_multicast(members, config)
    }

    /// Ends multicast to the group with this number.
    pub(crate) fn end_group(&mut self, number: u32) {
        self.session_control().stop_multicast(number);
    }

    /// Returns the states of the members of the group with this number.
    pub(crate) fn states_of_members(
        &self,
        number: u32,
        members: &[SessionId],
    ) -> Vec<(SessionId, MembershipState)> {
        self.local.groups.members(number, members)
    }

    /// Returns the parts that open and end sessions.
    #[inline]
    pub(super) fn session_control(&mut self) -> SessionControl<'_, T, C> {
        let Self { transport, control, local, drain, joined, work_flag, .. } = self;
        SessionControl::of((transport, control), local, (drain, work_flag), joined)
    }
}
