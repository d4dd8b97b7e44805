//! The end of connections, and of their links and requests.

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_proto::control::{DecodeError, Fault, Goodbye};

use super::Reactor;
use crate::control::{EndpointId, Reason};
use crate::events;
use crate::nexus::connection::Connection;
use crate::nexus::goodbye::{Ending, GoodbyeMode, not_ok};
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{HELLO_TIMEOUT, MESSAGE_TIMEOUT};
use crate::nexus::link::Stage;
use crate::nexus::net::Network;
use crate::nexus::request::OpenRequest;
use crate::security::SecurityError;

impl<N: Network> Reactor<N> {
    /// Ends a connection and its links; local endpoints get `reason`.
    pub(super) fn close(&mut self, id: ConnectionId, reason: &Reason, goodbye: GoodbyeMode) {
        let Some(connection) = self.relay.connections.get_mut(id).filter(|c| !c.is_closing())
        else {
            return;
        };
        let was_connecting = connection.is_connecting();
        let waiting = connection.begin_end();
        let carried = connection.take_carried();
        let links = connection.links().in_order();
        events::connection_ended(connection.remote(), reason, !was_connecting);
        self.forget_place(id);
        links.into_iter().for_each(|link| self.end_link(link, reason));
        assert!(
            self.relay.connections.get(id).is_none_or(|ended| ended.links().is_empty()),
            "no link outlives its connection: {id:?}"
        );
        if !planted("nexus_waiting_not_answered") {
            waiting.iter().for_each(|request| self.relay.fail_request(request, reason.clone()));
        }
        match goodbye {
            GoodbyeMode::Send(said) if !was_connecting => self.start_closing(id, said),
            _ => self.remove_connection(id),
        }
        if let Some(carried) = carried {
            self.on_stream_failed(carried, reason);
        }
    }

    /// Closes a connection marked to get no further links once the last link has ended.
    pub(super) fn close_if_left(&mut self, id: ConnectionId) {
        if self.relay.connections.get(id).is_some_and(Connection::is_left) {
            let reason = Reason::new(Status::Ok, "the client has left the connection");
            self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
        }
    }

    /// Removes a connection from the lookup tables.
    fn forget_place(&mut self, id: ConnectionId) {
        self.collector.forget_requester(id);
        // Early links are dropped now, not when the peer has closed its end: an endpoint attached in between would get a link that nothing
        // takes down.
        if forgets_at_goodbye() && !planted("nexus_early_links_stay") {
            self.early_links.forget(id);
        }
        self.relay.connections.uncount(id);
        self.forget_route(id);
    }

    /// Stops using the connection for new links to its peer.
    pub(super) fn forget_route(&mut self, id: ConnectionId) {
        self.routes.forget(self.relay.connections[&id].remote(), id);
    }

    /// Sends further links to the peer's address over another connection: another process may listen there by now.
    pub(super) fn retire(&mut self, id: ConnectionId) {
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        connection.retire();
        self.forget_route(id);
    }

    fn start_closing(&mut self, id: ConnectionId, said: Reason) {
        self.relay.send(id, Goodbye { status: said.status, text: said.message });
        if let Some(oldest) = self.relay.connections.begin_closing(id, self.relay.now()) {
            self.remove_connection(oldest);
        }
    }

    /// Shuts down this side's direction once everything is written.
    pub(super) fn finish_closing(&mut self, id: ConnectionId) {
        let connection = self.relay.connections.get_mut(id);
        if connection.is_some_and(|connection| !connection.shut_down()) {
            self.remove_connection(id);
        }
    }

    pub(super) fn remove_connection(&mut self, id: ConnectionId) {
        if !forgets_at_goodbye() {
            self.early_links.forget(id);
        }
        if let Some(mut connection) = self.relay.connections.remove(id) {
            self.net.deregister(connection.stream_mut());
        }
        self.relay.counters().connections_open.set(self.relay.connections.len());
    }

    /// Handles the end of the stream, clean or broken.
    pub(super) fn on_stream_end(&mut self, id: ConnectionId, cause: &str) {
        let Some(connection) = self.relay.connections.get(id) else { return };
        if connection.is_closing() {
            return self.remove_connection(id);
        }
        self.relay.counters().connections_broken.increment();
        let remote = connection.remote();
        let why = format!(
            "the control connection to {remote} broke ({cause}): the peer process has ended, or was \
             restarted"
        );
        self.close_and_redial(id, &Reason::new(Status::Unavailable, why));
    }

    /// Ends a connection whose peer is not to be trusted. Another connection would end in the same way: its requests fail.
    pub(super) fn on_untrusted(&mut self, id: ConnectionId, error: &SecurityError) {
        let now = self.relay.now();
        self.relay.counters().refused_untrusted.increment();
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        let remote = connection.remote();
        events::untrusted(remote, error);
        // The alert of TLS. A peer that does not read it learns nothing.
        let _ = connection.flush(now);
        let is_opener = connection.is_opener();
        let why = match is_opener {
            true => format!("the server at {remote} is not to be trusted: {error}"),
            false => format!("the client at {remote} is not to be trusted: {error}"),
        };
        let goodbye = match !is_opener && !connection.channel().has_begun() {
            // It speaks without TLS, or another protocol.
            true => {
                connection.give_up_tls();
                connection.queue_preface();
                let text = "this process has credentials, and speaks with peers inside TLS only";
                GoodbyeMode::Send(Reason::new(Status::Unauthenticated, text))
            }
            false => GoodbyeMode::Silent,
        };
        self.close(id, &Reason::new(Status::Unauthenticated, why), goodbye);
    }

    /// Ends a connection, and repeats its requests on another while their time lasts.
    fn close_and_redial(&mut self, id: ConnectionId, reason: &Reason) {
        let Some(connection) = self.relay.connections.get(id) else { return };
        let (remote, attempt) = (connection.remote(), connection.attempt());
        let (again, late): (Vec<_>, Vec<_>) = self
            .take_requests(id)
            .into_iter()
            .partition(|request| request.is_repeated_at(self.relay.now()));
        if !planted("nexus_late_requests_not_answered") {
            late.iter().for_each(|request| self.relay.fail_request(request, reason.clone()));
        }
        self.close(id, reason, GoodbyeMode::Silent);
        self.redial_later(remote, again, attempt + 1);
    }

    /// Takes back the requests for links that are not up. A full server may have dropped the connection as the oldest
    /// silent connection, to make room. Or the process ended before the requests arrived.
    fn take_requests(&mut self, id: ConnectionId) -> Vec<OpenRequest> {
        let Some(connection) = self.relay.connections.get_mut(id) else { return Vec::new() };
        let mut requests = connection.take_waiting();
        let links = connection.links().in_order();
        for link in links {
            let stage = self.relay.links.get(link).map(|link| link.stage());
            if let Some(Stage::Requested { request, .. } | Stage::Exchanging { request, .. }) =
                stage
            {
                requests.push(request.clone());
                self.forget_link(link);
            }
        }
        requests
    }

    pub(super) fn on_goodbye(&mut self, id: ConnectionId, goodbye: &Goodbye) {
        self.relay.counters().goodbyes_received.increment();
        let Some(connection) = self.relay.connections.get(id) else { return };
        let text = format!("{} closed the connection: {}", connection.remote(), goodbye.text);
        let reason = Reason::new(not_ok(goodbye.status), text);
        // The process ends and another may follow, or the peer closes an idle connection. For any other reason a new
        // connection would get the same GOODBYE.
        match goodbye.status {
            Status::Ok | Status::Unavailable => self.close_and_redial(id, &reason),
            _ => self.close(id, &reason, GoodbyeMode::Silent),
        }
    }

    /// Says GOODBYE on all connections when the nexus's last user has gone.
    pub(in crate::nexus) fn say_goodbye_to_all(&mut self) {
        let said = Reason::new(Status::Unavailable, "the process has closed its control plane");
        for id in self.relay.connections.in_order() {
            self.close(id, &said, GoodbyeMode::Send(said.clone()));
        }
        self.send_the_unsent();
    }

    /// Answers all outstanding requests when the nexus ends by an error.
    pub(in crate::nexus) fn abandon(&mut self, reason: &Reason) {
        // New requests are refused from here on.
        self.refuse_commands(reason);
        for link in self.relay.links.select(|_| true) {
            self.end_link(link, reason);
        }
        assert_eq!(
            (self.relay.links.len(), self.relay.links.proposals()),
            (0, 0),
            "no link and no proposal outlives the control plane"
        );
        let connections = self.relay.connections.drain().into_iter();
        let waiting = connections.flat_map(|mut connection| connection.take_waiting());
        let mut waiting: Vec<_> = waiting.chain(self.routes.drain()).collect();
        waiting.sort_unstable_by_key(|request| (request.endpoint(), request.number()));
        waiting.iter().for_each(|request| self.relay.fail_request(request, reason.clone()));
    }

    /// Ends the connection of a peer whose message is not handled.
    pub(super) fn on_ending(&mut self, id: ConnectionId, ending: Ending) {
        let (reason, said) = match ending {
            Ending::Violation(what) => {
                self.relay.counters().refused_malformed.increment();
                let why = format!("the peer broke the protocol: {what}");
                let said = Reason::new(Status::InvalidArgument, what);
                (Reason::new(Status::Unavailable, why), said)
            }
            Ending::Refusal(reason) => (reason.clone(), reason),
        };
        self.close(id, &reason, GoodbyeMode::Send(said));
    }

    pub(super) fn on_malformed(&mut self, id: ConnectionId, error: DecodeError) {
        let counters = self.relay.counters();
        let counter = match error.fault() {
            Fault::Stranger => &counters.refused_strangers,
            Fault::Peer => &counters.refused_malformed,
            Fault::Version => &counters.refused_version,
        };
        counter.increment();
        let why = format!("what answers there does not follow the protocol: {error}");
        let reason = Reason::new(Status::Unavailable, why);
        let goodbye = match error.fault() {
            // The peer would not understand it. A peer that begins TLS knows by the preface, which may not have left yet, that this
            // process does without.
            Fault::Stranger => {
                let now = self.relay.now();
                if let Some(connection) = self.relay.connections.get_mut(id) {
                    let _ = connection.flush(now);
                }
                GoodbyeMode::Silent
            }
            _ => GoodbyeMode::Send(Reason::new(error.status(), error.to_string())),
        };
        self.close(id, &reason, goodbye);
    }

    pub(super) fn on_hello_timeout(&mut self, id: ConnectionId) {
        self.relay.counters().dropped_hello_timeout.increment();
        let why = format!("no HELLO within {HELLO_TIMEOUT:?}: the peer is hung, or not Petrel");
        let reason = Reason::new(Status::Unavailable, why);
        self.close(id, &reason, GoodbyeMode::Silent);
    }

    /// Drops a peer silent for too long, unless this thread was delayed and the bytes are in the socket.
    pub(super) fn on_silence(&mut self, id: ConnectionId) {
        if !planted("nexus_no_last_look") {
            self.read(id);
        }
        let Some(connection) = self.relay.connections.get(id) else { return };
        let now = self.relay.now();
        if connection.silent_at().is_none_or(|at| at > now) {
            return;
        }
        let silence = now.saturating_duration_since(connection.signs().heard());
        self.relay.counters().dropped_silent.increment();
        let why = format!(
            "no sign of life from {} for {} ms: the peer is dead or hung",
            connection.remote(),
            silence.as_millis()
        );
        let reason = Reason::new(Status::Unavailable, why);
        self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    }

    pub(super) fn on_slow_message(&mut self, id: ConnectionId) {
        self.relay.counters().dropped_slow_message.increment();
        let why = format!("a message was not complete within {MESSAGE_TIMEOUT:?}");
        let reason = Reason::new(Status::Unavailable, why);
        self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    }

    /// Drops a peer that does not read. A GOODBYE would not be read either.
    pub(super) fn on_not_reading(&mut self, id: ConnectionId) {
        self.relay.counters().dropped_not_reading.increment();
        let why = "the peer does not read its control connection: it is hung or overloaded";
        self.close(id, &Reason::new(Status::Unavailable, why), GoodbyeMode::Silent);
    }

    pub(super) fn on_idle(&mut self, id: ConnectionId) {
        self.relay.counters().connections_idle.increment();
        let reason = Reason::new(Status::Ok, "no links");
        self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    }

    /// Ends the links of an endpoint that has gone, and forgets its requests.
    pub(super) fn on_gone(&mut self, endpoint: EndpointId) {
        self.relay.endpoints.remove(endpoint);
        let reason = Reason::new(
            Status::Unavailable,
            format!("endpoint {} of the peer was closed", endpoint.0),
        );
        for link in self.relay.links.select(|link| link.endpoint() == endpoint) {
            self.close_link(link, &reason);
        }
        assert!(
            self.relay.links.iter().all(|(_, link)| link.endpoint() != endpoint),
            "no link outlives its endpoint"
        );
        if !planted("nexus_next_endpoint_is_answered") {
            // The next endpoint with the number numbers requests in the same way and must not get the answers.
            self.relay.connections.forget_requests(endpoint);
            self.routes.forget_requests(endpoint);
        }
        self.collector.forget_endpoint(endpoint, &mut self.relay, &self.net);
    }
}

/// Whether early links are dropped with the GOODBYE, rather than when the peer has closed its end too.
fn forgets_at_goodbye() -> bool {
    !planted("nexus_link_of_a_closing_connection")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::FromNexus;
    use crate::nexus::reactor::tests::{attach, open_connection, reactor};

    fn gone() -> Reason {
        Reason::new(Status::Unavailable, "the test ends it")
    }

    #[test]
    fn close__removes_the_connection_from_all_tables_and_ends_its_links() {
        for is_opener in [false, true] {
            for goodbye in [GoodbyeMode::Silent, GoodbyeMode::Send(gone())] {
                let (mut reactor, mailbox) = reactor();
                let inbox = attach(&mailbox);
                reactor.run_commands();
                let (id, _peer) = open_connection(&mut reactor, is_opener);
                let remote = reactor.relay.connections[&id].remote();
                if is_opener {
                    reactor.routes.lead(remote, id);
                }
                let up = || Stage::Up { is_opener, max_frame: 1_472 };
                let links = [5, 6].map(|number| reactor.add_test_link(id, number, up()));
                let waiting = OpenRequest::of_test(9, remote, reactor.relay.now());
                reactor.relay.connections.get_mut(id).unwrap().test_waiting().push(waiting);
                assert_eq!(reactor.check_tables(), Ok(()));

                let says = matches!(goodbye, GoodbyeMode::Send(_));
                reactor.close(id, &gone(), goodbye.clone());
                assert_eq!(reactor.check_tables(), Ok(()));
                assert!(reactor.routes.len() == 0 && (reactor.relay.links.len() == 0));
                let is_closing = reactor.relay.connections.get(id).map(|c| c.is_closing());
                assert_eq!(
                    (is_closing, reactor.relay.connections.accepted()),
                    (says.then_some(true), 0)
                );
                for link in links {
                    let Some(FromNexus::LinkDown { link: down, .. }) = inbox.pop() else {
                        panic!("the endpoint is not notified")
                    };
                    assert_eq!(down, link, "the oldest first");
                }
                let Some(FromNexus::LinkFailed { request: 9, .. }) = inbox.pop() else {
                    panic!("a request has no answer")
                };
                let stats = reactor.relay.counters().snapshot();
                assert_eq!((stats.links_up, stats.links_failed), (0, 1));
                assert_eq!(stats.connections_open, u64::from(says));
                // The connection has ended; a second close does nothing.
                reactor.close(id, &gone(), goodbye);
                assert_eq!(
                    (
                        reactor.relay.connections.closing().len(),
                        reactor.relay.connections.accepted()
                    ),
                    (usize::from(says), 0)
                );
                assert!(inbox.pop().is_none());
            }
        }
    }

    #[test]
    fn close__of_more_than_may_wait_for_their_peers_removes_the_oldest() {
        let (mut reactor, _) = reactor();
        reactor.relay.connections.test_capacity().closing = 2;
        let all = [(); 4].map(|()| open_connection(&mut reactor, false));
        for (closed, (id, _)) in all.iter().enumerate() {
            reactor.close(*id, &gone(), GoodbyeMode::Send(gone()));
            let left: Vec<_> = all.iter().map(|(id, _)| *id).take(closed + 1).collect();
            let left = &left[left.len().saturating_sub(2)..];
            assert_eq!(
                reactor.relay.connections.closing().iter().copied().collect::<Vec<_>>(),
                left
            );
            assert_eq!(reactor.check_tables(), Ok(()));
        }
        assert_eq!(reactor.relay.connections.len(), 2);
    }

    #[test]
    fn abandon__answers_all_requests_in_order() {
        let (mut reactor, mailbox) = reactor();
        let inbox = attach(&mailbox);
        reactor.run_commands();
        let request = |remote, request, reactor: &Reactor<crate::nexus::net::MioNetwork>| {
            OpenRequest::of_test(request, remote, reactor.relay.now())
        };
        let (one, _peer) = open_connection(&mut reactor, true);
        let (other, _peer) = open_connection(&mut reactor, true);
        let nowhere = ([127, 0, 0, 1], 9).into();
        for (id, number) in [(one, 7), (other, 3), (one, 1)] {
            let request = request(nowhere, number, &reactor);
            reactor.relay.connections.get_mut(id).unwrap().test_waiting().push(request);
        }
        let waiting = [5, 2].map(|number| request(nowhere, number, &reactor));
        reactor.redial_later(nowhere, waiting.into(), 1);
        let up = || Stage::Up { is_opener: true, max_frame: 1_472 };
        let links: Vec<_> = (0..16)
            .map(|number| {
                let at = if number % 3 == 0 { one } else { other };
                reactor.add_test_link(at, number, up())
            })
            .collect();
        reactor.abandon(&gone());
        for link in links {
            assert!(
                matches!(inbox.pop(), Some(FromNexus::LinkDown { link: down, .. }) if down == link)
            );
        }
        let answered = std::iter::from_fn(|| match inbox.pop() {
            Some(FromNexus::LinkFailed { request, .. }) => Some(request),
            _ => None,
        });
        assert_eq!(answered.collect::<Vec<_>>(), [1, 2, 3, 5, 7]);
        assert!(reactor.relay.connections.len() == 0 && reactor.routes.len() == 0);
    }

    /// A repeated seed must produce the same order.
    #[test]
    fn say_goodbye_to_all__in_the_order_of_the_connections() {
        let (mut reactor, mailbox) = reactor();
        let inbox = attach(&mailbox);
        reactor.run_commands();
        let all = [(); 16].map(|()| open_connection(&mut reactor, false));
        let up = || Stage::Up { is_opener: false, max_frame: 1_472 };
        let links = all.each_ref().map(|(id, _)| reactor.add_test_link(*id, 0, up()));
        reactor.say_goodbye_to_all();
        assert!(all.iter().all(|(id, _)| reactor.relay.connections[id].is_closing()));
        let ended = std::iter::from_fn(|| match inbox.pop() {
            Some(FromNexus::LinkDown { link, .. }) => Some(link),
            _ => None,
        });
        assert_eq!(ended.collect::<Vec<_>>(), links);
    }
}
