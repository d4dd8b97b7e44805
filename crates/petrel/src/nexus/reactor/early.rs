//! Links requested before their endpoint is attached.
//!
//! A process listens as soon as the nexus starts; endpoints follow when their threads attach them. To serve an early
//! client instead of refusing it, the nexus keeps LINK_OPEN for a while.

use petrel_proto::control::LinkOpen;

use super::Reactor;
use crate::control::EndpointId;
use crate::nexus::deadlines::Due;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{EARLY_LINKS_MAX, EARLY_LINKS_PER_SOURCE_MAX, EARLY_WAIT};
use crate::nexus::net::Network;

/// A LINK_OPEN kept for an endpoint to come.
#[derive(Debug)]
pub(super) struct EarlyLink {
    connection: ConnectionId,
    open: LinkOpen,
}

impl EarlyLink {
    /// The connection that sent it.
    pub(super) fn connection(&self) -> ConnectionId {
        self.connection
    }

    fn is(&self, connection: ConnectionId, link: u32) -> bool {
        self.connection == connection && self.open.link == link
    }
}

impl<N: Network> Reactor<N> {
    /// Keeps a LINK_OPEN for an endpoint not yet attached, if there is room.
    pub(super) fn keep_early_link(&mut self, connection: ConnectionId, open: &LinkOpen) -> bool {
        let is_early = !self.endpoints.contains_key(&EndpointId(open.to_endpoint));
        if !is_early || self.early_links.len() >= EARLY_LINKS_MAX {
            return false;
        }
        let source_of = |id| self.connections.get(id).map(|connection| connection.source);
        let source = source_of(&connection);
        let of_source =
            self.early_links.iter().filter(|early| source_of(&early.connection) == source);
        if of_source.count() >= EARLY_LINKS_PER_SOURCE_MAX {
            return false;
        }
        self.counters.links_early.increment();
        self.early_links.push(EarlyLink { connection, open: open.clone() });
        self.deadlines.add(self.now + EARLY_WAIT, Due::EarlyLink(connection, open.link));
        true
    }

    pub(super) fn is_early_link(&self, connection: ConnectionId, link: u32) -> bool {
        self.early_links.iter().any(|early| early.is(connection, link))
    }

    /// Answers the links kept for this endpoint.
    pub(super) fn welcome_early_links(&mut self, endpoint: EndpointId) {
        let waiting = std::mem::take(&mut self.early_links);
        let (here, still): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|early| early.open.to_endpoint == endpoint.0);
        self.early_links = still;
        for early in here {
            self.answer_link_open(early.connection, &early.open);
        }
    }

    /// Answers a link still kept at its deadline: the endpoint is missing.
    pub(super) fn on_early_link_due(&mut self, connection: ConnectionId, link: u32) {
        if let Some(early) = self.take_early_link(connection, link) {
            self.answer_link_open(connection, &early.open);
        }
    }

    /// Drops the early links of a connection that has ended.
    pub(super) fn forget_early_links(&mut self, connection: ConnectionId) {
        self.early_links.retain(|early| early.connection != connection);
    }

    /// Removes a link given up by its opener.
    pub(super) fn take_early_link(
        &mut self,
        connection: ConnectionId,
        link: u32,
    ) -> Option<EarlyLink> {
        let at = self.early_links.iter().position(|early| early.is(connection, link))?;
        Some(self.early_links.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use mio::net::TcpStream;

    use super::*;
    use crate::nexus::connection::Connection;
    use crate::nexus::reactor::tests::{attach, reactor};

    fn open(link: u32) -> LinkOpen {
        LinkOpen {
            link,
            from_endpoint: 0,
            to_endpoint: 0,
            offers: Vec::new(),
            ecn: false,
            features: Default::default(),
        }
    }

    #[test]
    fn keep_early_link__as_many_as_a_site_may_have_and_all_sites_together() {
        let (mut reactor, mailbox) = reactor();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Two connections of each of three sources.
        for number in 0..6_u8 {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let remote = SocketAddr::from(([10, 0, 0, number / 2], 7));
            let connection = Connection::new(stream, (remote, remote), false, reactor.now);
            reactor.connections.insert(ConnectionId(usize::from(number)), connection);
        }
        let mut kept = 0;
        for source in [0, 2] {
            for link in 0..EARLY_LINKS_PER_SOURCE_MAX {
                let id = ConnectionId(source + link % 2);
                assert!(reactor.keep_early_link(id, &open(link as u32)), "{link} of {source}");
                assert!(reactor.is_early_link(id, link as u32));
                kept += 1;
                assert_eq!(reactor.counters.snapshot().links_early, kept);
            }
            if source == 0 {
                assert!(!reactor.keep_early_link(ConnectionId(0), &open(9_999)), "one more");
            }
        }
        assert_eq!(reactor.early_links.len(), EARLY_LINKS_MAX);
        assert!(!reactor.keep_early_link(ConnectionId(4), &open(0)), "a source that has none");
        assert!(reactor.take_early_link(ConnectionId(0), 1).is_none(), "the other connection's");
        assert!(reactor.take_early_link(ConnectionId(0), 2).is_some());
        assert!(!reactor.is_early_link(ConnectionId(0), 2));
        assert!(reactor.keep_early_link(ConnectionId(4), &open(0)));
        assert_eq!(reactor.counters.snapshot().links_early, kept + 1);
        reactor.forget_early_links(ConnectionId(2));
        let of = |id| reactor.early_links.iter().filter(|early| early.connection().0 == id).count();
        let half = EARLY_LINKS_PER_SOURCE_MAX / 2;
        assert_eq!([0, 1, 2, 3, 4].map(of), [half - 1, half, 0, half, 1]);
        // A link to an attached endpoint is not early.
        let _inbox = attach(&mailbox);
        reactor.run_commands();
        assert!(!reactor.keep_early_link(ConnectionId(4), &open(1)));
    }
}
