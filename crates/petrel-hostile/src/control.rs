//! A hand-driven control connection (`docs/wire-protocol.md` §8).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// The first bytes from either side (§8.1).
pub const PREFACE: [u8; 8] = *b"PETREL\r\n";

/// The longest heartbeat allowed in a HELLO, in milliseconds (§8.6).
pub const HEARTBEAT_MS_MAX: u32 = 10_000;

/// Message types (§8.2).
pub mod kind {
    /// HELLO.
    pub const HELLO: u16 = 1;
    /// LINK_OPEN.
    pub const LINK_OPEN: u16 = 2;
    /// LINK_ACCEPT.
    pub const LINK_ACCEPT: u16 = 3;
    /// LINK_REFUSE.
    pub const LINK_REFUSE: u16 = 4;
    /// LINK_CLOSE.
    pub const LINK_CLOSE: u16 = 5;
    /// SESSION_OPEN.
    pub const SESSION_OPEN: u16 = 6;
    /// SESSION_ACCEPT.
    pub const SESSION_ACCEPT: u16 = 7;
    /// SESSION_REFUSE.
    pub const SESSION_REFUSE: u16 = 8;
    /// SESSION_CLOSE.
    pub const SESSION_CLOSE: u16 = 9;
    /// PING.
    pub const PING: u16 = 10;
    /// PONG.
    pub const PONG: u16 = 11;
    /// STATS_REQUEST.
    pub const STATS_REQUEST: u16 = 12;
    /// STATS_REPLY.
    pub const STATS_REPLY: u16 = 13;
    /// GOODBYE.
    pub const GOODBYE: u16 = 14;
}

/// RESOURCE_EXHAUSTED (§3.3).
pub const RESOURCE_EXHAUSTED: u8 = 8;

/// Time limit for an answer; after it the peer counts as hung.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A message: its type, and its records in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// See [`kind`].
    pub kind: u16,
    /// Tag and value of each record.
    pub records: Vec<(u16, Vec<u8>)>,
}

impl Message {
    /// Makes a message without records.
    pub fn new(kind: u16) -> Self {
        Self { kind, records: Vec::new() }
    }

    /// Appends a record.
    pub fn with(mut self, tag: u16, value: impl AsRef<[u8]>) -> Self {
        self.records.push((tag, value.as_ref().to_vec()));
        self
    }

    /// Returns the value of the first record with this tag.
    pub fn value(&self, tag: u16) -> Option<&[u8]> {
        self.records.iter().find(|(known, _)| *known == tag).map(|(_, value)| &value[..])
    }

    /// Returns the number in the first record with this tag.
    pub fn number(&self, tag: u16) -> Option<u64> {
        let value = self.value(tag).filter(|value| value.len() <= 8)?;
        Some(value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Returns the bytes on the stream.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for (tag, value) in &self.records {
            body.extend(tag.to_le_bytes());
            body.extend((value.len() as u16).to_le_bytes());
            body.extend(value);
        }
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend(self.kind.to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(body);
        bytes
    }
}

/// A control connection to a server, over TCP or over TLS of the caller.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    stream: S,
    peer: SocketAddr,
    received: Vec<u8>,
}

/// A UDP link that the server accepted.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The link's number in the connection.
    pub number: u32,
    /// The server's data address.
    pub data: SocketAddr,
    /// The largest datagram of the link: the smaller of the two sides'.
    pub max_frame: u32,
}

/// The parameters of a proposed session.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// A power of two.
    pub slots: u16,
    /// 1 to 4 096.
    pub credits: u16,
    /// Largest accepted answer, in bytes.
    pub max_message: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { slots: 8, credits: 32, max_message: 8 << 20 }
    }
}

/// A session that the server accepted.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// The session's index at the server.
    pub index: u32,
    /// The token that the server expects.
    pub token: u32,
    /// The first request number.
    pub first_request: u64,
    /// Number of slots in force.
    pub slots: u16,
    /// Payload bytes of a full packet.
    pub packet_bytes: u32,
}

impl Connection {
    /// Connects and sends HELLO, with the longest heartbeat that the protocol allows.
    ///
    /// # Errors
    /// If the server does not accept the connection, or closes it at once.
    pub fn greet(address: SocketAddr) -> io::Result<Self> {
        Self::silent(address)?.say_hello()
    }

    /// [Greets](Connection::greet) from this address.
    ///
    /// # Errors
    /// Like [`Connection::greet`]; also if the address does not belong to this host.
    pub fn greet_from(from: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(from, 0).into())?;
        socket.connect_timeout(&address.into(), TIME_LIMIT)?;
        Self::of(socket.into())?.say_hello()
    }

    /// Connects and sends nothing.
    ///
    /// # Errors
    /// If the server does not accept the connection.
    pub fn silent(address: SocketAddr) -> io::Result<Self> {
        Self::of(TcpStream::connect_timeout(&address, TIME_LIMIT)?)
    }

    fn of(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        stream.set_write_timeout(Some(TIME_LIMIT))?;
        let peer = stream.peer_addr()?;
        Ok(Self { stream, peer, received: Vec::new() })
    }
}

impl<S: Read + Write> Connection<S> {
    /// Sends HELLO over a stream to a server, as [`Connection::greet`] does.
    ///
    /// # Errors
    /// If the stream is broken.
    pub fn greet_over(stream: S, peer: SocketAddr) -> io::Result<Self> {
        Self { stream, peer, received: Vec::new() }.say_hello()
    }

    fn say_hello(mut self) -> io::Result<Self> {
        self.stream.write_all(&PREFACE)?;
        self.send(&hello(HEARTBEAT_MS_MAX))?;
        Ok(self)
    }

    /// Returns the stream, for operations that this type lacks.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The system's error.
    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        self.stream.write_all(&message.encode())
    }

    /// Sends several messages in one write.
    ///
    /// # Errors
    /// The system's error.
    pub fn send_all<'a>(
        &mut self,
        messages: impl IntoIterator<Item = &'a Message>,
    ) -> io::Result<()> {
        let bytes: Vec<u8> = messages.into_iter().flat_map(Message::encode).collect();
        self.stream.write_all(&bytes)
    }

    /// Sends PING, as a sign of life.
    ///
    /// # Errors
    /// The system's error.
    pub fn ping(&mut self) -> io::Result<()> {
        self.send(&Message::new(kind::PING).with(1, 7u64.to_le_bytes()))
    }

    /// Returns the next message.
    ///
    /// # Errors
    /// If the stream ends, breaks, or brings nothing for a minute.
    pub fn receive(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = self.take_message() {
                return Ok(message);
            }
            let mut buffer = [0; 16 << 10];
            match self.stream.read(&mut buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.received.extend(&buffer[..count]),
            }
        }
    }

    /// Returns the next message of the given kinds, and skips the rest.
    ///
    /// # Errors
    /// Like [`Connection::receive`]; also if the server sends GOODBYE and `wanted` does not include it.
    pub fn receive_any(&mut self, wanted: &[u16]) -> io::Result<Message> {
        loop {
            let message = self.receive()?;
            if wanted.contains(&message.kind) {
                return Ok(message);
            }
            if message.kind == kind::GOODBYE {
                return Err(io::Error::other(format!("GOODBYE: {message:?}")));
            }
        }
    }

    fn take_message(&mut self) -> Option<Message> {
        if self.received.starts_with(&PREFACE) {
            self.received.drain(..PREFACE.len());
        }
        let head = self.received.first_chunk::<8>()?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = u16::from_le_bytes([head[4], head[5]]);
        if self.received.len() < 8 + length {
            return None;
        }
        let mut body = &self.received[8..8 + length];
        let mut message = Message::new(kind);
        while let [tag0, tag1, length0, length1, rest @ ..] = body {
            let length = usize::from(u16::from_le_bytes([*length0, *length1])).min(rest.len());
            let (value, behind) = rest.split_at(length);
            message = message.with(u16::from_le_bytes([*tag0, *tag1]), value);
            body = behind;
        }
        self.received.drain(..8 + length);
        Some(message)
    }

    /// Opens a link over UDP to endpoint 0, with any port; `None` if the server refused.
    ///
    /// # Errors
    /// Like [`Connection::receive_any`].
    pub fn open_link(
        &mut self,
        number: u32,
        port: u16,
        max_frame: u32,
        ecn: bool,
    ) -> io::Result<Option<Link>> {
        self.open_link_by(number, max_frame, &link_open(number, port, max_frame, ecn))
    }

    /// Opens a link by a LINK_OPEN with `number` and an offer of `max_frame`, as [`Connection::open_link`].
    ///
    /// # Errors
    /// Like [`Connection::receive_any`].
    pub fn open_link_by(
        &mut self,
        number: u32,
        max_frame: u32,
        open: &Message,
    ) -> io::Result<Option<Link>> {
        self.send(open)?;
        let answer = self.receive_any(&[kind::LINK_ACCEPT, kind::LINK_REFUSE])?;
        if answer.kind == kind::LINK_REFUSE {
            return Ok(None);
        }
        let offer = answer.value(4).and_then(|offer| offer.first_chunk::<7>());
        let Some(&[1, port0, port1, max @ ..]) = offer else {
            return Err(io::Error::other("LINK_ACCEPT without a UDP offer"));
        };
        let mut data = self.peer;
        data.set_port(u16::from_le_bytes([port0, port1]));
        let max_frame = max_frame.min(u32::from_le_bytes(max));
        Ok(Some(Link { number, data, max_frame }))
    }

    /// Opens a session on a link; `None` if the server refused.
    ///
    /// # Errors
    /// Like [`Connection::receive_any`].
    pub fn open_session(
        &mut self,
        link: &Link,
        request: u32,
        shape: Shape,
    ) -> io::Result<Option<Session>> {
        self.send(&session_open(link, request, shape))?;
        self.session_answer(request)
    }

    /// Returns the answer to a SESSION_OPEN.
    ///
    /// # Errors
    /// Like [`Connection::receive_any`].
    pub fn session_answer(&mut self, request: u32) -> io::Result<Option<Session>> {
        let answer = self.receive_any(&[kind::SESSION_ACCEPT, kind::SESSION_REFUSE])?;
        if answer.kind == kind::SESSION_REFUSE {
            return Ok(None);
        }
        let number = |tag| {
            answer.number(tag).ok_or_else(|| io::Error::other("SESSION_ACCEPT lacks a record"))
        };
        Ok(Some(Session {
            index: number(3)? as u32,
            token: number(4)? as u32,
            first_request: first_request(request),
            slots: number(6)? as u16,
            packet_bytes: number(9)? as u32,
        }))
    }

    /// Returns the server's counters as JSON.
    ///
    /// # Errors
    /// Like [`Connection::receive_any`].
    pub fn stats(&mut self) -> io::Result<String> {
        self.send(&Message::new(kind::STATS_REQUEST).with(1, 1u32.to_le_bytes()))?;
        let mut json = Vec::new();
        loop {
            let reply = self.receive_any(&[kind::STATS_REPLY])?;
            json.extend(reply.value(4).unwrap_or_default());
            if reply.number(2).map(|part| part + 1) == reply.number(3) {
                return String::from_utf8(json).map_err(io::Error::other);
            }
        }
    }
}

/// Returns the HELLO of a process without shared memory.
pub fn hello(heartbeat_ms: u32) -> Message {
    Message::new(kind::HELLO)
        .with(1, 1u16.to_le_bytes())
        .with(2, 1u16.to_le_bytes())
        .with(3, 0x0005_7AE1_u64.to_le_bytes())
        .with(4, heartbeat_ms.to_le_bytes())
        .with(5, "hostile")
}

/// Returns a LINK_OPEN to endpoint 0 with an offer of UDP.
pub fn link_open(number: u32, port: u16, max_frame: u32, ecn: bool) -> Message {
    let mut offer = vec![1];
    offer.extend(port.to_le_bytes());
    offer.extend(max_frame.to_le_bytes());
    let open = Message::new(kind::LINK_OPEN)
        .with(1, number.to_le_bytes())
        .with(2, 0u16.to_le_bytes())
        .with(3, 0u16.to_le_bytes())
        .with(4, offer);
    if ecn { open.with(8, []) } else { open }
}

/// Returns a first request number that differs from session to session, and suits any number of slots.
fn first_request(request: u32) -> u64 {
    (1 << 40) + u64::from(request) * 64
}

/// Returns a SESSION_OPEN with full packets.
pub fn session_open(link: &Link, request: u32, shape: Shape) -> Message {
    Message::new(kind::SESSION_OPEN)
        .with(1, link.number.to_le_bytes())
        .with(2, request.to_le_bytes())
        .with(3, (request & 0xF_FFFF).to_le_bytes())
        .with(4, (0x0BAD_0000 ^ request).to_le_bytes())
        .with(5, first_request(request).to_le_bytes())
        .with(6, shape.slots.to_le_bytes())
        .with(7, shape.credits.to_le_bytes())
        .with(8, shape.max_message.to_le_bytes())
        .with(9, (link.max_frame - 32).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encode__is_that_of_the_specifications_vector() {
        let vector = [
            0x17, 0, 0, 0, 3, 0, 0, 0, 1, 0, 4, 0, 5, 0, 0, 0, 4, 0, 7, 0, 1, 0x41, 0x9C, 0xC0, 5,
            0, 0, 8, 0, 0, 0,
        ];
        let accept = Message::new(kind::LINK_ACCEPT)
            .with(1, 5u32.to_le_bytes())
            .with(4, [1, 0x41, 0x9C, 0xC0, 5, 0, 0])
            .with(8, []);
        assert_eq!(accept.encode(), vector);
        assert_eq!(accept.number(1), Some(5));
    }
}
