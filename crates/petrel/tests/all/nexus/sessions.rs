//! Sessions between two nexuses.

use std::collections::HashSet;

use petrel::endpoint::Reason;
use petrel::unstable::control::{FromNexus, LinkId, ToNexus};
use petrel::{Nexus, Status};
use petrel_proto::control::{Message, SessionAccept, SessionOpen};

use super::harness::*;

struct Pair {
    server_nexus: Nexus,
    server: Endpoint,
    server_link: LinkId,
    client_nexus: Nexus,
    client: Endpoint,
    link: LinkId,
}

fn pair() -> Pair {
    let ((server_nexus, address), client_nexus) = (server(V4), client());
    let mut server = attach(&server_nexus, V4);
    let mut client = attach(&client_nexus, V4);
    let link = client.link(address, 0, UDP).link;
    let server_link = server.up().link;
    Pair { server_nexus, server, server_link, client_nexus, client, link }
}

impl Pair {
    fn propose(&self, open: SessionOpen) {
        self.client.port.post(ToNexus::OpenSession { link: self.link, open });
    }

    fn answer(&self, request: u32, answer: Result<SessionAccept, Reason>) {
        let link = self.server_link;
        self.server.port.post(ToNexus::AnswerSession { link, request, answer });
    }
}

#[test]
fn session__opened_with_the_servers_values() {
    let mut pair = pair();
    pair.propose(proposal(7));
    let (link, open) = pair.server.proposed();
    assert_eq!((link, SessionOpen { link: 0, ..open }), (pair.server_link, proposal(7)));
    let lower = SessionAccept { slots: 4, credits: 1, packet_bytes: 1_208, ..acceptance(&open) };
    pair.answer(7, Ok(lower));
    let (link, accept) = pair.client.opened();
    assert_eq!((link, accept.request), (pair.link, 7));
    assert_eq!(SessionAccept { link: lower.link, ..accept }, lower);
    assert_eq!(pair.client_nexus.stats().sessions_opened, 1);
    assert_eq!(pair.server_nexus.stats().sessions_opened, 1);
}

#[test]
fn session__closed_from_either_side() {
    let mut pair = pair();
    let reason = Reason::new(Status::Ok, "done");
    let close = |link, from_client| ToNexus::CloseSession {
        link,
        peer_session: 5,
        peer_token: 0xFEED,
        from_client,
        reason: reason.clone(),
    };
    pair.client.port.post(close(pair.link, true));
    pair.server.port.post(close(pair.server_link, false));
    let ends = [(&mut pair.server, pair.server_link, true), (&mut pair.client, pair.link, false)];
    for (endpoint, at, by_client) in ends {
        match endpoint.next() {
            FromNexus::SessionClosed { link, session, token, from_client, reason: why } => {
                assert_eq!((link, session, token), (at, 5, 0xFEED));
                assert_eq!((from_client, why), (by_client, reason.clone()));
            }
            other => panic!("not SessionClosed: {other:?}"),
        }
    }
}

#[test]
fn session__refused_at_home_when_it_makes_no_sense() {
    let mut pair = pair();
    pair.propose(SessionOpen { slots: 3, ..proposal(1) });
    let (request, reason) = pair.client.refused();
    assert_eq!((request, reason.status), (1, Status::InvalidArgument));
    assert!(reason.message.contains("slots"), "{reason:?}");
    // The same request number twice.
    pair.propose(proposal(2));
    pair.propose(proposal(2));
    assert_eq!(pair.client.refused().0, 2);
    pair.server.proposed();
    // From the side that did not open the link.
    let open = proposal(3);
    pair.server.port.post(ToNexus::OpenSession { link: pair.server_link, open });
    assert_eq!(pair.server.refused().1.status, Status::FailedPrecondition);
    // Larger packets than the link allows.
    pair.propose(SessionOpen { packet_bytes: 16_949, ..proposal(4) });
    assert_eq!(pair.client.refused().1.status, Status::InvalidArgument);
}

#[test]
fn session__twenty_thousand_at_once() {
    const SESSIONS: u32 = 20_000;
    let mut pair = pair();
    (0..SESSIONS).for_each(|request| pair.propose(proposal(request)));
    for _ in 0..SESSIONS {
        let (_, open) = pair.server.proposed();
        pair.answer(open.request, Ok(acceptance(&open)));
    }
    let opened: HashSet<u32> = (0..SESSIONS).map(|_| pair.client.opened().1.request).collect();
    assert_eq!(opened.len(), SESSIONS as usize);
}

#[test]
fn session__nothing_follows_the_links_end() {
    let mut pair = pair();
    pair.propose(proposal(1));
    pair.server.proposed();
    drop(pair.server);
    assert_eq!(pair.client.down().0, pair.link);
    pair.client.port.post(ToNexus::OpenSession { link: pair.link, open: proposal(2) });
    // Any effect would come before the answer to this.
    let mut other = attach(&pair.server_nexus, V4);
    let up = pair.client.link(pair.server_nexus.local_addr().unwrap(), 0, UDP);
    assert_ne!(up.link, pair.link);
    other.up();
}

#[test]
fn session__answer_of_a_peer_beyond_the_proposal_ends_the_connection() {
    let (listener, address) = listener();
    let mut client = attach(&client(), V4);
    client.ask(address, 0, UDP);
    let mut peer = RawPeer::after_hello_by(&listener);
    peer.grant_udp();
    let link = client.up().link;
    client.port.post(ToNexus::OpenSession { link, open: proposal(1) });
    let Some(Message::SessionOpen(open)) = peer.receive() else { panic!("not SESSION_OPEN") };
    peer.send(SessionAccept { slots: 16, ..acceptance(&open) });
    assert_eq!(client.down().0, link);
    assert_eq!(peer.goodbye().status, Status::InvalidArgument);
}
