//! Who may have links: connections that do have a *seat* (`docs/wire-protocol.md` §8.4).
//!
//! Seats are fewer than connections, so that a newcomer can always be greeted, ask for counters,
//! and be told why a link is refused. When they are all taken, or a site has its share of them, a
//! connection without use yields its seat: one with links and without a session, the one that is so
//! for the longest time. (A client that is about to open its first session is among the newest.) A
//! connection with a session never yields.

use petrel_proto::Status;

use super::closing::Farewell;
use super::connection::{Connection, ConnectionId};
use super::reactor::Reactor;
use super::shares::{Exhausted, Site};
use crate::control::Reason;

impl Connection {
    /// Whether a peer made the connection and it has links.
    fn is_seated(&self) -> bool {
        !self.is_opener && self.is_open() && !self.links.is_empty()
    }

    /// Whether there is neither a session on its links nor one proposed.
    fn has_no_use(&self) -> bool {
        self.is_seated() && self.session_bytes == 0 && self.proposals == 0
    }
}

impl Reactor {
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
        let candidates = self.connections.iter().filter(|(_, c)| c.has_no_use());
        let candidates = candidates.filter(|(_, c)| site.is_none_or(|site| c.site == site));
        let candidates = candidates.map(|(id, c)| (*id, c.site, c.quiet_since)).collect();
        let useless = of_the_greediest(candidates)?;
        self.counters.dropped_idle_full.increment();
        let why = "connections are short here, and this one has no session";
        let reason = Reason::new(Status::Unavailable, why);
        self.close(useless, &reason, Farewell::Say(reason.clone()));
        Some(())
    }
}

/// Of connections with their sites: the one with the least key at the site that has most of them.
pub(super) fn of_the_greediest<K: Ord>(
    mut candidates: Vec<(ConnectionId, Site, K)>,
) -> Option<ConnectionId> {
    candidates.sort_unstable_by_key(|(_, site, _)| *site);
    let greediest = candidates.chunk_by(|(_, a, _), (_, b, _)| a == b).max_by_key(|of| of.len())?;
    greediest.iter().min_by(|(_, _, a), (_, _, b)| a.cmp(b)).map(|(id, ..)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_greediest__takes_the_least_of_the_largest_site() {
        let site = |host| Site::of(([10, 0, 0, host], 1).into());
        let of = |id, host, key: u32| (ConnectionId(id), site(host), key);
        assert_eq!(of_the_greediest::<u32>(Vec::new()), None);
        let crowd = vec![of(1, 1, 5), of(2, 2, 9), of(3, 1, 0), of(4, 2, 7), of(5, 2, 8)];
        assert_eq!(of_the_greediest(crowd), Some(ConnectionId(4)));
    }
}
