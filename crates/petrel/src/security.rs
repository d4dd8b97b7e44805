//! Secured control connections (`docs/wire-protocol.md` §17), as the nexus sees them. The crate `petrel-tls` implements the traits with
//! TLS 1.3; a program without credentials builds no cryptography.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

pub use petrel_transport::seal::DatagramKey;
pub use petrel_transport::stream::StreamCipher;

/// The credentials of a process, and whom it trusts.
pub trait Security: fmt::Debug + Send + Sync {
    /// Returns the opener's end of a new connection. `name` is the name by which the program knows the server, which the server's
    /// certificate has to contain; without a name the address has to stand there.
    ///
    /// # Errors
    /// The credentials cannot be used, with the reason for people.
    fn connect(
        &self,
        to: SocketAddr,
        name: Option<&str>,
    ) -> Result<Box<dyn SecureStream>, SecurityError>;

    /// Returns the acceptor's end of a new connection.
    ///
    /// # Errors
    /// The credentials cannot be used, with the reason for people.
    fn accept(&self) -> Result<Box<dyn SecureStream>, SecurityError>;

    /// Returns true if connections without TLS are accepted, too, during a migration.
    fn is_permissive(&self) -> bool {
        false
    }

    /// Returns a number that changes with the set of trusted peers. The nexus asks once a second, and after a change asks
    /// [`distrusts`](Self::distrusts) about the peer of each connection.
    fn revision(&self) -> u64 {
        0
    }

    /// Returns why a peer is not trusted any more, for people: its connections end.
    fn distrusts(&self, _peer: &PeerIdentity) -> Option<String> {
        None
    }
}

/// One end of a connection inside TLS, which carries the messages of the control plane, and then perhaps the frames of a link.
pub trait SecureStream: StreamCipher {
    /// Returns the peer's identity, once the handshake is over.
    fn peer(&self) -> Option<Arc<PeerIdentity>>;

    /// Returns when the first of the two ends' certificates ends, in seconds since 1970, once the handshake is over.
    fn expires_at(&self) -> Option<u64> {
        self.peer()?.expires_at
    }

    /// Returns the keys of a link's datagrams for this end: to send, and to receive. `context` are the first eight bytes of the
    /// exporter's context (§17.2); `is_opener` tells the directions apart.
    ///
    /// # Errors
    /// The handshake is not over.
    fn link_keys(&self, context: [u8; 8], is_opener: bool) -> Result<LinkKeys, SecurityError>;
}

/// The keys of a link's datagrams at one end.
#[derive(Debug)]
pub struct LinkKeys {
    /// Seals datagrams to the peer.
    pub send: Box<dyn DatagramKey>,
    /// Opens datagrams of the peer.
    pub receive: Box<dyn DatagramKey>,
}

/// The proven identity of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerIdentity {
    /// The SPIFFE ID: the URI of the certificate that begins with `spiffe://`.
    pub spiffe_id: Option<String>,
    /// The DNS names of the certificate.
    pub dns_names: Vec<String>,
    /// SHA-256 of the certificate, or of the raw public key (its SubjectPublicKeyInfo).
    pub fingerprint: Option<[u8; 32]>,
    /// When the certificate ends, in seconds since 1970.
    pub expires_at: Option<u64>,
    /// The user of the peer's process, over shared memory.
    pub uid: Option<u32>,
    /// The number of the peer's process, over shared memory; 0 if the process has a PID namespace of its own.
    pub pid: Option<u32>,
}

/// Demands that a process at an address proves a name, where connections are inside TLS: the certificate has to contain it. Clients do so by
/// themselves for servers that are given by the names of their hosts; this is for endpoints that connect to addresses. Of several names of
/// an address the last counts.
pub fn expect_name(address: SocketAddr, name: &str) {
    crate::names::note(address, name);
}

/// The methods that a client may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant(Granted);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Granted {
    All,
    Methods(Vec<u16>),
    Nothing(String),
}

impl Grant {
    /// Everything.
    pub fn all() -> Self {
        Self(Granted::All)
    }

    /// These methods, and no other. [Regions](crate::region) are served by methods from 65 520 on.
    pub fn methods(methods: impl IntoIterator<Item = u16>) -> Self {
        Self(Granted::Methods(methods.into_iter().collect()))
    }

    /// Nothing: the client gets PERMISSION_DENIED with this text.
    pub fn refuse(text: impl Into<String>) -> Self {
        Self(Granted::Nothing(text.into()))
    }

    /// Returns the methods, or `None` for all.
    pub(crate) fn into_methods(self) -> Result<Option<Rc<[u16]>>, String> {
        match self.0 {
            Granted::All => Ok(None),
            Granted::Methods(methods) => Ok(Some(methods.into())),
            Granted::Nothing(text) => Err(text),
        }
    }
}

/// Why a connection is not secure, or cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct SecurityError {
    text: String,
}

impl SecurityError {
    /// Creates an error with a text for people: the cause, and the remedy if there is one.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }
}
