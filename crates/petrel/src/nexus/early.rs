//! Links asked for before their endpoint is there.
//!
//! A process listens as soon as its nexus starts; its endpoints follow when their threads get to
//! it. A client that was quick should not be refused for that, so its LINK_OPEN waits a while.

use petrel_proto::control::LinkOpen;

use super::connection::ConnectionId;
use super::deadlines::Due;
use super::limits::{EARLY_LINKS_MAX, EARLY_LINKS_PER_SITE_MAX, EARLY_WAIT};
use super::net::Network;
use super::reactor::Reactor;
use crate::control::EndpointId;

/// A LINK_OPEN that waits for its endpoint.
#[derive(Debug)]
pub(super) struct EarlyLink {
    connection: ConnectionId,
    open: LinkOpen,
}

impl EarlyLink {
    /// The connection that asked.
    pub(super) fn connection(&self) -> ConnectionId {
        self.connection
    }

    fn is(&self, connection: ConnectionId, link: u32) -> bool {
        self.connection == connection && self.open.link == link
    }
}

impl<N: Network> Reactor<N> {
    /// Keeps a LINK_OPEN whose endpoint is not there, if there is room.
    pub(super) fn keep_early_link(&mut self, connection: ConnectionId, open: &LinkOpen) -> bool {
        let is_early = !self.endpoints.contains_key(&EndpointId(open.to_endpoint));
        if !is_early || self.early_links.len() >= EARLY_LINKS_MAX {
            return false;
        }
        let site_of = |id| self.connections.get(id).map(|connection| connection.site);
        let site = site_of(&connection);
        let of_site = self.early_links.iter().filter(|early| site_of(&early.connection) == site);
        if of_site.count() >= EARLY_LINKS_PER_SITE_MAX {
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

    /// Answers those that waited for this endpoint.
    pub(super) fn welcome_early_links(&mut self, endpoint: EndpointId) {
        let waiting = std::mem::take(&mut self.early_links);
        let (here, still): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|early| early.open.to_endpoint == endpoint.0);
        self.early_links = still;
        for early in here {
            self.answer_link_open(early.connection, &early.open);
        }
    }

    /// Answers one that has waited long enough, if it still waits: its endpoint is not there.
    pub(super) fn on_early_link_due(&mut self, connection: ConnectionId, link: u32) {
        if let Some(early) = self.take_early_link(connection, link) {
            self.answer_link_open(connection, &early.open);
        }
    }

    /// Forgets those of a connection that has ended.
    pub(super) fn forget_early_links(&mut self, connection: ConnectionId) {
        self.early_links.retain(|early| early.connection != connection);
    }

    /// Forgets one that its opener has given up.
    pub(super) fn take_early_link(
        &mut self,
        connection: ConnectionId,
        link: u32,
    ) -> Option<EarlyLink> {
        let at = self.early_links.iter().position(|early| early.is(connection, link))?;
        Some(self.early_links.swap_remove(at))
    }
}
