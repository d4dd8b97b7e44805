//! The TCP connections that carry the frames of links (`docs/wire-protocol.md` §16).
//!
//! The opener of a link dials the address of the control connection again, and presents the ticket of the link in place of
//! HELLO. Behind a load balancer another process may answer, which does not know the ticket: the opener dials once more. When both
//! sides have agreed, the socket leaves the nexus, and the endpoints read and write it by themselves.

use petrel_proto::Status;
use petrel_proto::control::{StreamAccept, StreamOpen};

use super::Reactor;
use crate::control::{LinkId, Reason};
use crate::nexus::connection::StreamFor;
use crate::nexus::goodbye::{Ending, GoodbyeMode};
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::STREAM_DIALS_MAX;
use crate::nexus::link::{Ready, Stage};
use crate::nexus::links::TICKET_BYTES;
use crate::nexus::media::stream;
use crate::nexus::net::Network;

impl<N: Network> Reactor<N> {
    /// Opener: dials the link's stream, where the acceptor expects the ticket.
    pub(super) fn begin_stream(&mut self, id: LinkId, ticket: [u8; TICKET_BYTES], max_frame: u32) {
        self.relay.extend_deadline(id);
        if let Some(link) = self.relay.links.get_mut(id) {
            link.agree_on_exchange(stream::KIND);
            self.dial_stream(StreamFor::new(id, ticket, max_frame));
        }
    }

    fn dial_stream(&mut self, carried: StreamFor) {
        let id = carried.link();
        let Some(link) = self.relay.links.get(id) else { return };
        let Some(connection) = self.relay.connections.get(link.connection()) else { return };
        match self.connect(connection.remote()) {
            Ok(dialed) => {
                if let Some(connection) = self.relay.connections.get_mut(dialed) {
                    connection.carry(carried);
                }
            }
            Err(error) => self.fall_back(id, &error.to_string()),
        }
    }

    /// Opener: handles the end of a connection for a link before the agreement. `NOT_FOUND` is the answer of another
    /// process.
    pub(super) fn on_stream_failed(&mut self, carried: StreamFor, reason: &Reason) {
        let is_awaited = self.relay.links.get(carried.link()).is_some_and(|link| {
            matches!(link.stage(), Stage::Exchanging { kind: stream::KIND, .. })
        });
        if !is_awaited {
            return;
        }
        match carried.again() {
            Some(again) if reason.status == Status::NotFound => self.dial_stream(again),
            Some(_) => self.fall_back(carried.link(), &reason.message),
            None => {
                let why = format!(
                    "{STREAM_DIALS_MAX} connections to its address have reached other processes"
                );
                self.fall_back(carried.link(), &why);
            }
        }
    }

    /// Acceptor: makes a connection the stream of a link, as its peer asks. `rest` are the bytes behind the message.
    pub(super) fn on_stream_open(&mut self, id: ConnectionId, open: StreamOpen, rest: &[u8]) {
        let is_new = self.relay.connections.get(id).is_some_and(|connection| {
            !connection.is_opener() && !connection.is_open() && !connection.is_closing()
        });
        if !is_new || !rest.is_empty() {
            let what = "STREAM_OPEN, which is the only message of its side";
            return self.on_ending(id, Ending::Violation(what));
        }
        let Some(link) = self.relay.links.redeem_for_stream(&open.ticket) else {
            self.relay.counters().streams_dropped.increment();
            let why = "no link of this process waits for a stream with this ticket";
            let reason = Reason::new(Status::NotFound, why);
            return self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
        };
        let number = self.relay.links[&link].number();
        self.relay.send(id, StreamAccept { link: number });
        match self.take_stream(id, self.promised_frame(link), Vec::new()) {
            Ok(ready) => self.bring_up(link, ready),
            Err(reason) => self.close_link(link, &reason),
        }
    }

    fn promised_frame(&self, link: LinkId) -> u32 {
        match self.relay.links[&link].stage() {
            Stage::Promised { max_frame, .. } => *max_frame,
            stage => panic!("a ticket is for a link that was promised: {stage:?}"),
        }
    }

    /// Opener: brings the link up over the stream, as the acceptor has agreed. `rest` are the bytes behind the message:
    /// frames.
    pub(super) fn on_stream_accept(&mut self, id: ConnectionId, accept: StreamAccept, rest: &[u8]) {
        let carried = self.relay.connections.get_mut(id).and_then(|c| c.take_carried());
        let Some(carried) = carried else {
            let what = "STREAM_ACCEPT of a connection without STREAM_OPEN";
            return self.on_ending(id, Ending::Violation(what));
        };
        let link = carried.link();
        let is_its_link = self.relay.links.get(link).is_some_and(|link| {
            link.number() == accept.link
                && matches!(link.stage(), Stage::Exchanging { kind: stream::KIND, .. })
        });
        if !is_its_link {
            let reason = Reason::new(Status::Aborted, "the link has ended");
            return self.close(id, &reason, GoodbyeMode::Silent);
        }
        match self.take_stream(id, carried.max_frame(), rest.to_vec()) {
            Ok(ready) => self.bring_up(link, ready),
            Err(reason) => self.fall_back(link, &reason.message),
        }
    }

    /// Takes the socket of a connection out of the nexus, with the messages so far written.
    fn take_stream(
        &mut self,
        id: ConnectionId,
        max_frame: u32,
        received: Vec<u8>,
    ) -> Result<Ready<N::Link>, Reason> {
        let now = self.relay.now();
        let broken =
            |why: String| Reason::new(Status::Unavailable, format!("the stream broke: {why}"));
        let gone = || broken("its connection has ended".to_owned());
        let connection = self.relay.connections.get_mut(id).ok_or_else(gone)?;
        let written = connection.flush(now).map_err(|error| error.to_string());
        // An empty socket has room for the few bytes of an agreement.
        let written = match connection.unsent_bytes() {
            0 => written,
            _ => written.and(Err("it accepts no bytes".to_owned())),
        };
        if let Err(why) = written {
            let reason = broken(why);
            self.close(id, &reason, GoodbyeMode::Silent);
            return Err(reason);
        }
        self.relay.connections.uncount(id);
        let mut connection = self.relay.connections.remove(id).ok_or_else(gone)?;
        self.relay.counters().connections_open.set(self.relay.connections.len());
        self.net.deregister(connection.stream_mut());
        let (stream, cipher) = connection.into_stream();
        let transport = self.net.stream_link((stream, cipher), max_frame, received);
        let transport = transport.map_err(|error| broken(error.to_string()))?;
        Ok(Ready { transport, max_frame, kind: stream::KIND, ecn: false })
    }
}
