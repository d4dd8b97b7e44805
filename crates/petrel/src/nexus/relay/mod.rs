//! The links between endpoints and peers, and the messages that pass over them.
//!
//! The relay has the connections, the endpoints and the links between both. It passes messages on and keeps the tables
//! in step. The reactor ends connections, and asks for links again.
//!
//! | file | concern |
//! | --- | --- |
//! | `sessions` | proposals and answers |
//! | `groups` | multicast groups |
//! | `heartbeat` | heartbeats, and the round trips of paths |

mod groups;
mod heartbeat;
pub(super) mod sessions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use petrel_proto::control::Message;

use super::connections::Connections;
use super::counters::Counters;
use super::deadlines::{Deadlines, Due};
use super::endpoint::Endpoints;
use super::goodbye::Ending;
use super::ids::{ConnectionId, Tokens};
use super::limits::Capacity;
use super::link::{Link, Stage};
use super::links::Links;
use super::net::Network;
use super::request::OpenRequest;
use super::settings::Settings;
use crate::control::{EndpointId, FromNexus, LinkId, Reason};
use crate::events;

/// The state that most events concern.
#[derive(Debug)]
pub(super) struct Relay<N: Network> {
    settings: Settings,
    counters: Arc<Counters>,
    /// The time at the beginning of the turn.
    now: Instant,
    pub(super) connections: Connections<N>,
    pub(super) endpoints: Endpoints<N>,
    pub(super) links: Links,
    deadlines: Deadlines,
    tokens: Tokens,
}

impl<N: Network> Relay<N> {
    /// A relay without connections. Their tokens are numbered from `first_token`.
    pub(super) fn new(
        settings: Settings,
        counters: Arc<Counters>,
        capacity: Capacity,
        now: Instant,
        first_token: usize,
    ) -> Self {
        Self {
            settings,
            counters,
            now,
            connections: Connections::new(capacity),
            endpoints: Endpoints::default(),
            links: Links::default(),
            deadlines: Deadlines::default(),
            tokens: Tokens::from(first_token),
        }
    }

    /// Begins a turn of the reactor at this time.
    pub(super) fn begin_turn(&mut self, now: Instant) {
        assert!(now >= self.now, "the time of the nexus does not go back");
        self.now = now;
    }

    /// Returns the time at the beginning of the turn.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns the numbers for new sockets.
    pub(super) fn tokens(&mut self) -> &mut Tokens {
        &mut self.tokens
    }

    /// Has a subject looked at again after this time.
    pub(super) fn remind(&mut self, after: Duration, due: Due) {
        self.deadlines.add(self.now + after, due);
    }

    pub(super) fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// Takes a deadline that has passed.
    pub(super) fn take_due(&mut self) -> Option<Due> {
        self.deadlines.take(self.now)
    }

    /// Removes settled deadlines if there are many: `is_live` decides about subjects that the relay does not have.
    pub(super) fn sweep_deadlines(&mut self, is_live: impl Fn(&Due) -> bool) {
        if !self.deadlines.is_crowded() {
            return;
        }
        let links = &self.links;
        self.deadlines.sweep(|due| match due {
            Due::Link(link) => links.get(*link).is_some_and(|link| !link.is_up()),
            Due::Session(link, name) => {
                links.get(*link).is_some_and(|link| link.proposal(*name).is_some())
            }
            other => is_live(other),
        });
    }

    /// Queues a message, to be sent at the end of the turn.
    pub(super) fn send(&mut self, id: ConnectionId, message: impl Into<Message>) {
        if self.connections.send(id, &message.into()).is_err() {
            self.counters.unsendable_messages.increment();
        }
    }

    pub(super) fn notify(&self, endpoint: EndpointId, message: FromNexus<N::Link>) {
        self.endpoints.notify(endpoint, message);
    }

    /// Reports the failure of a link request to the endpoint.
    pub(super) fn fail_request(&self, request: &OpenRequest, reason: Reason) {
        self.counters.links_failed.increment();
        let endpoint = request.endpoint();
        events::link_failed(endpoint, request.remote(), &reason);
        self.notify(endpoint, FromNexus::LinkFailed { request: request.number(), reason });
    }

    pub(super) fn link_at(&self, id: ConnectionId, number: u32) -> Option<LinkId> {
        let link = self.connections.get(id).and_then(|c| c.links().get(number));
        if link.is_none() {
            self.counters.late_messages.increment();
        }
        link
    }

    /// Returns the connection of an endpoint's link, and the link's number there. The link may have ended, and the
    /// endpoint was or is being notified.
    fn place_of(&self, from: EndpointId, id: LinkId) -> Option<(ConnectionId, u32)> {
        if !self.links.owns(from, id) {
            self.counters.late_messages.increment();
            return None;
        }
        let link = &self.links[&id];
        Some((link.connection(), link.number()))
    }

    /// Sends an endpoint a message of a peer, unless the endpoint does not keep up.
    fn pass_on(&self, endpoint: EndpointId, message: FromNexus<N::Link>) -> Result<(), Ending> {
        if self.endpoints.is_overloaded(endpoint) {
            return Err(Ending::overloaded());
        }
        self.notify(endpoint, message);
        Ok(())
    }

    /// Adds a link with a number in a connection. The nexus gives the link up if the next step is not made in time.
    pub(super) fn add_link(
        &mut self,
        at: (ConnectionId, u32),
        endpoint: EndpointId,
        peer_endpoint: u16,
        (stage, key_path): (Stage, Option<u32>),
    ) -> LinkId {
        let step = self.settings.step_timeout();
        let link = Link::new(at, endpoint, peer_endpoint, stage, self.now + step);
        let link = link.with_key_path(key_path);
        let id = self.links.add(link);
        self.remind(step, Due::Link(id));
        self.connections.add_link(at.0, at.1, id, self.now);
        id
    }

    /// Allows a link as much time for the next step as for the first.
    pub(super) fn extend_deadline(&mut self, id: LinkId) {
        let step = self.settings.step_timeout();
        if let Some(link) = self.links.get_mut(id) {
            link.extend(self.now + step);
            self.remind(step, Due::Link(id));
        }
    }

    /// Removes a link from all tables. The caller ends an exchange of the link's memory.
    pub(super) fn remove_link(&mut self, id: LinkId) -> Option<Link> {
        let link = self.links.remove(id)?;
        self.connections.remove_link(id, &link, self.now);
        if link.is_up() {
            self.counters.links_up.decrement();
        }
        Some(link)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::Relay;
    use crate::nexus::net::Network;
    use crate::nexus::reactor::tests::reactor;
    use crate::security::Security;

    impl<N: Network> Relay<N> {
        /// Gives the process credentials.
        pub(in crate::nexus) fn set_test_security(&mut self, security: Arc<dyn Security>) {
            self.settings = self.settings.clone().with_security(Some(security));
        }
    }

    panics! {
        begin_turn__before_the_last_one: "the time of the nexus does not go back" => {
            let (mut reactor, _mailbox) = reactor();
            let now = reactor.relay.now();
            reactor.relay.begin_turn(now + Duration::from_secs(5));
            reactor.relay.begin_turn(now);
        };
    }
}
