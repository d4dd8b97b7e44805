//! Connects the socket while the socket has a single peer.
//!
//! A connected socket knows route and address: sending a datagram takes 80 ns less, of some 1000 ns
//! from socket to socket. It receives from no other address. The *association* must therefore be
//! dissolved before a second peer is added.
//!
//! Effects of an association:
//! - Strangers' datagrams do not arrive. The kernel refuses and counts them as at a closed port
//!   (`NoPorts`); without an association, the transport does.
//! - Errors that routers and the peer's host report (ICMP) come back from the next system call,
//!   which then did nothing and is repeated: see `reaction` in `send`, and `refill` in `receive`.
//! - Earlier datagrams may still wait in the socket, hence senders are looked up as usual.
//!
//! The socket's own address must not change. At the end of an association, the kernel restores the
//! *requested* address. Therefore the port is always requested by number (see `socket`). A socket
//! bound to the unspecified address is never connected: the association would choose a single
//! address, and exclude datagrams to the host's other addresses. Nor is a socket with a link-local
//! address, since an association ties the socket to a device.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::addr::RawAddr;

/// The peer to which the socket is connected, if any.
pub(super) struct Association {
    is_possible: bool,
    with: Option<SocketAddr>,
}

impl Association {
    /// A socket with this address, not yet connected.
    pub(super) fn new(local: SocketAddr) -> Self {
        Self { is_possible: !local.ip().is_unspecified() && !is_link_local(local.ip()), with: None }
    }

    /// Returns true if the socket is connected.
    #[inline]
    pub(super) fn is_made(&self) -> bool {
        self.with.is_some()
    }

    /// Returns true if the socket is connected to this peer.
    pub(super) fn is_with(&self, peer: SocketAddr) -> bool {
        self.with == Some(peer)
    }

    /// Connects the socket, if possible. The association is only an optimisation.
    pub(super) fn make(&mut self, socket: BorrowedFd<'_>, peer: SocketAddr) {
        let may_be = self.is_possible && !is_link_local(peer.ip());
        let name = RawAddr::from(peer);
        if may_be && connect(socket, name.as_name()).is_ok() {
            self.with = Some(peer);
        }
    }

    /// Disconnects the socket, to receive from all addresses.
    ///
    /// # Errors
    /// The system's error; the socket is then connected as before.
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
    // SAFETY: the callers' names are live structures of length `len`, which the kernel only reads.
    let result = unsafe { libc::connect(socket.as_raw_fd(), name.cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
