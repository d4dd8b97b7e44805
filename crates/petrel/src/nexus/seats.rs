//! Seats: permission of a connection to have links (`docs/wire-protocol.md` §8.4).
//!
//! There are fewer seats than connections: a new connection can always be greeted, ask for counters, and learn why a
//! link is refused. If all seats, or all of a site, are taken, an idle connection yields its seat: the one longest with
//! links and without a session. (A client about to open its first session is among the newest.) A connection with a
//! session never yields.

use petrel_proto::Status;

use super::closing::GoodbyeMode;
use super::connection::ConnectionId;
use super::idlers::Idle;
use super::net::Network;
use super::reactor::Reactor;
use super::shares::{Exhausted, Site};
use crate::control::Reason;

impl<N: Network> Reactor<N> {
    /// Ensures that a connection may have a further link.
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

    /// Closes the longest idle connection of `site`, or of the site with most of them.
    pub(super) fn make_seat(&mut self, site: Option<Site>) -> Option<()> {
        self.check_idlers();
        let useless = self.idlers.of(Idle::Sessionless, site).next()?;
        self.counters.dropped_idle_full.increment();
        let why = "connections are short here, and this one has no session";
        let reason = Reason::new(Status::Unavailable, why);
        self.close(useless, &reason, GoodbyeMode::Send(reason.clone()));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexus::links::Stage;
    use crate::nexus::reactor::tests::{attach, open_connection, reactor};
    use crate::nexus::sessions::tests::open as session_open;

    /// With two seats, per site or in all, the third connection gets the seat of the one longest without a session, if
    /// any.
    #[test]
    fn find_seat__of_who_has_no_session() {
        for (seats, seats_per_site, exhausted) in
            [(9, 2, Exhausted::Site("connections")), (2, 9, Exhausted::All("connections"))]
        {
            for with_session in [0, 1, 2] {
                let (mut reactor, mailbox) = reactor();
                let _inbox = attach(&mailbox);
                reactor.run_commands();
                (reactor.capacity.seats, reactor.capacity.seats_per_site) = (seats, seats_per_site);
                let peers = [(); 3].map(|()| open_connection(&mut reactor, false));
                for (id, _) in &peers[..2] {
                    assert_eq!(reactor.find_seat(*id), Ok(()));
                    let stage = Stage::Up { is_opener: false, max_frame: 1_472 };
                    reactor.add_test_link(*id, 5, stage);
                }
                for (id, _) in &peers[..with_session] {
                    reactor.on_session_open(*id, session_open(5, 1)).unwrap();
                }
                // A connection with a seat needs no other.
                assert_eq!(reactor.find_seat(peers[0].0), Ok(()));
                assert!(reactor.closing.is_empty());
                let expected = match with_session {
                    2 => Err(Reason::new(Status::ResourceExhausted, exhausted.text())),
                    _ => Ok(()),
                };
                assert_eq!(reactor.find_seat(peers[2].0), expected);
                let yields = peers[..2].get(with_session).map(|(id, _)| *id);
                assert_eq!(reactor.closing.first().copied(), yields);
                let dropped = reactor.counters.snapshot().dropped_idle_full;
                assert_eq!(dropped, u64::from(yields.is_some()));
                assert_eq!(reactor.check_tables(), Ok(()));
            }
        }
    }
}
