//! Messages between the nexus and this process's endpoints: commands, requested counters, and links that wait for an
//! endpoint to come.

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_proto::control::LinkOpen;

use super::Reactor;
use super::stats::{Collection, replies};
use crate::control::{EndpointId, FromNexus, LinkId, Reason, ToNexus};
use crate::nexus::deadlines::Due;
use crate::nexus::endpoint::Endpoint;
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{EARLY_WAIT, STATS_TIMEOUT};
use crate::nexus::mailbox::Command;
use crate::nexus::net::Network;
use crate::nexus::request::OpenRequest;

impl<N: Network> Reactor<N> {
    pub(in crate::nexus) fn run_commands(&mut self) {
        for command in self.mailbox.take() {
            match command {
                Command::Attach(id, media, inbox) => {
                    self.endpoints.insert(id, Endpoint::new(media, inbox));
                    self.welcome_early_links(id);
                }
                Command::Post(id, message) => self.on_post(id, message),
                Command::StopListening => self.stop_listening(),
                Command::Shutdown => self.is_stopping = true,
            }
        }
    }

    /// Answers commands that will not be carried out.
    pub(super) fn refuse_commands(&mut self, reason: &Reason) {
        for command in self.mailbox.close() {
            match command {
                // Recently attached endpoints have made requests, too.
                Command::Attach(id, media, inbox) => {
                    self.endpoints.insert(id, Endpoint::new(media, inbox));
                }
                Command::Post(id, ToNexus::OpenLink { request, .. }) => {
                    self.notify(id, FromNexus::LinkFailed { request, reason: reason.clone() });
                }
                // The endpoint knows the end of the link already, and nothing may follow that message.
                Command::Post(id, ToNexus::OpenSession { link, open }) if self.owns(id, link) => {
                    let (request, reason) = (open.request, reason.clone());
                    self.notify(id, FromNexus::SessionRefused { link, request, reason });
                }
                // The next endpoint with this number must not get messages about the links of the former.
                Command::Post(id, ToNexus::Gone) => self.on_gone(id),
                Command::Post(..) | Command::StopListening | Command::Shutdown => {}
            }
        }
    }

    fn on_post(&mut self, from: EndpointId, message: ToNexus) {
        match message {
            ToNexus::OpenLink { request, remote, remote_endpoint, transports } => {
                self.open_link(OpenRequest {
                    endpoint: from,
                    request,
                    remote,
                    remote_endpoint,
                    transports,
                    give_up_at: self.now + self.settings.step_timeout,
                });
            }
            ToNexus::OpenSession { link, open } => self.propose_session(from, link, open),
            ToNexus::AnswerSession { link, request, answer } => {
                self.answer_session(from, link, request, answer);
            }
            ToNexus::CloseSession { link, peer_session, peer_token, from_client, reason } => {
                let session = (peer_session, peer_token);
                self.close_session(from, link, session, from_client, reason);
            }
            ToNexus::SessionEnded { link, slots } => self.remove_session(from, link, slots),
            ToNexus::DrainSession { link, peer_session, peer_token, message } => {
                self.drain_session(from, link, (peer_session, peer_token), message);
            }
            ToNexus::JoinGroup { link, join } => self.offer_group(from, link, join),
            ToNexus::AnswerGroup { link, request, answer } => {
                self.answer_group(from, link, request, answer);
            }
            ToNexus::LeaveGroup { link, group } => self.leave_group(from, link, group),
            ToNexus::CloseLink { link, reason } if self.owns(from, link) => {
                self.close_link(link, &reason);
            }
            ToNexus::CloseLink { .. } => self.counters.late_messages.increment(),
            ToNexus::Stats { request, json } => self.on_endpoint_stats(from, request, json),
            ToNexus::Gone => self.on_gone(from),
        }
    }

    /// Returns true if the link exists and belongs to the endpoint. It may have ended a moment ago.
    pub(super) fn owns(&self, endpoint: EndpointId, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.endpoint() == endpoint)
    }

    fn on_gone(&mut self, endpoint: EndpointId) {
        self.endpoints.remove(&endpoint);
        let reason = Reason::new(
            Status::Unavailable,
            format!("endpoint {} of the peer was closed", endpoint.0),
        );
        let links = self.links.iter().filter(|(_, link)| link.endpoint() == endpoint);
        let mut links: Vec<LinkId> = links.map(|(id, _)| *id).collect();
        links.sort_unstable();
        links.into_iter().for_each(|link| self.close_link(link, &reason));
        if !planted("nexus_next_endpoint_is_answered") {
            self.forget_requests(endpoint);
        }
        self.collector.forget_endpoint(endpoint);
        self.answer_if_complete();
    }

    /// Handles a request for counters, which processes of the same host may make.
    pub(super) fn on_stats_request(&mut self, connection: ConnectionId, request: u32) {
        let Some(requester) = self.connections.get(&connection) else { return };
        if !requester.is_of_this_host() {
            self.counters.stats_refused.increment();
            let why = "counters are for processes of the same host: ask there, at this address";
            let reason = Reason::new(Status::PermissionDenied, why);
            return self.close(connection, &reason, GoodbyeMode::Send(reason.clone()));
        }
        if !self.collector.join(connection, request) {
            self.begin_collection();
            self.collector.join(connection, request);
        }
        self.answer_if_complete();
    }

    fn begin_collection(&mut self) {
        let id = self.collector.begin(self.endpoints.keys().copied());
        self.deadlines.add(self.now + STATS_TIMEOUT, Due::Stats(id));
        for endpoint in self.endpoints.values() {
            endpoint.tell(FromNexus::StatsRequested { request: id });
        }
    }

    fn on_endpoint_stats(&mut self, from: EndpointId, request: u64, json: String) {
        if !self.collector.answer(from, request, json) {
            self.counters.late_messages.increment();
        }
        self.answer_if_complete();
    }

    fn answer_if_complete(&mut self) {
        if let Some(collection) = self.collector.take_complete() {
            self.answer_requesters(collection);
        }
    }

    pub(super) fn on_stats_due(&mut self, id: u64) {
        if let Some(collection) = self.collector.take_due(id) {
            self.answer_requesters(collection);
        }
    }

    fn answer_requesters(&mut self, collection: Collection) {
        let nexus = self.counters.snapshot().to_json();
        let udp_no_ports = self.net.udp_no_ports();
        let json = collection.json(self.settings.incarnation, &nexus, udp_no_ports);
        for (connection, request) in collection.into_requesters() {
            self.counters.stats_answered.increment();
            replies(request, &json).for_each(|reply| self.send(connection, reply));
        }
    }

    /// Keeps a LINK_OPEN for an endpoint not yet attached, if there is room.
    pub(super) fn keep_early_link(&mut self, id: ConnectionId, open: &LinkOpen) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        let is_early = !self.endpoints.contains_key(&EndpointId(open.to_endpoint));
        if !is_early || !self.early_links.has_room(connection.source) {
            return false;
        }
        self.counters.links_early.increment();
        self.early_links.keep(id, connection.source, open);
        self.deadlines.add(self.now + EARLY_WAIT, Due::EarlyLink(id, open.link));
        true
    }

    /// Answers the links kept for this endpoint.
    fn welcome_early_links(&mut self, endpoint: EndpointId) {
        for (connection, open) in self.early_links.take_for(endpoint) {
            self.answer_link_open(connection, &open);
        }
    }

    /// Answers a link still kept at its deadline: the endpoint is missing.
    pub(super) fn on_early_link_due(&mut self, connection: ConnectionId, link: u32) {
        if let Some(open) = self.early_links.take(connection, link) {
            self.answer_link_open(connection, &open);
        }
    }

    /// Sends a message to an endpoint that is still attached.
    pub(super) fn notify(&self, endpoint: EndpointId, message: FromNexus<N::Link>) {
        if let Some(endpoint) = self.endpoints.get(&endpoint) {
            endpoint.tell(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::control::{GroupLeave, Offer, SessionClose};

    use super::*;
    use crate::nexus::limits::INBOX_MAX;
    use crate::nexus::link::Stage;
    use crate::nexus::reactor::sessions::tests::open as session_open;
    use crate::nexus::reactor::tests::{attach, open_connection, reactor};

    /// A peer cannot add to the inbox of an overloaded endpoint: requests are refused, and a message without an answer
    /// closes the peer's connection.
    #[test]
    fn peers__add_nothing_to_an_inbox_that_is_full() {
        let (mut reactor, mailbox) = reactor();
        let inbox = attach(&mailbox);
        reactor.run_commands();
        let fill = || {
            while inbox.len() < INBOX_MAX {
                inbox.push(FromNexus::StatsRequested { request: 0 });
            }
        };
        let mut say = |what: usize| {
            let (at, peer) = open_connection(&mut reactor, false);
            reactor.add_test_link(at, 5, Stage::Up { is_opener: false, max_frame: 1_472 });
            let before = reactor.counters.snapshot();
            match what {
                0 => {
                    let offers = vec![Offer::Udp { port: 9, max_frame: 1_472 }];
                    let (link, from_endpoint, to_endpoint) = (6, 0, 0);
                    let open = LinkOpen {
                        link,
                        from_endpoint,
                        to_endpoint,
                        offers,
                        ecn: false,
                        features: Default::default(),
                    };
                    reactor.on_link_open(at, &open).unwrap();
                }
                1 => reactor.on_session_open(at, session_open(5, 1)).unwrap(),
                2 => {
                    let (link, session, token, from_client) = (5, 1, 2, true);
                    let (status, text) = (Status::Ok, String::new());
                    let close = SessionClose { link, session, token, from_client, status, text };
                    reactor.on_session_close(at, close);
                }
                _ => reactor.on_group_leave(at, GroupLeave { link: 5, group: 1 }).unwrap(),
            }
            let after = reactor.counters.snapshot();
            let refused = (after.links_refused - before.links_refused)
                + (after.sessions_refused - before.sessions_refused);
            let is_left = reactor.closing.contains(&at) || !reactor.connections.contains_key(&at);
            drop(peer);
            (refused, is_left)
        };
        for (what, has_answer) in [(0, true), (1, true), (2, false), (3, false)] {
            fill();
            let said = say(what);
            assert_eq!(said, (u64::from(has_answer), !has_answer), "{what}");
            // An endpoint learns of a link's end in any case.
            assert_eq!(inbox.len(), INBOX_MAX + usize::from(!has_answer));
            while inbox.len() >= INBOX_MAX {
                inbox.pop();
            }
            assert_eq!(say(what), (0, false), "{what}");
            assert_eq!(inbox.len(), INBOX_MAX, "it got the last place");
        }
    }
}
