//! The UDP socket whose packets a device gets.
//!
//! The socket proves the right to the packets: the kernel gives a port of an address to one socket, or to sockets that all agreed to share. A privileged
//! helper therefore believes the socket alone, which may come from anyone.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, getsockname, ipproto, sockopt};

use super::bpf::last_error;
use super::interface::Interface;
use super::rings::Plain;

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
}

/// The addresses and the port of a UDP socket on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Local {
    addresses: Vec<IpAddr>,
    port: u16,
}

impl Local {
    /// Reads the addresses at which the socket receives by the interface. A socket for all addresses has the present ones of the interface: packets to
    /// later ones go to the socket itself.
    pub(super) fn of(socket: BorrowedFd<'_>, interface: &Interface) -> Result<Self, NoRight> {
        let domain = sockopt::socket_domain(socket).map_err(|_| NoRight::NotUdp)?;
        let is_ip = domain == AddressFamily::INET || domain == AddressFamily::INET6;
        let is_udp = sockopt::socket_type(socket) == Ok(SocketType::DGRAM)
            && sockopt::socket_protocol(socket) == Ok(Some(ipproto::UDP));
        if !(is_ip && is_udp) {
            return Err(NoRight::NotUdp);
        }
        let namespace = option(socket, libc::SO_NETNS_COOKIE, 0_u64);
        if namespace.is_err() || namespace != option(interface.control(), libc::SO_NETNS_COOKIE, 0)
        {
            return Err(NoRight::OtherNamespace);
        }
        // Two sockets that are bound to two interfaces may have the same address and port.
        match option(socket, libc::SO_BINDTOIFINDEX, 0_u32) {
            Ok(index) if index == 0 || index == interface.index() => {}
            _ => return Err(NoRight::OtherInterface),
        }
        let address = getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok());
        let address = address.filter(|address| address.port() != 0).ok_or(NoRight::NotBound)?;
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
