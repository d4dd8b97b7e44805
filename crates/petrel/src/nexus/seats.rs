//! Who may have links: connections that do have a *seat* (`docs/wire-protocol.md` §8.4).
//!
//! Seats are fewer than connections, so that a newcomer can always be greeted, ask for counters,
//! and be told why a link is refused. When they are all taken, or a site has its share of them, a
//! connection without use yields its seat: one with links and without a session, the one that is so
//! for the longest time. (A client that is about to open its first session is among the newest.) A
//! connection with a session never yields.

use petrel_proto::Status;

use super::closing::Farewell;
use super::connection::ConnectionId;
use super::idlers::Idle;
use super::net::Network;
use super::reactor::Reactor;
use super::shares::{Exhausted, Site};
use crate::control::Reason;

impl<N: Network> Reactor<N> {
    /// Makes sure that a connection may have a link more.
    pub(super) fn find_seat(&mut self, id: ConnectionId) -> Result<(), Reason> {
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        let site = connection.site;
        let exhausted = |what: Exhausted| Reason::new(Status::ResourceExhausted, what.text());
        self.shares.check_link(site).map_err(exhausted)?;
        if !connection.links.is_empty() {
            return Ok(());
        }
        let (of_site, all) = self.shares.seats(site);
        if of_site >= self.capacity.seats_per_site {
            return self.make_seat(Some(site)).ok_or(exhausted(Exhausted::Site("connections")));
        }
        if all >= self.capacity.seats {
            return self.make_seat(None).ok_or(exhausted(Exhausted::All("connections")));
        }
        Ok(())
    }

    /// Closes the connection that is longest without use: of this site, or of the site that has
    /// most of them.
    pub(super) fn make_seat(&mut self, site: Option<Site>) -> Option<()> {
        self.check_idlers();
        let useless = self.idlers.of(Idle::Sessionless, site).next()?;
        self.counters.dropped_idle_full.increment();
        let why = "connections are short here, and this one has no session";
        let reason = Reason::new(Status::Unavailable, why);
        self.close(useless, &reason, Farewell::Say(reason.clone()));
        Some(())
    }
}
