//! Two ends and the bytes between them, authorities, folders, and ends of rustls with other settings.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use petrel::endpoint::AllowedTransports;
use petrel::security::{
    LinkKeys, PeerIdentity, SecureStream, Security, SecurityError, StreamCipher,
};
use petrel_tls::Credentials;
use petrel_tls::issue::{Authority, Issued, Subject};
use rustls::Connection;

pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The address that openers dial.
pub(crate) fn address() -> SocketAddr {
    "192.0.2.7:4000".parse().unwrap()
}

/// Two ends. Bytes go from one to the other in pieces.
pub(crate) struct Pair {
    pub(crate) opener: Box<dyn SecureStream>,
    pub(crate) acceptor: Box<dyn SecureStream>,
    pub(crate) piece: usize,
}

/// The errors of both ends, when no bytes are left to carry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) opener: Option<String>,
    pub(crate) acceptor: Option<String>,
}

pub(crate) const GOOD: Outcome = Outcome { opener: None, acceptor: None };

impl Pair {
    pub(crate) fn new(opener: Box<dyn SecureStream>, acceptor: Box<dyn SecureStream>) -> Self {
        Self { opener, acceptor, piece: usize::MAX }
    }

    /// An opener and an acceptor with credentials; the acceptor is dialled by `name`.
    pub(crate) fn of(opener: &Credentials, acceptor: &Credentials, name: Option<&str>) -> Self {
        Self::new(opener.connect(address(), name).unwrap(), acceptor.accept().unwrap())
    }

    /// Carries bytes both ways until no end has any.
    pub(crate) fn carry(&mut self) -> Outcome {
        let mut outcome = Outcome { opener: None, acceptor: None };
        loop {
            let to_acceptor = carry(&mut *self.opener, &mut *self.acceptor, self.piece);
            let to_opener = carry(&mut *self.acceptor, &mut *self.opener, self.piece);
            outcome.acceptor = outcome.acceptor.or(to_acceptor.1);
            outcome.opener = outcome.opener.or(to_opener.1);
            if to_acceptor.0 + to_opener.0 == 0 {
                return outcome;
            }
        }
    }

    /// Carries a handshake, which has to succeed, and returns both ends' identities: the opener's first.
    #[track_caller]
    pub(crate) fn shake(&mut self) -> [Arc<PeerIdentity>; 2] {
        assert_eq!(self.carry(), GOOD);
        [self.acceptor.peer().unwrap(), self.opener.peer().unwrap()]
    }
}

/// Carries an end's output to the other. Returns the bytes, and the other's error.
fn carry(
    from: &mut dyn SecureStream,
    to: &mut dyn SecureStream,
    piece: usize,
) -> (usize, Option<String>) {
    let mut bytes = Vec::new();
    from.take_output(&mut bytes);
    let mut error = None;
    for piece in bytes.chunks(piece.min(bytes.len().max(1))) {
        if let Err(other) = to.receive(piece) {
            error.get_or_insert(other.to_string());
        }
    }
    (bytes.len(), error)
}

/// Returns all that an end has to read.
pub(crate) fn read_all(end: &mut dyn SecureStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 5_000];
    loop {
        match end.read(&mut buffer) {
            0 => return all,
            length => all.extend_from_slice(&buffer[..length]),
        }
    }
}

/// Checks that bytes arrive in both directions.
#[track_caller]
pub(crate) fn exchange(pair: &mut Pair) {
    pair.opener.write(b"ping");
    pair.acceptor.write(b"pong");
    assert_eq!(pair.carry(), GOOD);
    assert_eq!(read_all(&mut *pair.acceptor), b"ping");
    assert_eq!(read_all(&mut *pair.opener), b"pong");
}

pub(crate) fn authority() -> Authority {
    Authority::new("authority of tests", DAY).unwrap()
}

/// Returns credentials for this host, with an identity of the tests.
pub(crate) fn issued(authority: &Authority, folder: &Folder, id: &str) -> Arc<Credentials> {
    let subject = Subject::new(DAY).name("localhost").name("127.0.0.1");
    let folder = folder.file(id);
    let issued = authority.issue(&subject.spiffe(format!("spiffe://test/{id}"))).unwrap();
    issued.write(&folder).unwrap();
    Arc::new(Credentials::from_dir(&folder).unwrap())
}

/// The media by name, each alone.
pub(crate) fn media() -> [(&'static str, AllowedTransports); 3] {
    let none = AllowedTransports { shm: false, udp: false, stream: false, verbs: false };
    [
        ("shm", AllowedTransports { shm: true, ..none }),
        ("udp", AllowedTransports { udp: true, ..none }),
        ("stream", AllowedTransports { stream: true, ..none }),
    ]
}

pub(crate) fn credentials(issued: &Issued) -> Credentials {
    Credentials::builder()
        .certificate_pem(issued.certificate.as_bytes())
        .and_then(|builder| builder.key_pem(issued.key.as_bytes()))
        .and_then(|builder| builder.authorities_pem(issued.authority.as_bytes()))
        .and_then(petrel_tls::CredentialsBuilder::build)
        .unwrap()
}

/// Returns credentials for a name, and for the address.
pub(crate) fn named(authority: &Authority, name: &str) -> Credentials {
    let subject = Subject::new(DAY).name(name).name(address().ip().to_string());
    credentials(&authority.issue(&subject).unwrap())
}

/// A folder that goes with its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = format!("petrel-tls-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An end of rustls with settings that Petrel does not have.
#[derive(Debug)]
pub(crate) struct Foreign(pub(crate) Connection);

impl StreamCipher for Foreign {
    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            if self.0.read_tls(&mut bytes).unwrap() == 0 {
                break;
            }
            let state = self.0.process_new_packets();
            state.map_err(|error| format!("{error:?}"))?;
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> usize {
        self.0.reader().read(buffer).unwrap_or(0)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.writer().write_all(bytes).unwrap();
    }

    fn take_output(&mut self, output: &mut Vec<u8>) {
        while self.0.wants_write() {
            self.0.write_tls(output).unwrap();
        }
    }
}

impl SecureStream for Foreign {
    fn peer(&self) -> Option<Arc<PeerIdentity>> {
        None
    }

    fn link_keys(&self, _context: [u8; 8], _is_opener: bool) -> Result<LinkKeys, SecurityError> {
        Err(SecurityError::new("a foreign end has no links"))
    }
}

/// An end that sends given bytes, and keeps received bytes.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    pub(crate) output: Vec<u8>,
    pub(crate) input: Vec<u8>,
}

impl StreamCipher for Wire {
    fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.input.extend_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, _buffer: &mut [u8]) -> usize {
        0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    fn take_output(&mut self, output: &mut Vec<u8>) {
        output.append(&mut self.output);
    }
}

impl SecureStream for Wire {
    fn peer(&self) -> Option<Arc<PeerIdentity>> {
        None
    }

    fn link_keys(&self, _context: [u8; 8], _is_opener: bool) -> Result<LinkKeys, SecurityError> {
        Err(SecurityError::new("a wire has no links"))
    }
}
