//! The process at the other end of a session.

use std::fmt;
use std::sync::Arc;

use petrel_transport::PeerProcess;

use crate::control::PeerName;
use crate::security::PeerIdentity;

/// The caller of a handler, or the server of a session, as known to this side.
///
/// Without an [identity](Self::identity), nothing proves the fields over UDP and streams: any process that can send from an address can be the
/// peer. Over shared memory the kernel vouches for the process and its user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// The address of the control connection, and the endpoint of the peer's process. The port of a client was chosen
    /// by its system.
    pub name: PeerName,
    /// Identifies the incarnation of the peer's process: another process at the same address has another number.
    pub incarnation: u64,
    /// Whether frames are datagrams that cross a network, and may be lost.
    pub is_networked: bool,
    /// The medium of the frames: `udp`, `shm` or `stream`.
    pub medium: &'static str,
    /// The process, over shared memory.
    pub process: Option<PeerProcess>,
    /// The identity that the peer's process has proven: both processes have [credentials](crate::nexus::NexusBuilder::credentials).
    pub identity: Option<Arc<PeerIdentity>>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)?;
        match self.process {
            Some(PeerProcess { pid: 0, uid, .. }) => {
                write!(f, " (user {uid}, in another PID namespace)")
            }
            Some(PeerProcess { pid, uid, .. }) => write!(f, " (process {pid} of user {uid})"),
            None => Ok(()),
        }
    }
}
