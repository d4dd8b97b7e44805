//! The life of trust (`docs/wire-protocol.md` §17.1): clients leave connections before a certificate ends, and connections of revoked
//! peers end at once. A look once a second costs calls and heartbeats nothing.

use std::time::{Duration, SystemTime};

use petrel_proto::Status;

use super::Reactor;
use crate::control::{FromNexus, Reason};
use crate::events;
use crate::nexus::connection::Connection;
use crate::nexus::deadlines::Due;
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::net::Network;
use crate::nexus::validity::{Age, LEAVE_WITHIN};

/// The time between two looks at all connections.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl<N: Network> Reactor<N> {
    /// Begins to look at a connection inside TLS after the peer's HELLO.
    pub(super) fn watch_trust(&mut self, id: ConnectionId) {
        let connection = self.relay.connections.get(id);
        let Some(security) = self.relay.settings().security() else { return };
        if connection.is_none_or(|connection| connection.channel().is_plain()) {
            return;
        }
        if self.revision.is_none() {
            self.revision = Some(security.revision());
            self.relay.remind(LOOK_EVERY, Due::Trust);
        }
        // The handshake may have begun before the peer was revoked.
        self.end_if_distrusted(id);
    }

    pub(super) fn on_trust_due(&mut self) {
        let Some(revision) = self.relay.settings().security().map(|all| all.revision()) else {
            return;
        };
        let has_changed = self.revision.replace(revision) != Some(revision);
        let now = SystemTime::now();
        let age = |connection: &Connection<N>| connection.validity().map(|valid| valid.age(now));
        let is_due = |connection: &Connection<N>| has_changed || age(connection) > Some(Age::Young);
        let all = self.relay.connections.iter();
        let mut due: Vec<_> = all.filter(|(_, one)| is_due(one)).map(|(id, _)| id).collect();
        due.sort_unstable();
        for id in due {
            if has_changed {
                self.end_if_distrusted(id);
            }
            let Some(connection) = self.relay.connections.open(id) else { continue };
            match (age(connection), connection.is_opener()) {
                (None | Some(Age::Young), _) | (Some(Age::Old), false) => {}
                (Some(Age::Overdue), _) => self.end_overdue(id),
                (Some(Age::Old | Age::Ended), _) => self.leave_for_a_new_one(id),
            }
        }
        let is_tls = |connection: &Connection<N>| !connection.channel().is_plain();
        let has_more = self.relay.connections.values().any(is_tls);
        self.revision = self.revision.filter(|_| has_more);
        if has_more {
            self.relay.remind(LOOK_EVERY, Due::Trust);
        }
    }

    /// Asks the clients of a connection's sessions to leave for a connection with new certificates. The next look asks again, for sessions
    /// opened meanwhile.
    fn leave_for_a_new_one(&mut self, id: ConnectionId) {
        let Some(connection) = self.relay.connections.get(id) else { return };
        let (links, is_opener) = (connection.links().in_order(), connection.is_opener());
        if is_opener && !connection.is_retired() {
            self.relay.counters().connections_renewed.increment();
            events::connection_renewed(connection.remote());
            self.retire(id);
        }
        for link in links {
            if let Some(up) = self.relay.links.get(link).filter(|link| link.is_up()) {
                self.relay.notify(up.endpoint(), FromNexus::LinkDraining { link });
            }
        }
        self.close_if_left(id);
    }

    fn end_overdue(&mut self, id: ConnectionId) {
        let why =
            format!("a certificate of the connection has ended {LEAVE_WITHIN:?} ago; renew it");
        self.end_distrusted(id, why);
    }

    fn end_if_distrusted(&mut self, id: ConnectionId) {
        let peer = self.relay.connections.open(id).and_then(|open| open.channel().peer());
        let security = self.relay.settings().security();
        if let (Some(peer), Some(security)) = (peer, security)
            && let Some(why) = security.distrusts(&peer)
        {
            self.end_distrusted(id, why);
        }
    }

    fn end_distrusted(&mut self, id: ConnectionId, why: String) {
        let Some(connection) = self.relay.connections.get(id) else { return };
        self.relay.counters().dropped_distrusted.increment();
        events::distrusted(connection.remote(), connection.channel().peer().as_deref(), &why);
        let reason = Reason::new(Status::PermissionDenied, why);
        self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::UNIX_EPOCH;

    use petrel_proto::control::Message;

    use super::*;
    use crate::nexus::channel::Channel;
    use crate::nexus::link::Stage;
    use crate::nexus::reactor::tests::{attach, open_connection, reactor, said};
    use crate::nexus::validity::Validity;
    use crate::security::{
        LinkKeys, PeerIdentity, SecureStream, Security, SecurityError, StreamCipher,
    };

    /// Distrusts all from revision 2 on.
    #[derive(Debug)]
    struct Trust(AtomicU64);

    impl Security for Trust {
        fn connect(
            &self,
            _to: SocketAddr,
            _name: Option<&str>,
        ) -> Result<Box<dyn SecureStream>, SecurityError> {
            Err(SecurityError::new("the test dials nothing"))
        }

        fn accept(&self) -> Result<Box<dyn SecureStream>, SecurityError> {
            Err(SecurityError::new("the test accepts nothing"))
        }

        fn revision(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn distrusts(&self, _peer: &PeerIdentity) -> Option<String> {
            (self.revision() > 1).then(|| "revoked".to_owned())
        }
    }

    /// TLS without a cipher, to a peer whose certificate ends at a time.
    #[derive(Debug)]
    struct Bare(u64, Vec<u8>);

    impl StreamCipher for Bare {
        fn receive(&mut self, _bytes: &[u8]) -> Result<(), String> {
            Ok(())
        }

        fn read(&mut self, _buffer: &mut [u8]) -> usize {
            0
        }

        fn write(&mut self, bytes: &[u8]) {
            self.1.extend_from_slice(bytes);
        }

        fn take_output(&mut self, output: &mut Vec<u8>) {
            output.append(&mut self.1);
        }
    }

    impl SecureStream for Bare {
        fn peer(&self) -> Option<Arc<PeerIdentity>> {
            Some(Arc::new(PeerIdentity { expires_at: Some(self.0), ..PeerIdentity::default() }))
        }

        fn link_keys(
            &self,
            _context: [u8; 8],
            _is_opener: bool,
        ) -> Result<LinkKeys, SecurityError> {
            Err(SecurityError::new("the test seals nothing"))
        }
    }

    fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
    }

    /// Looks at a connection with a link and with a certificate that ended some seconds ago. Returns whether the endpoint is to drain,
    /// whether the connection closes, and whether the connection is left.
    fn look(is_opener: bool, ended_ago: i64, revision: u64) -> (bool, bool, bool) {
        let (mut reactor, mailbox) = reactor();
        let trust = Arc::new(Trust(AtomicU64::new(1)));
        reactor.relay.set_test_security(trust.clone());
        let inbox = attach(&mailbox);
        reactor.run_commands();
        let (id, _peer) = open_connection(&mut reactor, is_opener);
        let expires_at = now().checked_add_signed(-ended_ago).unwrap();
        let connection = reactor.relay.connections.get_mut(id).unwrap();
        connection.secure(Channel::tls(Box::new(Bare(expires_at, Vec::new())), false));
        let life = Duration::from_secs(3_600);
        *connection.test_validity() = Validity::new(expires_at, SystemTime::now() - life);
        reactor.add_test_link(id, 5, Stage::Up { is_opener, max_frame: 1_472 });
        reactor.watch_trust(id);
        trust.0.store(revision, Ordering::Relaxed);
        for _ in 0..2 {
            reactor.on_trust_due();
        }
        let first = inbox.pop();
        let drains = matches!(first, Some(FromNexus::LinkDraining { .. }));
        let closes = matches!(first, Some(FromNexus::LinkDown { .. }));
        let connection = reactor.relay.connections.get(id).unwrap();
        assert_eq!(connection.is_closing(), closes);
        let is_left = connection.is_retired();
        let stats = reactor.relay.counters().snapshot();
        let counted = (stats.connections_renewed, stats.dropped_distrusted);
        assert_eq!(counted, (u64::from(is_left), u64::from(closes)));
        if closes {
            let said = said(&mut reactor, id);
            let Some(Message::Goodbye(goodbye)) = said.last() else { panic!("{said:?}") };
            assert_eq!(goodbye.status, Status::PermissionDenied);
        }
        assert_eq!(reactor.check_tables(), Ok(()));
        (drains, closes, is_left)
    }

    #[test]
    fn on_trust_due__of_certificates_that_end() {
        let (nothing, drains) = ((false, false, false), (true, false, false));
        assert_eq!((look(true, -3_600, 1), look(false, -3_600, 1)), (nothing, nothing));
        assert_eq!((look(true, -60, 1), look(false, -60, 1)), ((true, false, true), nothing));
        assert_eq!((look(true, 10, 1), look(false, 10, 1)), ((true, false, true), drains));
        let closes = (false, true, false);
        assert_eq!((look(true, 70, 1), look(false, 70, 1)), (closes, closes));
    }

    #[test]
    fn on_trust_due__of_peers_that_are_distrusted() {
        let closes = (false, true, false);
        assert_eq!((look(true, -3_600, 2), look(false, -3_600, 2)), (closes, closes));
    }

    #[test]
    fn on_trust_due__ends_with_the_last_connection_inside_tls() {
        let (mut reactor, _mailbox) = reactor();
        reactor.relay.set_test_security(Arc::new(Trust(AtomicU64::new(1))));
        let (id, _peer) = open_connection(&mut reactor, false);
        let connection = reactor.relay.connections.get_mut(id).unwrap();
        connection.secure(Channel::tls(Box::new(Bare(now() + 100, Vec::new())), false));
        reactor.watch_trust(id);
        reactor.watch_trust(id);
        assert_eq!(reactor.relay.deadlines().len(), 1);
        reactor.on_trust_due();
        assert!(reactor.revision.is_some());
        reactor.close(id, &Reason::new(Status::Ok, ""), GoodbyeMode::Silent);
        reactor.on_trust_due();
        assert_eq!(reactor.revision, None);
    }
}
