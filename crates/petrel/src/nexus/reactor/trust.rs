//! The life of trust (`docs/wire-protocol.md` §17.1): connections are left before a certificate ends, and connections of peers
//! that were revoked end at once. A look once a second costs calls and heartbeats nothing.

use std::time::{Duration, SystemTime};

use petrel_proto::Status;

use super::Reactor;
use crate::control::{FromNexus, Reason};
use crate::events;
use crate::nexus::connection::Connection;
use crate::nexus::deadlines::Due;
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::net::Network;
use crate::nexus::validity::{Age, LEAVE_WITHIN};

/// The time between two looks at all connections.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl<N: Network> Reactor<N> {
    /// Begins to look at a connection inside TLS whose peer said HELLO.
    pub(super) fn watch_trust(&mut self, id: ConnectionId) {
        let connection = self.relay.connections.get(id);
        let Some(security) = self.relay.settings().security() else { return };
        if connection.is_none_or(|connection| connection.channel().is_plain()) {
            return;
        }
        if self.revision.is_none() {
            self.revision = Some(security.revision());
            self.relay.remind(LOOK_EVERY, Due::Trust);
        }
        // The handshake may have begun before the peer was revoked.
        self.end_if_distrusted(id);
    }

    pub(super) fn on_trust_due(&mut self) {
        let Some(revision) = self.relay.settings().security().map(|all| all.revision()) else {
            return;
        };
        let has_changed = self.revision.replace(revision) != Some(revision);
        let now = SystemTime::now();
        for id in self.relay.connections.in_order() {
            if has_changed {
                self.end_if_distrusted(id);
            }
            let Some(connection) = self.relay.connections.open(id) else { continue };
            match (connection.validity().map(|validity| validity.age(now)), connection.is_opener())
            {
                (None | Some(Age::Young), _) | (Some(Age::Old), false) => {}
                (Some(Age::Overdue), _) => self.end_overdue(id),
                (Some(Age::Old | Age::Ended), _) => self.leave_for_a_new_one(id),
            }
        }
        let is_tls = |connection: &Connection<N>| !connection.channel().is_plain();
        let has_more = self.relay.connections.values().any(is_tls);
        self.revision = self.revision.filter(|_| has_more);
        if has_more {
            self.relay.remind(LOOK_EVERY, Due::Trust);
        }
    }

    /// Asks the clients of a connection's sessions to leave them for a connection with new certificates. The next look asks for sessions
    /// that were being opened.
    fn leave_for_a_new_one(&mut self, id: ConnectionId) {
        let Some(connection) = self.relay.connections.get(id) else { return };
        let (links, is_opener) = (connection.links().in_order(), connection.is_opener());
        if is_opener && !connection.is_retired() {
            self.relay.counters().connections_renewed.increment();
            events::connection_renewed(connection.remote());
            self.retire(id);
        }
        for link in links {
            if let Some(up) = self.relay.links.get(link).filter(|link| link.is_up()) {
                self.relay.notify(up.endpoint(), FromNexus::LinkDraining { link });
            }
        }
        self.close_if_left(id);
    }

    fn end_overdue(&mut self, id: ConnectionId) {
        let why =
            format!("a certificate of the connection has ended {LEAVE_WITHIN:?} ago; renew it");
        self.end_distrusted(id, why);
    }

    fn end_if_distrusted(&mut self, id: ConnectionId) {
        let peer = self.relay.connections.open(id).and_then(|open| open.channel().peer());
        let security = self.relay.settings().security();
        if let (Some(peer), Some(security)) = (peer, security)
            && let Some(why) = security.distrusts(&peer)
        {
            self.end_distrusted(id, why);
        }
    }

    fn end_distrusted(&mut self, id: ConnectionId, why: String) {
        let Some(connection) = self.relay.connections.get(id) else { return };
        self.relay.counters().dropped_distrusted.increment();
        events::distrusted(connection.remote(), connection.channel().peer().as_deref(), &why);
        let reason = Reason::new(Status::PermissionDenied, why);
        self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    }
}
