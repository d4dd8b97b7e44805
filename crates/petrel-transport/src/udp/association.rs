//! Connecting the socket while it has one peer.
//!
//! A connected socket knows route and address: a datagram to send takes 80 ns less, of some
//! 1000 ns from socket to socket. It hears nobody else, so that there must be no second peer, and
//! the *association* is dissolved before one is added.
//!
//! What changes while there is one:
//! - Datagrams of strangers do not arrive. The kernel refuses them as at a closed port, and counts
//!   them (`NoPorts`), where it is otherwise done here.
//! - Errors that routers and the peer's host report (ICMP) come back from the next system call,
//!   which did nothing then, and is repeated: see `reaction` in `send`, and `refill` in `receive`.
//! - Datagrams that waited in the socket before are still there; so senders are looked up as ever.
//!
//! What must not change is the socket's own address, which the kernel restores as it was *asked
//! for* when an association ends. So the port is one that was asked for by number (see `socket`), and
//! sockets without an address of their own are never connected: the association would give them one,
//! and keep out what is sent to another. Nor are those of link-local addresses, which an association
//! ties to a device.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::addr::RawAddr;

/// Whom the socket is connected to.
pub(super) struct Association {
    is_possible: bool,
    with: Option<SocketAddr>,
}

impl Association {
    /// None yet, of a socket with this address.
    pub(super) fn new(local: SocketAddr) -> Self {
        Self { is_possible: !local.ip().is_unspecified() && !is_link_local(local.ip()), with: None }
    }

    /// Whether the socket is connected.
    #[inline]
    pub(super) fn is_made(&self) -> bool {
        self.with.is_some()
    }

    /// Whether the socket is connected to this peer.
    pub(super) fn is_with(&self, peer: SocketAddr) -> bool {
        self.with == Some(peer)
    }

    /// Connects a socket, where that can be done: it is never needed.
    pub(super) fn make(&mut self, socket: BorrowedFd<'_>, peer: SocketAddr) {
        let may_be = self.is_possible && !is_link_local(peer.ip());
        let name = RawAddr::from(peer);
        if may_be && connect(socket, name.as_name()).is_ok() {
            self.with = Some(peer);
        }
    }

    /// Opens the socket for all.
    ///
    /// # Errors
    /// What the system said; the socket is connected as before then.
    pub(super) fn dissolve(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.is_made() {
            // SAFETY: all-zero is a valid `sockaddr_in`, which has only integers.
            let mut nobody: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            nobody.sin_family = libc::AF_UNSPEC as libc::sa_family_t;
            let len = size_of_val(&nobody) as libc::socklen_t;
            connect(socket, (std::ptr::from_ref(&nobody).cast(), len))?;
            self.with = None;
        }
        Ok(())
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn connect(
    socket: BorrowedFd<'_>,
    (name, len): (*const libc::c_void, libc::socklen_t),
) -> io::Result<()> {
    // SAFETY: the callers' names are live structures of that length, which the kernel only reads.
    let result = unsafe { libc::connect(socket.as_raw_fd(), name.cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
