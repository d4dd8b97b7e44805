//! The end of connections, and of their links and requests.

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_proto::control::Goodbye;

use super::Reactor;
use crate::control::{FromNexus, Reason};
use crate::events;
use crate::nexus::connection::{Connection, Phase};
use crate::nexus::goodbye::{GoodbyeMode, not_ok};
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::shrink;
use crate::nexus::link::Stage;
use crate::nexus::net::{Network, Stream};
use crate::nexus::request::OpenRequest;
use crate::nexus::routes::Outgoing;

impl<N: Network> Reactor<N> {
    /// Ends a connection and its links; local endpoints get `reason`.
    pub(super) fn close(&mut self, id: ConnectionId, reason: &Reason, goodbye: GoodbyeMode) {
        let Some(connection) = self.connections.get_mut(&id).filter(|c| !c.is_closing()) else {
            return;
        };
        let was_connecting = matches!(connection.phase, Phase::Connecting);
        let waiting = std::mem::take(&mut connection.waiting);
        // The connection ends here, not with its last link.
        connection.is_retired = false;
        let links = connection.links.in_order();
        events::connection_ended(connection.remote, reason);
        self.forget_place(id);
        links.into_iter().for_each(|link| self.end_link(link, reason));
        if !planted("nexus_waiting_not_answered") {
            waiting.iter().for_each(|request| self.fail_request(request, reason.clone()));
        }
        match goodbye {
            GoodbyeMode::Send(said) if !was_connecting => self.start_closing(id, said),
            _ => self.remove_connection(id),
        }
    }

    /// Closes a connection marked to get no further links once the last link has ended.
    pub(super) fn close_if_left(&mut self, id: ConnectionId) {
        let is_over = |c: &Connection<N>| c.is_retired && c.links.is_empty() && !c.is_closing();
        if self.connections.get(&id).is_some_and(is_over) {
            let reason = Reason::new(Status::Ok, "the client has left a server that drains");
            self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
        }
    }

    /// Removes a connection from the lookup tables.
    fn forget_place(&mut self, id: ConnectionId) {
        self.awaiting_hello.remove(&id);
        self.collector.forget_requester(id);
        // Now, not when the peer has closed its end: an endpoint attached in between would get a link that nothing ever
        // takes down.
        if forgets_at_goodbye() && !planted("nexus_early_links_stay") {
            self.early_links.forget(id);
        }
        let uncounted = usize::from(!self.connections[&id].is_opener);
        assert!(self.accepted >= uncounted, "an accepted connection was counted");
        self.accepted -= uncounted;
        self.forget_route(id);
    }

    /// Stops using the connection for new links to its peer.
    pub(super) fn forget_route(&mut self, id: ConnectionId) {
        let remote = self.connections[&id].remote;
        if matches!(self.outgoing.get(&remote), Some(Outgoing::Connection(at)) if *at == id) {
            self.outgoing.remove(&remote);
        }
    }

    fn start_closing(&mut self, id: ConnectionId, said: Reason) {
        self.send(id, Goodbye { status: said.status, text: said.message });
        let is_new = self.closing.insert(id);
        assert!(is_new, "a connection says GOODBYE once: {id:?}");
        if self.closing.len() > self.capacity.closing
            && let Some(oldest) = self.closing.first().copied()
        {
            self.remove_connection(oldest);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.enter(Phase::Closing { is_shut_down: false }, self.now);
            self.unsent.push(id);
            self.unread.push(id);
            self.note_use(id);
        }
    }

    /// Shuts down this side's direction once everything is written. Closing a socket with unread bytes would send a
    /// reset, which overtakes the GOODBYE.
    pub(super) fn finish_closing(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Phase::Closing { is_shut_down } = &mut connection.phase else { return };
        // Each `shutdown` of a socket raises an event. A second call here would answer the event of the first, and the
        // thread would never sleep.
        if *is_shut_down || connection.out.len() > 0 {
            return;
        }
        *is_shut_down = true;
        if connection.stream.shutdown_write().is_err() {
            self.remove_connection(id);
        }
    }

    pub(super) fn remove_connection(&mut self, id: ConnectionId) {
        self.closing.remove(&id);
        if !forgets_at_goodbye() {
            self.early_links.forget(id);
        }
        if let Some(mut connection) = self.connections.remove(&id) {
            self.idle_connections.forget(id, &connection);
            self.net.deregister(&mut connection.stream);
            shrink(&mut self.connections);
        }
        self.counters.connections_open.set(self.connections.len());
    }

    /// Handles the end of the stream, clean or broken.
    pub(super) fn on_stream_end(&mut self, id: ConnectionId, cause: &str) {
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.is_closing() {
            return self.remove_connection(id);
        }
        self.counters.connections_broken.increment();
        let remote = connection.remote;
        let why = format!(
            "the control connection to {remote} broke ({cause}): the peer process has ended, or was \
             restarted"
        );
        self.close_and_redial(id, &Reason::new(Status::Unavailable, why));
    }

    /// Ends a connection, and repeats its requests on another while their time lasts.
    fn close_and_redial(&mut self, id: ConnectionId, reason: &Reason) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (remote, attempt) = (connection.remote, connection.attempt);
        let (again, late): (Vec<_>, Vec<_>) =
            self.take_requests(id).into_iter().partition(|request| self.now < request.give_up_at);
        if !planted("nexus_late_requests_not_answered") {
            late.iter().for_each(|request| self.fail_request(request, reason.clone()));
        }
        self.close(id, reason, GoodbyeMode::Silent);
        self.redial_later(remote, again, attempt + 1);
    }

    /// Takes back the requests for links that are not up. A full server may have dropped the connection to make room,
    /// as the oldest silent one. Or the process ended before it received the requests.
    fn take_requests(&mut self, id: ConnectionId) -> Vec<OpenRequest> {
        let Some(connection) = self.connections.get_mut(&id) else { return Vec::new() };
        let mut requests = std::mem::take(&mut connection.waiting);
        let links = connection.links.in_order();
        for link in links {
            let stage = self.links.get(&link).map(|link| link.stage());
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
        self.counters.goodbyes_received.increment();
        let Some(connection) = self.connections.get(&id) else { return };
        let text = format!("{} closed the connection: {}", connection.remote, goodbye.text);
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
        let mut all: Vec<_> = self.connections.keys().copied().collect();
        all.sort_unstable();
        for id in all {
            self.close(id, &said, GoodbyeMode::Send(said.clone()));
        }
        self.send_the_unsent();
    }

    /// Answers all outstanding requests when the nexus ends by an error.
    pub(in crate::nexus) fn abandon(&mut self, reason: &Reason) {
        // First, to refuse new requests from here on.
        self.refuse_commands(reason);
        let mut links: Vec<_> = self.links.keys().copied().collect();
        links.sort_unstable();
        links.into_iter().for_each(|link| self.end_link(link, reason));
        let mut connections: Vec<_> = self.connections.drain().collect();
        // In an order independent of the hash table: their sockets close in this order.
        connections.sort_unstable_by_key(|(id, _)| *id);
        let pauses = self.outgoing.drain().flat_map(|(_, outgoing)| match outgoing {
            Outgoing::Pause { waiting, .. } => waiting,
            Outgoing::Connection(_) => Vec::new(),
        });
        let waiting = connections.into_iter().flat_map(|(_, connection)| connection.waiting);
        let mut waiting: Vec<_> = waiting.chain(pauses).collect();
        waiting.sort_unstable_by_key(|request| (request.endpoint, request.request));
        waiting.iter().for_each(|request| self.fail_request(request, reason.clone()));
    }

    /// Reports the failure of a link request to the endpoint.
    pub(super) fn fail_request(&mut self, request: &OpenRequest, reason: Reason) {
        self.counters.links_failed.increment();
        events::link_failed(request.endpoint, request.remote, &reason);
        self.notify(request.endpoint, FromNexus::LinkFailed { request: request.request, reason });
    }
}

/// Whether early links are dropped with the GOODBYE, rather than when the peer has closed its end too.
fn forgets_at_goodbye() -> bool {
    !planted("nexus_link_of_a_closing_connection")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{AllowedTransports, EndpointId};
    use crate::nexus::reactor::tests::{attach, open_connection, reactor};

    fn gone() -> Reason {
        Reason::new(Status::Unavailable, "the test ends it")
    }

    #[test]
    fn close__takes_the_connection_out_of_all_tables_and_ends_what_it_had() {
        for is_opener in [false, true] {
            for goodbye in [GoodbyeMode::Silent, GoodbyeMode::Send(gone())] {
                let (mut reactor, mailbox) = reactor();
                let inbox = attach(&mailbox);
                reactor.run_commands();
                let (id, _peer) = open_connection(&mut reactor, is_opener);
                let remote = reactor.connections[&id].remote;
                if is_opener {
                    reactor.outgoing.insert(remote, Outgoing::Connection(id));
                }
                let up = || Stage::Up { is_opener, max_frame: 1_472 };
                let links = [5, 6].map(|number| {
                    let link = reactor.add_test_link(id, number, up());
                    reactor.counters.links_up.increment();
                    link
                });
                let waiting = OpenRequest {
                    endpoint: EndpointId(0),
                    request: 9,
                    remote,
                    remote_endpoint: EndpointId(0),
                    transports: AllowedTransports { udp: true, shm: false },
                    give_up_at: reactor.now,
                };
                reactor.connections.get_mut(&id).unwrap().waiting.push(waiting);
                assert_eq!(reactor.check_tables(), Ok(()));

                let says = matches!(goodbye, GoodbyeMode::Send(_));
                reactor.close(id, &gone(), goodbye.clone());
                assert_eq!(reactor.check_tables(), Ok(()));
                assert!(reactor.outgoing.is_empty() && reactor.links.is_empty());
                let is_closing = reactor.connections.get(&id).map(|c| c.is_closing());
                assert_eq!((is_closing, reactor.accepted), (says.then_some(true), 0));
                for link in links {
                    let Some(FromNexus::LinkDown { link: down, .. }) = inbox.pop() else {
                        panic!("the endpoint is not notified")
                    };
                    assert_eq!(down, link, "the oldest first");
                }
                let Some(FromNexus::LinkFailed { request: 9, .. }) = inbox.pop() else {
                    panic!("a request has no answer")
                };
                let stats = reactor.counters.snapshot();
                assert_eq!((stats.links_up, stats.links_failed), (0, 1));
                assert_eq!(stats.connections_open, u64::from(says));
                // The connection has ended; a second close does nothing.
                reactor.close(id, &gone(), goodbye);
                assert_eq!((reactor.closing.len(), reactor.accepted), (usize::from(says), 0));
                assert!(inbox.pop().is_none());
            }
        }
    }

    #[test]
    fn close__of_more_than_may_wait_for_their_peers_removes_the_oldest() {
        let (mut reactor, _) = reactor();
        reactor.capacity.closing = 2;
        let all = [(); 4].map(|()| open_connection(&mut reactor, false));
        for (closed, (id, _)) in all.iter().enumerate() {
            reactor.close(*id, &gone(), GoodbyeMode::Send(gone()));
            let left: Vec<_> = all.iter().map(|(id, _)| *id).take(closed + 1).collect();
            let left = &left[left.len().saturating_sub(2)..];
            assert_eq!(reactor.closing.iter().copied().collect::<Vec<_>>(), left);
            assert_eq!(reactor.check_tables(), Ok(()));
        }
        assert_eq!(reactor.connections.len(), 2);
    }

    #[test]
    fn abandon__answers_everybody_in_order() {
        let (mut reactor, mailbox) = reactor();
        let inbox = attach(&mailbox);
        reactor.run_commands();
        let request =
            |remote, request, reactor: &Reactor<crate::nexus::net::MioNetwork>| OpenRequest {
                endpoint: EndpointId(0),
                request,
                remote,
                remote_endpoint: EndpointId(0),
                transports: AllowedTransports { udp: true, shm: false },
                give_up_at: reactor.now,
            };
        let (one, _peer) = open_connection(&mut reactor, true);
        let (other, _peer) = open_connection(&mut reactor, true);
        let nowhere = ([127, 0, 0, 1], 9).into();
        for (id, number) in [(one, 7), (other, 3), (one, 1)] {
            let request = request(nowhere, number, &reactor);
            reactor.connections.get_mut(&id).unwrap().waiting.push(request);
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
        reactor.counters.links_up.add(links.len() as u64);
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
        assert!(reactor.connections.is_empty() && reactor.outgoing.is_empty());
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
        reactor.counters.links_up.add(links.len() as u64);
        reactor.say_goodbye_to_all();
        assert!(all.iter().all(|(id, _)| reactor.connections[id].is_closing()));
        let ended = std::iter::from_fn(|| match inbox.pop() {
            Some(FromNexus::LinkDown { link, .. }) => Some(link),
            _ => None,
        });
        assert_eq!(ended.collect::<Vec<_>>(), links);
    }
}
