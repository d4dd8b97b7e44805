//! Fetching the counters of another process of this host.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use petrel_proto::control::{
    DecodeError, Decoder, HEARTBEAT_MS_MAX, Hello, Message, PREFACE, StatsReply, StatsRequest,
    VersionRange,
};
use petrel_proto::{Execution, Status};

use super::AGENT;
use super::channel::Channel;
use super::limits::{READ_BYTES, STATS_BYTES_MAX};
use super::random::random_u64;
use crate::control::Reason;
use crate::error::Error;
use crate::names;
use crate::security::{Security, SecurityError};

const REQUEST: u32 = 1;

/// Fetches the counters of the process at a control address: a JSON object with `incarnation`, `nexus` (its counters)
/// and `endpoints` (for each its `id` and `stats`, or an `error`). Blocks for at most `timeout`.
///
/// # Errors
/// UNAVAILABLE if no process listens at the address, DEADLINE_EXCEEDED if no answer comes in time, UNIMPLEMENTED if the
/// answer is not of the protocol. If the process refuses, the status of the refusal. A process serves only callers on
/// its own host, and refuses remote callers with an explanation.
pub fn fetch_stats(address: SocketAddr, timeout: Duration) -> Result<String, Error> {
    Ok(fetch(address, timeout, Channel::default())?)
}

/// Fetches the counters as [`fetch_stats`] does, from a process with credentials.
///
/// # Errors
/// As [`fetch_stats`], and UNAUTHENTICATED if one of the two processes does not trust the other.
pub fn fetch_stats_inside(
    address: SocketAddr,
    timeout: Duration,
    security: &dyn Security,
) -> Result<String, Error> {
    let stream = security.connect(address, names::of(address).as_deref());
    let stream = stream.map_err(|source| FetchError::Untrusted { address, source })?;
    Ok(fetch(address, timeout, Channel::tls(stream, false))?)
}

fn fetch(address: SocketAddr, timeout: Duration, channel: Channel) -> Result<String, FetchError> {
    let deadline = Instant::now() + timeout;
    let stream = connect(address, timeout)?;
    let mut requester = StatsRequester { address, timeout, deadline, stream, channel };
    requester.ask()?;
    requester.collect()
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("cannot ask {address}: the system has no random number to give: {source}")]
    Start { address: SocketAddr, source: io::Error },
    /// Worded as errors of calls to such an address.
    #[error(
        "cannot connect to {address}: no process listens at {address}: is the server started, and is this its \
         control address?"
    )]
    Nobody { address: SocketAddr },
    #[error(
        "cannot connect to {address}: {source}; is the server started, and is this its control address?"
    )]
    Connect { address: SocketAddr, source: io::Error },
    #[error(
        "no answer from {address} within {timeout:?}; the process may be stopped or overloaded"
    )]
    Timeout { address: SocketAddr, timeout: Duration },
    #[error("{address} refused: {}: {}", reason.status, reason.message)]
    Refused { address: SocketAddr, reason: Reason },
    #[error(
        "{address} does not follow the protocol: {source}; is it a Petrel process of this version?"
    )]
    Protocol { address: SocketAddr, source: DecodeError },
    #[error("{address} is not to be trusted: {source}")]
    Untrusted { address: SocketAddr, source: SecurityError },
    #[error("the connection to {address} broke: {source}; try again")]
    Broken { address: SocketAddr, source: io::Error },
}

impl From<FetchError> for Error {
    fn from(error: FetchError) -> Self {
        let (status, execution) = match &error {
            FetchError::Start { .. } => (Status::Internal, Execution::NotSent),
            FetchError::Nobody { .. } | FetchError::Connect { .. } => {
                (Status::Unavailable, Execution::NotSent)
            }
            FetchError::Timeout { .. } => (Status::DeadlineExceeded, Execution::MayHaveExecuted),
            FetchError::Refused { reason, .. } => (reason.status, Execution::Refused),
            FetchError::Protocol { .. } => (Status::Unimplemented, Execution::MayHaveExecuted),
            FetchError::Untrusted { .. } => (Status::Unauthenticated, Execution::NotSent),
            FetchError::Broken { .. } => (Status::Unavailable, Execution::MayHaveExecuted),
        };
        Self::of(status, error.to_string(), execution)
    }
}

fn connect(address: SocketAddr, timeout: Duration) -> Result<TcpStream, FetchError> {
    if timeout.is_zero() {
        return Err(FetchError::Timeout { address, timeout });
    }
    TcpStream::connect_timeout(&address, timeout).map_err(|source| match source.kind() {
        ErrorKind::TimedOut => FetchError::Timeout { address, timeout },
        ErrorKind::ConnectionRefused => FetchError::Nobody { address },
        _ => FetchError::Connect { address, source },
    })
}

struct StatsRequester {
    address: SocketAddr,
    timeout: Duration,
    deadline: Instant,
    stream: TcpStream,
    channel: Channel,
}

impl StatsRequester {
    fn ask(&mut self) -> Result<(), FetchError> {
        let hello = Hello {
            versions: VersionRange::OWN,
            // Any number except 0 will do: this process has no endpoints.
            incarnation: self.random()? | 1,
            // No PINGs are sent: the deadline comes before the peer misses them.
            heartbeat_ms: HEARTBEAT_MS_MAX,
            agent: AGENT.to_owned(),
            host_identity: None,
            rendezvous: None,
        };
        let mut bytes = PREFACE.to_vec();
        for message in [Message::from(hello), StatsRequest { request: REQUEST }.into()] {
            message.encode(&mut bytes).expect("constants in their ranges");
        }
        let mut output = Vec::new();
        self.channel.send(&mut bytes, &mut output);
        self.stream.write_all(&output).map_err(|source| self.broken(source))
    }

    fn random(&self) -> Result<u64, FetchError> {
        let address = self.address;
        random_u64().map_err(|source| FetchError::Start { address, source })
    }

    fn broken(&self, source: io::Error) -> FetchError {
        match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.too_late(),
            _ => FetchError::Broken { address: self.address, source },
        }
    }

    fn too_late(&self) -> FetchError {
        FetchError::Timeout { address: self.address, timeout: self.timeout }
    }

    fn collect(&mut self) -> Result<String, FetchError> {
        let mut decoder = Decoder::new();
        let mut json = String::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = self.read(&mut buffer)?;
            let mut bytes = &buffer[..count];
            let malformed = |source| FetchError::Protocol { address: self.address, source };
            while let Some(message) = decoder.decode(&mut bytes).map_err(malformed)? {
                if self.add_part(message, &mut json)? {
                    return Ok(json);
                }
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, FetchError> {
        let decrypted = self.channel.read(buffer);
        if decrypted > 0 {
            return Ok(decrypted);
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.too_late());
        }
        let read = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(buffer));
        let count = self.taken(read)?;
        if count == 0 {
            return Ok(0);
        }
        let mut output = Vec::new();
        let received = self.channel.receive(buffer, count, &mut output);
        let sent = self.stream.write_all(&output);
        let untrusted = |source| FetchError::Untrusted { address: self.address, source };
        let received = received.map_err(untrusted)?;
        sent.map_err(|source| self.broken(source))?;
        Ok(received)
    }

    /// Returns the number of bytes read; 0 if a signal interrupted the read.
    fn taken(&self, read: io::Result<usize>) -> Result<usize, FetchError> {
        match read {
            Ok(0) => Err(self.broken(ErrorKind::UnexpectedEof.into())),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            other => other.map_err(|source| self.broken(source)),
        }
    }

    /// Adds a part of the answer. Returns true if it was the last.
    fn add_part(&self, message: Message, json: &mut String) -> Result<bool, FetchError> {
        match message {
            Message::StatsReply(StatsReply { request: REQUEST, part, parts, json: piece }) => {
                json.push_str(&piece);
                if json.len() > STATS_BYTES_MAX {
                    return Err(self.broken(ErrorKind::InvalidData.into()));
                }
                Ok(part + 1 == parts)
            }
            Message::Goodbye(goodbye) => {
                let reason = Reason::new(goodbye.status, goodbye.text);
                Err(FetchError::Refused { address: self.address, reason })
            }
            // HELLO, PING, and messages of newer versions.
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use petrel_proto::control::Goodbye;

    use super::*;
    use crate::nexus::reactor::tests::hello_bytes;

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    /// Asks a process that runs `answer` with the connection once the whole question has arrived.
    fn asked(answer: impl FnOnce(TcpStream) + Send + 'static) -> Result<String, FetchError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let process = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut decoder, mut buffer) = (Decoder::new(), [0; 4_096]);
            loop {
                let count = stream.read(&mut buffer).unwrap();
                let mut bytes = &buffer[..count];
                while let Some(message) = decoder.decode(&mut bytes).unwrap() {
                    match message {
                        Message::Hello(hello) => assert_eq!(hello.incarnation & 1, 1, "never 0"),
                        Message::StatsRequest(_) => return answer(stream),
                        _ => {}
                    }
                }
            }
        });
        let got = fetch(address, TEST_TIMEOUT, Channel::default());
        process.join().unwrap();
        got
    }

    /// A HELLO, and these parts of the answer.
    fn answer_of(parts: u16, pieces: &[&str]) -> Vec<u8> {
        let mut bytes = hello_bytes();
        for (part, piece) in pieces.iter().enumerate() {
            let (part, json) = (part as u16, (*piece).to_owned());
            let reply = StatsReply { request: REQUEST, part, parts, json };
            Message::from(reply).encode(&mut bytes).unwrap();
        }
        bytes
    }

    /// A requester whose time is over.
    fn requester(address: SocketAddr) -> StatsRequester {
        let (timeout, deadline, channel) = (TEST_TIMEOUT, Instant::now(), Channel::default());
        let stream = connect(address, timeout).unwrap();
        StatsRequester { address, timeout, deadline, stream, channel }
    }

    /// The error names how the connection ended: an ended process is not a slow one, and a reset differs from an end.
    #[test]
    fn fetch_stats__tells_how_the_connection_broke() {
        let broken = |got| match got {
            Err(FetchError::Broken { source, .. }) => source.kind(),
            other => panic!("{other:?}"),
        };
        let ends = |mut stream: TcpStream| stream.write_all(&answer_of(2, &["{"])).unwrap();
        assert_eq!(broken(asked(ends)), ErrorKind::UnexpectedEof);
        let resets = |stream: TcpStream| {
            let linger = Some(Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
        };
        assert_eq!(broken(asked(resets)), ErrorKind::ConnectionReset);
    }

    /// Before it connects, and between two parts of an answer.
    #[test]
    fn fetch_stats__without_time_left_is_too_late() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_late = |got: Result<(), FetchError>| matches!(got, Err(FetchError::Timeout { .. }));
        assert!(is_late(fetch(address, Duration::ZERO, Channel::default()).map(drop)));
        assert!(is_late(requester(address).read(&mut [0]).map(drop)));
    }

    #[test]
    fn taken__a_signal_is_no_end_and_a_limit_of_time_no_breach() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requester = requester(address);
        assert_eq!(requester.taken(Ok(7)).unwrap(), 7);
        assert_eq!(requester.taken(Err(ErrorKind::Interrupted.into())).unwrap(), 0);
        for kind in [ErrorKind::WouldBlock, ErrorKind::TimedOut] {
            let late = requester.taken(Err(kind.into()));
            assert!(matches!(late, Err(FetchError::Timeout { .. })), "{kind:?}: {late:?}");
        }
        for kind in [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof] {
            let broken = requester.taken(Err(kind.into()));
            let is_it =
                matches!(&broken, Err(FetchError::Broken { source, .. }) if source.kind() == kind);
            assert!(is_it, "{kind:?}: {broken:?}");
        }
        let ended = requester.taken(Ok(0));
        assert!(matches!(ended, Err(FetchError::Broken { .. })), "{ended:?}");
    }

    #[test]
    fn fetch_stats__takes_no_more_than_its_limit() {
        let part = "x".repeat(60_000);
        for (more, is_taken) in [(0, true), (1, false)] {
            let last = "x".repeat(STATS_BYTES_MAX % part.len() + more);
            let mut pieces = vec![part.as_str(); STATS_BYTES_MAX / part.len()];
            pieces.push(&last);
            let bytes = answer_of(pieces.len() as u16, &pieces);
            // The connection may end before all is written.
            let got = asked(move |mut stream| drop(stream.write_all(&bytes)));
            match got {
                Ok(json) => assert_eq!((is_taken, json.len()), (true, STATS_BYTES_MAX)),
                Err(FetchError::Broken { source, .. }) => {
                    assert_eq!((is_taken, source.kind()), (false, ErrorKind::InvalidData));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn fetch_stats__returns_the_reason_of_a_goodbye() {
        let got = asked(|mut stream| {
            let mut bytes = answer_of(0, &[]);
            let (status, text) = (petrel_proto::Status::PermissionDenied, "not you".to_owned());
            Message::from(Goodbye { status, text }).encode(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let Err(FetchError::Refused { reason, .. }) = got else { panic!("{got:?}") };
        assert_eq!(reason, Reason::new(petrel_proto::Status::PermissionDenied, "not you"));
    }
}
