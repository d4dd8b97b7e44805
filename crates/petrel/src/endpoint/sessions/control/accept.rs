//! Sessions with the endpoint as the server; and draining, at both ends (`docs/wire-protocol.md` §8.5).

use petrel_planted::planted;
use petrel_proto::control::{SessionAccept, SessionOpen};
use petrel_proto::limits::PACKET_BYTES_MIN;
use petrel_proto::{Accepted, Agreed, PeerKey, SessionId, Status};
use petrel_transport::Transport;

use super::super::Link;
use super::{RING_FULL, SessionControl};
use crate::control::{ControlPlane, LinkId, Reason, ToNexus};
use crate::endpoint::callbacks::SharedCallbacks;
use crate::endpoint::context::Local;
use crate::endpoint::drain::{CHECK_INTERVAL_NS, DRAINING};
use crate::events;
use crate::slot_shares::slots_for;
use crate::values::{CallbacksKey, Reverse, SessionEnd, SessionState};

const TAKES_NONE: &str = "this endpoint takes no sessions";

const LEAVES: &str = "this endpoint leaves the link";

impl<T: Transport, C: ControlPlane<T::Link>> SessionControl<'_, T, C> {
    /// Handles the proposal of a session by its client.
    pub(super) fn on_proposed(&mut self, link: LinkId, open: &SessionOpen) {
        let request = open.request;
        let answer = self.accept(link, open);
        if let Err(reason) = &answer {
            let peer = self.local.sessions.link(link).map(|link| link.peer().name);
            events::session_refused(self.control.endpoint_id(), peer, reason);
        }
        self.control.post(ToNexus::AnswerSession { link, request, answer });
    }

    /// Accepts a session as its server, or returns why not.
    fn accept(&mut self, name: LinkId, open: &SessionOpen) -> Result<SessionAccept, Reason> {
        let config = *self.local.sessions.config();
        if self.drain.is_draining() {
            return Err(Reason::new(Status::Unavailable, DRAINING));
        }
        let Some(link) = self.local.sessions.link(name) else {
            return Err(Reason::new(Status::Unavailable, "the link is not up"));
        };
        let callbacks = self.callbacks_on(link)?;
        let methods = self.local.authorizer.judge(link.peer())?;
        let (peer, knows_order, has_paths) = (link.id(), link.knows_order(), link.has_paths());
        let packet_bytes = self.packet_bytes(peer).min(open.packet_bytes);
        if packet_bytes < PACKET_BYTES_MIN {
            let text = format!("packets of {packet_bytes} bytes are too small");
            return Err(Reason::new(Status::FailedPrecondition, text));
        }
        let credits = open.credits.min(self.local.sessions.credits_for(name));
        if credits == 0 && open.credits > 0 {
            return Err(Reason::new(Status::ResourceExhausted, RING_FULL));
        }
        let token = self.control.random() as u32;
        let agreed = Agreed {
            peer: PeerKey(peer.0),
            peer_session: open.session,
            peer_token: open.token,
            slots: slots_for(open.slots, config.slots, self.local.core.server_slots()),
            credits,
            packet_bytes,
            peer_message_bytes_max: open.max_message,
        };
        let slots = agreed.slots;
        let (first_request, request_bytes_max) = (open.first_request, config.message_bytes_max);
        let accepted = Accepted { agreed, token, first_request, request_bytes_max };
        let accepted = self.local.core.accept(accepted);
        let id =
            accepted.map_err(|error| Reason::new(Status::ResourceExhausted, error.to_string()))?;
        self.local.authorizer.limit(id, methods);
        self.local.authorizer.confine(id, callbacks);
        if knows_order {
            self.local.core.accept_order(id);
        }
        self.local.sessions.put_on_link(id, name);
        self.local.sessions.draw_credits(id, credits);
        self.accept_source(id, peer);
        if has_paths {
            self.use_paths(id);
        }
        self.report_open(id);
        Ok(SessionAccept {
            link: 0,
            request: open.request,
            session: id.index,
            token,
            slots,
            credits,
            max_message: config.message_bytes_max,
            packet_bytes,
        })
    }

    /// Returns the callbacks that the sessions of the peer reach on a link; `None` for the handlers of the endpoint.
    fn callbacks_on(&self, link: &Link) -> Result<Option<SharedCallbacks>, Reason> {
        let none = || Reason::new(Status::FailedPrecondition, TAKES_NONE);
        match link.serves() {
            _ if link.is_retired() => Err(Reason::new(Status::Unavailable, LEAVES)),
            Reverse::Endpoint if self.local.sessions.config().accept => Ok(None),
            Reverse::Callbacks(key) => self.local.callbacks.get(key).map(Some).ok_or_else(none),
            Reverse::Endpoint | Reverse::No => Err(none()),
        }
    }

    /// Judges the clients of all sessions again.
    pub(in crate::endpoint) fn judge_again(&mut self) {
        for (id, link) in served(self.local) {
            let Some(link) = self.local.sessions.link(link) else { continue };
            match self.local.authorizer.judge(link.peer()) {
                Ok(methods) => self.local.authorizer.change(id, methods),
                Err(reason) => {
                    let peer = Some(link.peer().name);
                    events::session_refused(self.control.endpoint_id(), peer, &reason);
                    self.end_session(id, SessionEnd::Refused, reason.status, &reason.message);
                }
            }
        }
    }

    /// Accepts no further sessions, and asks all clients to make no further calls.
    pub(in crate::endpoint) fn begin_drain(&mut self) {
        self.drain.begin();
        for (id, link) in served(self.local) {
            self.ask_to_leave(id, link, DRAINING);
        }
    }

    /// Asks the client of a session to make no further calls.
    fn ask_to_leave(&mut self, id: SessionId, link: LinkId, why: &str) {
        let Some(agreed) = self.local.core.agreed(id) else { return };
        self.control.post(ToNexus::DrainSession {
            link,
            peer_session: agreed.peer_session,
            peer_token: agreed.peer_token,
            message: why.to_owned(),
        });
    }

    /// Leaves the client sessions of a link at the end of the link's connection (§17.1), and asks the clients of server sessions to leave.
    /// A half-open session is left when the nexus asks again.
    pub(super) fn drain_link(&mut self, name: LinkId) {
        let Some(link) = self.local.sessions.link(name) else { return };
        for id in link.sessions().collect::<Vec<_>>() {
            match self.local.core.is_server(id) {
                true => self.ask_to_leave(id, name, "a certificate ends"),
                false => self.leave_session(id),
            }
        }
        self.local.sessions.retire_link(name);
        self.close_if_over(Some(name));
    }

    /// Closes a link that gets no further sessions and has none. The peer's sessions on a link without others are asked to leave.
    pub(super) fn close_if_over(&mut self, link: Option<LinkId>) {
        let Some(name) = link else { return };
        if self.local.sessions.is_over(name) {
            let reason = Reason::new(Status::Unavailable, "the client has left the link");
            return self.control.post(ToNexus::CloseLink { link: name, reason });
        }
        let Some(link) = self.local.sessions.link(name).filter(|link| link.is_retired()) else {
            return;
        };
        if link.sessions().all(|id| self.local.core.is_server(id)) {
            for id in link.sessions().collect::<Vec<_>>() {
                self.ask_to_leave(id, name, LEAVES);
            }
        }
    }

    /// Closes the links that were opened for callbacks, whose client has gone.
    pub(in crate::endpoint) fn end_callbacks(&mut self, key: CallbacksKey) {
        for link in self.local.sessions.opened_for(Reverse::Callbacks(key)) {
            self.close_orphan(link);
        }
    }

    /// Closes a link that has come up for the callbacks of a client that is gone.
    pub(super) fn close_if_orphaned(&mut self, name: LinkId) {
        let opened_for = self.local.sessions.link(name).and_then(Link::opened_for);
        if let Some(Reverse::Callbacks(key)) = opened_for
            && self.local.callbacks.get(key).is_none()
        {
            self.close_orphan(name);
        }
    }

    fn close_orphan(&mut self, link: LinkId) {
        let reason = Reason::new(Status::Unavailable, "the client is gone");
        self.control.post(ToNexus::CloseLink { link, reason: reason.clone() });
        self.on_link_down(link, &reason);
    }

    /// Ends the sessions of clients that have not left. Returns their number.
    pub(in crate::endpoint) fn end_drain(&mut self) -> usize {
        assert!(self.drain.is_draining(), "clients are asked to leave before they are sent away");
        let remaining = served(self.local);
        for (id, _) in &remaining {
            self.end_session(*id, SessionEnd::Drained, Status::Unavailable, DRAINING);
        }
        remaining.len()
    }

    /// Handles a server's request to leave the session.
    pub(super) fn on_draining(&mut self, index: u32, token: u32) {
        // A peer may name any session of the link, also a session of its own.
        let named = self.local.core.find(index, token);
        if let Some(id) = named.filter(|id| !self.local.core.is_server(*id)) {
            self.leave_session(id);
        }
    }

    /// Makes no further calls on a session, and closes it after the last pending one.
    pub(in crate::endpoint) fn leave_session(&mut self, id: SessionId) {
        // A server that asks again tells nothing new.
        if self.local.core.is_draining(id) || !self.local.core.is_open(id) {
            return;
        }
        assert!(!self.local.core.is_server(id), "a client leaves a session: {id:?}");
        self.local.core.begin_drain(id);
        // Another process may serve the next session at this address: it needs a new link.
        self.local.sessions.retire_link_of(id);
        self.local.hub.set_session_state(id, &SessionState::Draining);
        self.drain.leave(id);
        self.work_flag.raise();
    }

    /// Closes the sessions to be left whose last call has ended.
    pub(in crate::endpoint) fn close_drained(&mut self, now_ns: u64) {
        if self.drain.leaving_count() == 0 {
            return;
        }
        let core = &self.local.core;
        let over = self
            .drain
            .take_left(|id| core.pending_calls(id) == 0 || planted("endpoint_drain_does_not_wait"));
        for id in over {
            self.end_session(id, SessionEnd::Drained, Status::Unavailable, DRAINING);
        }
        if self.drain.leaving_count() > 0 {
            self.work_flag.raise_at(now_ns + CHECK_INTERVAL_NS);
        }
    }
}

/// Returns the sessions with this endpoint as the server, in an order that a simulation can repeat.
fn served(local: &Local) -> Vec<(SessionId, LinkId)> {
    let links = local.sessions.with_links();
    let mut served: Vec<_> = links.filter(|(id, _)| local.core.is_server(*id)).collect();
    served.sort_unstable();
    served
}
