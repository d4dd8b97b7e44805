//! Secured control connections (`docs/wire-protocol.md` §17), as the nexus sees them, and the rights of callers. The crate `petrel-tls` implements
//! the traits of connections with TLS 1.3; a program without credentials builds no cryptography.

mod files;
mod policy;

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

pub use petrel_transport::seal::DatagramKey;
pub use petrel_transport::stream::StreamCipher;

pub(crate) use files::LOOK_EVERY;
pub use files::{FileAccess, FilesStatus, FromFiles, read_file};
pub use policy::Policy;

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

    /// Returns the acceptor's end of a connection of a further protocol inside TLS, as memcached's: TLS agrees on no name of a protocol. If
    /// `is_mutual`, the client proves an identity, as Petrel's peers do.
    ///
    /// # Errors
    /// The credentials cannot be used for further protocols, with the reason for people.
    fn accept_other(&self, is_mutual: bool) -> Result<Box<dyn StreamCipher>, SecurityError> {
        let _ = is_mutual;
        Err(SecurityError::new("these credentials are for Petrel's protocol alone"))
    }

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

/// Decides the rights of a process's callers, as [`Policy`] does; given to [`NexusBuilder::authorize`](crate::nexus::NexusBuilder::authorize).
/// A session is judged at the start, and again after a change of the decisions; counters are judged with every question.
pub trait Authorize: fmt::Debug + Send + Sync {
    /// Returns the rights of a caller. The identity is proven if the caller and the process have credentials, and names process and user
    /// over shared memory; the identity of any further caller is empty.
    fn grant(&self, caller: &PeerIdentity) -> Grant;

    /// Looks for new decisions, about once a second. Returns a number, a new number for new decisions, and the reason for people if the newest
    /// decisions cannot be used and the former stay.
    fn look(&self) -> (u64, Option<SecurityError>) {
        (0, None)
    }
}

/// What a client may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant(Granted);

/// Methods, by the ranges of their numbers.
pub(crate) type Methods = [RangeInclusive<u16>];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Granted {
    All,
    Some { methods: Vec<RangeInclusive<u16>>, has_stats: bool },
    Nothing(String),
}

impl Grant {
    /// Everything.
    pub fn all() -> Self {
        Self(Granted::All)
    }

    /// These methods, and no other. [Regions](crate::region) are served by methods from 65 519 on.
    pub fn methods(methods: impl IntoIterator<Item = u16>) -> Self {
        Self::ranges(methods.into_iter().map(|method| method..=method))
    }

    /// The methods of the ranges alone.
    pub fn ranges(methods: impl IntoIterator<Item = RangeInclusive<u16>>) -> Self {
        Self(Granted::Some { methods: methods.into_iter().collect(), has_stats: false })
    }

    /// Nothing: the client gets PERMISSION_DENIED with this text.
    pub fn refuse(text: impl Into<String>) -> Self {
        Self(Granted::Nothing(text.into()))
    }

    /// Adds the counters of the process ([`fetch_stats`](crate::nexus::fetch_stats)) to the methods of a grant.
    #[must_use]
    pub fn and_stats(mut self) -> Self {
        if let Granted::Some { has_stats, .. } = &mut self.0 {
            *has_stats = true;
        }
        self
    }

    /// Returns the methods, or `None` for all.
    pub(crate) fn into_methods(self) -> Result<Option<Rc<Methods>>, String> {
        match self.0 {
            Granted::All => Ok(None),
            Granted::Some { methods, .. } => Ok(Some(methods.into())),
            Granted::Nothing(text) => Err(text),
        }
    }

    /// Returns true if the caller may see the counters of the process.
    pub(crate) fn has_stats(&self) -> bool {
        matches!(self.0, Granted::All | Granted::Some { has_stats: true, .. })
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
