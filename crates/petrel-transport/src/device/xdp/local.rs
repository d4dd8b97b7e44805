//! The UDP socket whose packets a device gets.
//!
//! The socket proves the right to the packets: the kernel gives a port of an address to one socket, or to sockets that all agreed to share. A privileged
//! helper therefore believes the socket alone, which may come from anyone.
//!
//! A socket bound by number has the port until the last close. A socket bound to port 0 has the port only until the socket leaves a peer. Linux does
//! not tell the two apart, and a helper turns the second kind into the first ([`Local::of_client`]): for a moment, a connected socket has no peer, and
//! takes datagrams from every sender. A hostile client can bind the socket anew in this moment, and keep the second kind. The helper therefore also
//! compares the port every second, and ends the connection of a client with a changed port: [`Local::is_of`].

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketType, bind, connect, connect_unspec, getpeername, getsockname, ipproto,
    sockopt,
};

use super::bpf::last_error;
use super::interface::Interface;
use super::rings::Plain;
use crate::socket_option::set_int_option;

/// Why a descriptor gives no right to packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRight {
    #[error("the descriptor is no UDP socket")]
    NotUdp,
    #[error("the UDP socket is not bound to a port")]
    NotBound,
    #[error("the UDP socket is bound to no address of the interface")]
    OtherAddress,
    #[error("the UDP socket is bound to another interface")]
    OtherInterface,
    #[error("the UDP socket is in another network namespace, or the kernel is older than 5.14")]
    OtherNamespace,
    #[error("the UDP socket's port, interface or peer cannot be kept: {0}")]
    NotKept(Errno),
}

/// The addresses and the port of a UDP socket on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Local {
    addresses: Vec<IpAddr>,
    port: u16,
}

impl Local {
    /// As [`Local::of`], for a socket of another process. The socket keeps the port until the last close.
    pub(super) fn of_client(
        socket: BorrowedFd<'_>,
        interface: &Interface,
    ) -> Result<Self, NoRight> {
        check_is_udp(socket)?;
        // Only a client's socket can come from elsewhere: the process's own sockets do not need the newer kernel.
        let namespace = option(socket, libc::SO_NETNS_COOKIE, 0_u64);
        if namespace.is_err() || namespace != option(interface.control(), libc::SO_NETNS_COOKIE, 0)
        {
            return Err(NoRight::OtherNamespace);
        }
        keep_port(socket).map_err(NoRight::NotKept)?;
        Self::of(socket, interface)
    }

    /// Reads the addresses at which the socket receives by the interface. A socket for all addresses has the present ones of the interface: packets to
    /// later ones go to the socket itself.
    pub(super) fn of(socket: BorrowedFd<'_>, interface: &Interface) -> Result<Self, NoRight> {
        check_is_udp(socket)?;
        // Two sockets that are bound to two interfaces may have the same address and port.
        match option(socket, libc::SO_BINDTOIFINDEX, 0_u32) {
            Ok(index) if index == 0 || index == interface.index() => {}
            _ => return Err(NoRight::OtherInterface),
        }
        let address = name_of(socket).ok().filter(|address| address.port() != 0);
        let address = address.ok_or(NoRight::NotBound)?;
        let is_v6_only = sockopt::ipv6_v6only(socket).unwrap_or(true);
        let receives = |own: &IpAddr| match address.ip().to_canonical() {
            ip if !ip.is_unspecified() => *own == ip,
            ip => own.is_ipv6() == ip.is_ipv6() || (ip.is_ipv6() && !is_v6_only),
        };
        let addresses: Vec<IpAddr> = interface.addresses().into_iter().filter(receives).collect();
        if addresses.is_empty() {
            return Err(NoRight::OtherAddress);
        }
        Ok(Self { addresses, port: address.port() })
    }

    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns true if the socket still has the port.
    pub(super) fn is_of(&self, socket: BorrowedFd<'_>) -> bool {
        name_of(socket).is_ok_and(|name| name.port() == self.port)
    }
}

fn check_is_udp(socket: BorrowedFd<'_>) -> Result<(), NoRight> {
    let domain = sockopt::socket_domain(socket).map_err(|_| NoRight::NotUdp)?;
    let is_ip = domain == AddressFamily::INET || domain == AddressFamily::INET6;
    let is_udp = sockopt::socket_type(socket) == Ok(SocketType::DGRAM)
        && sockopt::socket_protocol(socket) == Ok(Some(ipproto::UDP));
    if is_ip && is_udp { Ok(()) } else { Err(NoRight::NotUdp) }
}

/// Makes the port the socket's until the last close.
///
/// The kernel takes a port of the kernel's choice away when the socket leaves the peer. The helper therefore leaves the peer first, binds the socket by
/// number if the port is gone, and restores the rest: the peer, and the interface, since a socket leaves peer and interface together.
fn keep_port(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let port = name_of(socket)?.port();
    let peer = getpeername(socket).ok().flatten();
    let device = option(socket, libc::SO_BINDTOIFINDEX, 0_u32)?;
    connect_unspec(socket)?;
    if device != 0 {
        set_option(socket, libc::SO_BINDTOIFINDEX, device)?;
    }
    let mut name = name_of(socket)?;
    if name.port() == 0 && port != 0 {
        name.set_port(port);
        bind(socket, &name)?;
    }
    peer.map_or(Ok(()), |peer| connect(socket, &peer))
}

fn name_of(socket: BorrowedFd<'_>) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(getsockname(socket)?)
}

/// Reads an option of sockets that `rustix` lacks.
pub(super) fn option<T: Plain>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    mut value: T,
) -> Result<T, Errno> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let (to, level) = ((&raw mut value).cast(), libc::SOL_SOCKET);
    // SAFETY: the kernel writes at most `bytes` bytes to `value`, of which any bytes are valid.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut bytes) };
    if result < 0 { Err(last_error()) } else { Ok(value) }
}

/// Sets an option of sockets.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    value: u32,
) -> Result<(), Errno> {
    set_int_option(socket, libc::SOL_SOCKET, name, value as libc::c_int)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}
