//! Draining without losing a call (`docs/wire-protocol.md` §8.5).
//!
//! A draining server asks its clients to leave, and serves them until they have. The client decides when: it knows of
//! requests still in a queue or on the network, unknown to the server. A session thus ends when the client closes it,
//! and no call is lost in between.

use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::{SessionId, Status};
use petrel_transport::Transport;

use super::{Endpoint, Health, SessionEnd, SessionState};
use crate::control::{ControlPlane, ToNexus};
use crate::time::as_ns;

pub(super) const DRAINING: &str = "the server is draining";

/// Nanoseconds between checks whether a session's last call has ended: short for an operator who waits for a process to
/// end.
const CHECK_INTERVAL_NS: u64 = 200_000;

/// An endpoint's state of draining, as server and as client.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// Whether this endpoint no longer accepts sessions.
    is_draining: bool,
    /// Client sessions whose servers drain.
    leaving: Vec<SessionId>,
}

impl Drain {
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Returns the number of client sessions whose servers drain.
    pub(super) fn leaving_count(&self) -> usize {
        self.leaving.len()
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Begins to drain: asks all clients to make no further calls, and accepts no further sessions. Outstanding calls
    /// are served while the event loop runs.
    pub fn begin_drain(&mut self) {
        self.drain.is_draining = true;
        self.set_health(Health::NotServing);
        for (id, link) in self.served() {
            let Some(agreed) = self.local.core.agreed(id) else { continue };
            self.control.post(ToNexus::DrainSession {
                link,
                peer_session: agreed.peer_session,
                peer_token: agreed.peer_token,
                message: DRAINING.to_owned(),
            });
        }
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
        let left = self.served();
        for (id, _) in &left {
            self.end_session(*id, SessionEnd::Drained, Status::Unavailable, DRAINING);
        }
        left.len()
    }

    /// Returns the number of other endpoints' sessions to this endpoint.
    pub fn sessions_served(&self) -> usize {
        let links = self.local.sessions.with_links();
        links.filter(|(id, _)| self.local.core.is_server(*id)).count()
    }

    fn served(&self) -> Vec<(SessionId, crate::control::LinkId)> {
        let links = self.local.sessions.with_links();
        let mut served: Vec<_> = links.filter(|(id, _)| self.local.core.is_server(*id)).collect();
        // In an order that a simulation can repeat.
        served.sort_unstable();
        served
    }

    /// Handles a server's request to leave the session.
    pub(super) fn on_draining(&mut self, index: u32, token: u32) {
        let Some(id) = self.local.core.find(index, token) else { return };
        self.local.core.begin_drain(id);
        // The next session at this address may be with another process, wherever the link leads.
        self.local.sessions.retire_link_of(id);
        self.local.hub.note_session(id, &SessionState::Draining);
        self.drain.leaving.push(id);
        self.work_flag.raise();
    }

    /// Closes the sessions to be left whose last call has ended.
    pub(super) fn close_drained(&mut self, now_ns: u64) {
        if self.drain.leaving.is_empty() {
            return;
        }
        let mut leaving = std::mem::take(&mut self.drain.leaving);
        leaving.retain(|&id| {
            let is_busy =
                self.local.core.pending_calls(id) > 0 && !planted("endpoint_drain_does_not_wait");
            if !is_busy {
                self.end_session(id, SessionEnd::Drained, Status::Unavailable, DRAINING);
            }
            is_busy
        });
        self.drain.leaving = leaving;
        if !self.drain.leaving.is_empty() {
            self.work_flag.raise_at(now_ns + CHECK_INTERVAL_NS);
        }
    }
}
