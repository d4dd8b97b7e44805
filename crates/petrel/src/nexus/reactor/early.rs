//! Links requested before their endpoint is attached.
//!
//! A process listens as soon as the nexus starts; endpoints follow when their threads attach them. To serve an early
//! client instead of refusing it, the nexus keeps LINK_OPEN for a while.

use petrel_proto::control::LinkOpen;

use crate::control::EndpointId;
use crate::nexus::deadlines::Due;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{EARLY_LINKS_MAX, EARLY_LINKS_PER_SOURCE_MAX, EARLY_WAIT};
use crate::nexus::net::Network;
use crate::nexus::relay::Relay;
use crate::source::Source;

/// The links that wait for their endpoints.
#[derive(Debug, Default)]
pub(super) struct EarlyLinks {
    kept: Vec<EarlyLink>,
}

/// A LINK_OPEN kept for an endpoint to come.
#[derive(Debug)]
struct EarlyLink {
    connection: ConnectionId,
    source: Source,
    open: LinkOpen,
}

impl EarlyLink {
    fn is(&self, connection: ConnectionId, link: u32) -> bool {
        self.connection == connection && self.open.link == link
    }
}

impl EarlyLinks {
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Keeps a LINK_OPEN for an endpoint not yet attached, if there is room. Returns true if so.
    pub(super) fn keep_if_early<N: Network>(
        &mut self,
        id: ConnectionId,
        open: &LinkOpen,
        relay: &mut Relay<N>,
    ) -> bool {
        let Some(connection) = relay.connections.get(id) else { return false };
        let is_early = !relay.endpoints.contains(EndpointId(open.to_endpoint));
        if !is_early || !self.has_room(connection.source()) {
            return false;
        }
        relay.counters().links_early.increment();
        self.keep(id, connection.source(), open);
        relay.remind(EARLY_WAIT, Due::EarlyLink(id, open.link));
        true
    }

    /// Returns true if a further link of this source may wait.
    fn has_room(&self, source: Source) -> bool {
        let of_source = self.kept.iter().filter(|early| early.source == source).count();
        self.kept.len() < EARLY_LINKS_MAX && of_source < EARLY_LINKS_PER_SOURCE_MAX
    }

    /// Keeps a link. There is room.
    fn keep(&mut self, connection: ConnectionId, source: Source, open: &LinkOpen) {
        assert!(self.has_room(source), "links are kept within the limits of all and of a source");
        assert!(!self.contains(connection, open.link), "an early link is kept once: {}", open.link);
        self.kept.push(EarlyLink { connection, source, open: open.clone() });
    }

    pub(super) fn contains(&self, connection: ConnectionId, link: u32) -> bool {
        self.kept.iter().any(|early| early.is(connection, link))
    }

    /// Takes a link whose time is over, or a link that the opener has given up.
    pub(super) fn take(&mut self, connection: ConnectionId, link: u32) -> Option<LinkOpen> {
        let at = self.kept.iter().position(|early| early.is(connection, link))?;
        Some(self.kept.swap_remove(at).open)
    }

    /// Takes the links to an endpoint that has come, in the order of their arrival.
    pub(super) fn take_for(&mut self, endpoint: EndpointId) -> Vec<(ConnectionId, LinkOpen)> {
        let is_for_it = |early: &mut EarlyLink| early.open.to_endpoint == endpoint.0;
        let taken = self.kept.extract_if(.., is_for_it);
        taken.map(|early| (early.connection, early.open)).collect()
    }

    /// Drops the links of a connection that has ended.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.kept.retain(|early| early.connection != connection);
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.kept.iter().map(|early| early.connection)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use mio::net::TcpStream;

    use super::*;
    use crate::nexus::connection::Connection;
    use crate::nexus::reactor::links::tests::link_open as open;
    use crate::nexus::reactor::tests::{attach, reactor};

    #[test]
    fn keep_if_early__limits_per_source_and_in_all() {
        let (mut reactor, mailbox) = reactor();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Two connections of each of three sources.
        for number in 0..6_u8 {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let remote = SocketAddr::from(([10, 0, 0, number / 2], 7));
            let connection =
                Connection::new(stream.into(), (remote, remote), false, reactor.relay.now());
            reactor.relay.connections.add(ConnectionId(usize::from(number)), connection);
        }
        let mut kept = 0;
        for source in [0, 2] {
            for link in 0..EARLY_LINKS_PER_SOURCE_MAX {
                let id = ConnectionId(source + link % 2);
                assert!(
                    reactor.early_links.keep_if_early(id, &open(link as u32), &mut reactor.relay),
                    "{link} of {source}"
                );
                assert!(reactor.early_links.contains(id, link as u32));
                kept += 1;
                assert_eq!(reactor.relay.counters().snapshot().links_early, kept);
            }
            if source == 0 {
                assert!(
                    !reactor.early_links.keep_if_early(
                        ConnectionId(0),
                        &open(9_999),
                        &mut reactor.relay
                    ),
                    "one more"
                );
            }
        }
        assert_eq!(reactor.early_links.len(), EARLY_LINKS_MAX);
        assert!(
            !reactor.early_links.keep_if_early(ConnectionId(4), &open(0), &mut reactor.relay),
            "a source that has none"
        );
        assert!(reactor.early_links.take(ConnectionId(0), 1).is_none(), "the other connection's");
        assert!(reactor.early_links.take(ConnectionId(0), 2).is_some());
        assert!(!reactor.early_links.contains(ConnectionId(0), 2));
        assert!(reactor.early_links.keep_if_early(ConnectionId(4), &open(0), &mut reactor.relay));
        assert_eq!(reactor.relay.counters().snapshot().links_early, kept + 1);
        reactor.early_links.forget(ConnectionId(2));
        let of = |id| reactor.early_links.connections().filter(|at| at.0 == id).count();
        let half = EARLY_LINKS_PER_SOURCE_MAX / 2;
        assert_eq!([0, 1, 2, 3, 4].map(of), [half - 1, half, 0, half, 1]);
        // A link to an attached endpoint is not early.
        let _inbox = attach(&mailbox);
        reactor.run_commands();
        assert!(!reactor.early_links.keep_if_early(ConnectionId(4), &open(1), &mut reactor.relay));
    }

    panics! {
        keep__a_number_that_waits_already: "an early link is kept once" => {
            let source = Source::of([10, 0, 0, 1].into(), None, None);
            let mut early = EarlyLinks::default();
            early.keep(ConnectionId(3), source, &open(5));
            early.keep(ConnectionId(3), source, &open(5));
        };
        keep__more_than_a_source_may_have: "within the limits of all and of a source" => {
            let source = Source::of([10, 0, 0, 1].into(), None, None);
            let mut early = EarlyLinks::default();
            for link in 0..=EARLY_LINKS_PER_SOURCE_MAX {
                early.keep(ConnectionId(3), source, &open(link as u32));
            }
        };
    }
}
