//! Admission of links: how many connections may have links (`docs/wire-protocol.md` §8.4).
//!
//! There are fewer linked connections than connections: a new connection can always exchange HELLO, ask for counters,
//! and learn why a link is refused. If the limit of all, or of a source, is reached, an idle linked connection is
//! evicted: the one longest with links and without a session. (A client about to open its first session is among the
//! newest.) A connection with a session is never evicted.

use petrel_proto::Status;

use super::Reactor;
use crate::control::Reason;
use crate::nexus::connection::Idle;
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::net::Network;
use crate::nexus::usage::{Exhausted, SourceNetwork};

impl<N: Network> Reactor<N> {
    /// The lists of idle connections follow every change of a connection.
    pub(super) fn note_use(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            self.idle_connections.follow(id, connection);
        }
    }

    /// Ensures that a connection may have a further link.
    pub(super) fn admit_link(&mut self, id: ConnectionId) -> Result<(), Reason> {
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        let source = connection.source;
        let exhausted = |what: Exhausted| Reason::new(Status::ResourceExhausted, what.text());
        self.usage.check_link(source).map_err(exhausted)?;
        if !connection.links.is_empty() {
            return Ok(());
        }
        let (of_source, all) = self.usage.linked(source);
        if of_source >= self.capacity.linked_per_source_max {
            return self
                .evict_idle_linked(Some(source))
                .ok_or(exhausted(Exhausted::Source("connections")));
        }
        if all >= self.capacity.linked_max {
            return self.evict_idle_linked(None).ok_or(exhausted(Exhausted::All("connections")));
        }
        Ok(())
    }

    /// Closes the longest idle connection of `source`, or of the source with most of them.
    pub(super) fn evict_idle_linked(&mut self, source: Option<SourceNetwork>) -> Option<()> {
        self.idle_connections.check(&self.connections);
        let idle = self.idle_connections.of(Idle::Sessionless, source).next()?;
        self.counters.dropped_idle_full.increment();
        let why = "connections are short here, and this one has no session";
        let reason = Reason::new(Status::Unavailable, why);
        self.close(idle, &reason, GoodbyeMode::Send(reason.clone()));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexus::link::Stage;
    use crate::nexus::reactor::sessions::tests::open as session_open;
    use crate::nexus::reactor::tests::{attach, open_connection, reactor};

    /// With a limit of two linked connections, per source or in all, the third takes the place of the one longest
    /// without a session, if any.
    #[test]
    fn admit_link__evicts_who_has_no_session() {
        for (linked_max, linked_per_source_max, exhausted) in
            [(9, 2, Exhausted::Source("connections")), (2, 9, Exhausted::All("connections"))]
        {
            for with_session in [0, 1, 2] {
                let (mut reactor, mailbox) = reactor();
                let _inbox = attach(&mailbox);
                reactor.run_commands();
                (reactor.capacity.linked_max, reactor.capacity.linked_per_source_max) =
                    (linked_max, linked_per_source_max);
                let peers = [(); 3].map(|()| open_connection(&mut reactor, false));
                for (id, _) in &peers[..2] {
                    assert_eq!(reactor.admit_link(*id), Ok(()));
                    let stage = Stage::Up { is_opener: false, max_frame: 1_472 };
                    reactor.add_test_link(*id, 5, stage);
                }
                for (id, _) in &peers[..with_session] {
                    reactor.on_session_open(*id, session_open(5, 1)).unwrap();
                }
                // A linked connection is within the limit already.
                assert_eq!(reactor.admit_link(peers[0].0), Ok(()));
                assert!(reactor.closing.is_empty());
                let expected = match with_session {
                    2 => Err(Reason::new(Status::ResourceExhausted, exhausted.text())),
                    _ => Ok(()),
                };
                assert_eq!(reactor.admit_link(peers[2].0), expected);
                let yields = peers[..2].get(with_session).map(|(id, _)| *id);
                assert_eq!(reactor.closing.first().copied(), yields);
                let dropped = reactor.counters.snapshot().dropped_idle_full;
                assert_eq!(dropped, u64::from(yields.is_some()));
                assert_eq!(reactor.check_tables(), Ok(()));
            }
        }
    }
}
