//! Bytes to messages, messages to bytes, and dispatch (`docs/wire-protocol.md` §8.1).

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_proto::control::{DecodeError, Fault, GroupRefuse, Message};

use super::Reactor;
use crate::control::Reason;
use crate::nexus::connection::{Phase, Received};
use crate::nexus::goodbye::Violation;
use crate::nexus::goodbye::{GoodbyeMode, not_ok};
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{OUT_SOFT_BYTES, READS_PER_TURN};
use crate::nexus::net::{Network, Ready};

impl<N: Network> Reactor<N> {
    pub(super) fn on_connection_event(&mut self, id: ConnectionId, event: Ready) {
        if self.is_connecting(id) {
            self.on_dial_progress(id);
        } else {
            self.read(id);
            if event.is_writable {
                self.unsent.push(id);
            }
        }
    }

    fn is_connecting(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|c| matches!(c.phase, Phase::Connecting))
    }

    /// Reads the bytes left by an earlier turn.
    pub(super) fn read_the_unread(&mut self) {
        for id in std::mem::take(&mut self.unread) {
            self.read(id);
        }
    }

    /// Reads a bounded number of times and leaves the rest for the next turn.
    pub(super) fn read(&mut self, id: ConnectionId) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let is_drained = (0..READS_PER_TURN).any(|_| !self.read_once(id, &mut buffer));
        self.buffer = buffer;
        if !is_drained && !planted("nexus_rest_is_not_read") {
            self.unread.push(id);
        }
    }

    /// Reads once. Returns true if reading should go on.
    fn read_once(&mut self, id: ConnectionId, buffer: &mut [u8]) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        if connection.out.len() > OUT_SOFT_BYTES && !connection.is_closing() {
            connection.is_paused = true;
            return false;
        }
        match connection.receive(buffer) {
            Received::Bytes(count) => {
                self.digest(id, &buffer[..count]);
                true
            }
            Received::Nothing => false,
            Received::End(cause) => {
                self.on_stream_end(id, &cause);
                false
            }
        }
    }

    /// Handles the messages in received bytes.
    fn digest(&mut self, id: ConnectionId, mut bytes: &[u8]) {
        let now = self.now;
        let mut has_progressed = false;
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            connection.last_received = now;
            if connection.is_closing() {
                return;
            }
            match connection.decoder.decode(&mut bytes) {
                Ok(Some(message)) => {
                    has_progressed = true;
                    if let Err(violation) = self.on_message(id, message) {
                        return self.on_violation(id, violation);
                    }
                }
                Ok(None) => return connection.note_midway(has_progressed, now),
                Err(error) => return self.on_malformed(id, error),
            }
        }
    }

    fn on_message(&mut self, id: ConnectionId, message: Message) -> Result<(), Violation> {
        match message {
            Message::Hello(hello) => self.on_hello(id, hello),
            Message::Goodbye(goodbye) => self.on_goodbye(id, &goodbye),
            Message::Ping(ping) => self.answer_ping(id, ping),
            // Its arrival is all that matters.
            Message::Pong(_) => {}
            Message::LinkOpen(open) => return self.on_link_open(id, &open),
            Message::LinkAccept(accept) => return self.on_link_accept(id, &accept),
            Message::LinkRefuse(refuse) => return self.on_link_refuse(id, refuse),
            Message::LinkClose(close) => self.on_link_close(id, close),
            Message::SessionOpen(open) => return self.on_session_open(id, open),
            Message::SessionAccept(accept) => return self.on_session_accept(id, accept),
            Message::SessionRefuse(refuse) => return self.on_session_refuse(id, refuse),
            Message::SessionClose(close) => self.on_session_close(id, close),
            Message::SessionDrain(drain) => return self.on_session_drain(id, drain),
            Message::GroupJoin(join) => return self.on_group_join(id, join),
            Message::GroupAccept(accept) => {
                return self.on_group_answer(id, accept.link, accept.request, Ok(()));
            }
            Message::GroupRefuse(GroupRefuse { link, request, status, text }) => {
                let reason = Reason::new(not_ok(status), text);
                return self.on_group_answer(id, link, request, Err(reason));
            }
            Message::GroupLeave(leave) => return self.on_group_leave(id, leave),
            Message::StatsRequest(request) => self.on_stats_request(id, request.request),
            Message::StatsReply(_) => return Err(Violation("STATS_REPLY that nobody asked for")),
        }
        Ok(())
    }

    fn on_violation(&mut self, id: ConnectionId, Violation(what): Violation) {
        self.counters.refused_malformed.increment();
        let said = Reason::new(Status::InvalidArgument, what);
        let why = format!("the peer broke the protocol: {what}");
        self.close(id, &Reason::new(Status::Unavailable, why), GoodbyeMode::Send(said));
    }

    fn on_malformed(&mut self, id: ConnectionId, error: DecodeError) {
        let counter = match error.fault() {
            Fault::Stranger => &self.counters.refused_strangers,
            Fault::Peer => &self.counters.refused_malformed,
            Fault::Version => &self.counters.refused_version,
        };
        counter.increment();
        let why = format!("what answers there does not follow the protocol: {error}");
        let reason = Reason::new(Status::Unavailable, why);
        let goodbye = match error.fault() {
            // The peer would not understand it.
            Fault::Stranger => GoodbyeMode::Silent,
            _ => GoodbyeMode::Send(Reason::new(error.status(), error.to_string())),
        };
        self.close(id, &reason, goodbye);
    }

    /// Queues a message, to be sent at the end of the turn.
    pub(super) fn send(&mut self, id: ConnectionId, message: impl Into<Message>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.is_closing() {
            return;
        }
        let was_empty = connection.out.len() == 0;
        if connection.out.push(&message.into()).is_err() {
            self.counters.unsendable_messages.increment();
        }
        if was_empty || connection.out.is_over_limit() {
            self.unsent.push(id);
        }
    }

    /// Writes the queued messages.
    pub(super) fn send_the_unsent(&mut self) {
        while let Some(id) = self.unsent.pop() {
            let now = self.now;
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if planted("nexus_sending_is_hearing") {
                connection.last_received = now;
            }
            match connection.flush(now) {
                Err(error) => {
                    // The peer may have sent a reason before it closed.
                    self.read(id);
                    self.on_stream_end(id, &error.to_string());
                }
                Ok(()) if connection.out.is_over_limit() => self.on_not_reading(id),
                Ok(()) if connection.is_closing() => self.finish_closing(id),
                Ok(()) if connection.ends_pause() => self.unread.push(id),
                Ok(()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use petrel_proto::control::{GroupJoin, Ping};

    use super::*;
    use crate::nexus::limits::OUT_HARD_BYTES;
    use crate::nexus::reactor::tests::{open_connection, reactor};

    #[test]
    fn send__notes_a_connection_once_and_again_when_too_much_waits() {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, true);
        let mut send = |left_bytes: Option<usize>| {
            let out = &mut reactor.connections.get_mut(&id).unwrap().out;
            if let Some(left_bytes) = left_bytes {
                out.push_bytes(&vec![0; OUT_HARD_BYTES - left_bytes - out.len()]);
            }
            let before = out.len();
            reactor.send(id, Ping { nonce: 1 });
            let bytes = reactor.connections[&id].out.len() - before;
            (bytes, std::mem::take(&mut reactor.unsent))
        };
        let (bytes, noted) = send(None);
        assert_eq!(noted, [id]);
        assert_eq!(send(None), (bytes, vec![]), "it is noted already, or waits for its socket");
        assert_eq!(send(Some(bytes)), (bytes, vec![]), "as much as may wait");
        assert_eq!(send(None), (bytes, vec![id]), "it is to be dropped");
    }

    #[test]
    fn send__counts_what_no_message_can_say() {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, true);
        let refuse =
            |request, text| GroupRefuse { link: 1, request, status: Status::Internal, text };
        reactor.send(id, refuse(1, String::new()));
        assert_eq!(reactor.counters.snapshot().unsendable_messages, 0);
        let join = GroupJoin {
            link: 1,
            request: 1,
            session: 1,
            token: 0,
            group: 1,
            key: 1,
            address: ([239, 1, 2, 3], 7).into(),
            packet_bytes: 0,
        };
        reactor.send(id, join);
        assert_eq!(reactor.counters.snapshot().unsendable_messages, 1);
    }

    #[test]
    fn send_the_unsent__drops_who_leaves_too_much_unread() {
        // More than the kernel buffers, and little.
        for (bytes, is_dropped) in [(64 << 20, true), (OUT_HARD_BYTES / 16, false)] {
            let (mut reactor, _) = reactor();
            let (id, _peer) = open_connection(&mut reactor, true);
            reactor.connections.get_mut(&id).unwrap().out.push_bytes(&vec![0; bytes]);
            reactor.send(id, Ping { nonce: 1 });
            reactor.unsent.push(id);
            reactor.send_the_unsent();
            assert_eq!(!reactor.connections.contains_key(&id), is_dropped);
            assert_eq!(reactor.counters.snapshot().dropped_not_reading, u64::from(is_dropped));
            assert!(reactor.unsent.is_empty());
        }
    }

    #[test]
    fn on_connection_event__reads_and_goes_on_to_write_where_there_is_room() {
        let (mut reactor, _) = reactor();
        let (id, peer) = open_connection(&mut reactor, false);
        for (is_writable, unsent) in [(false, vec![]), (true, vec![id])] {
            reactor.on_connection_event(id, Ready { token: id.0, is_writable });
            assert_eq!(reactor.unsent, unsent);
        }
        drop(peer);
        let end = Instant::now() + Duration::from_secs(60);
        while reactor.connections.contains_key(&id) {
            assert!(Instant::now() < end, "the end is not read");
            reactor.on_connection_event(id, Ready { token: id.0, is_writable: false });
        }
        assert_eq!(reactor.counters.snapshot().connections_broken, 1);
    }

    #[test]
    fn read__pauses_while_more_is_unsent_than_may_be() {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, false);
        for (more_bytes, is_paused) in [(OUT_SOFT_BYTES, false), (1, true)] {
            reactor.connections.get_mut(&id).unwrap().out.push_bytes(&vec![0; more_bytes]);
            reactor.read(id);
            assert_eq!(reactor.connections[&id].is_paused, is_paused);
        }
    }
}
