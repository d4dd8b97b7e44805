//! Opens the data port, and asks the kernel for the MTU of a path.
//!
//! The unsafe code here passes one `int` to or from a socket option of an open descriptor.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::sockopt;
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::addr::{Families, canonical};
use super::config::{UdpCapabilities, UdpConfig, UdpError};
use super::ecn;
use crate::socket_option::{int_option, set_int_option};

/// Index of the dropped datagrams in the kernel's `SO_MEMINFO`.
const SK_MEMINFO_DROPS: usize = 8;

/// The instruction of a packet filter (BPF) that keeps no byte of any datagram: `BPF_RET | BPF_K`.
const DROP_ALL: SockFilter = SockFilter::new(0x06, 0, 0, 0);

/// Most attempts at a free port, since another process may take the port first.
const PORT_TRIES: u32 = 16;

/// Opens a bound, non-blocking socket with fragmentation forbidden, and returns the capabilities.
pub(super) fn open(config: &UdpConfig) -> Result<(UdpSocket, UdpCapabilities), UdpError> {
    let (socket, gro) = bind_by_number(config)?;
    // From now on the kernel notes when datagrams arrive.
    last_waited_ns(socket.as_fd());
    let capabilities = UdpCapabilities {
        gso: config.gso && knows_gso(socket.as_fd()),
        gro,
        ecn: config.ecn && ecn::is_possible(socket.as_fd(), Families::of(config.bind)),
        recv_buffer_bytes: socket.recv_buffer_size()?,
        send_buffer_bytes: socket.send_buffer_size()?,
    };
    Ok((socket.into(), capabilities))
}

/// Binds a socket to a port requested by number. Dissolving an association loses a port the system
/// chose. A socket with a chosen port is therefore closed, and the next socket requests the port;
/// another process may have taken the port by then.
fn bind_by_number(config: &UdpConfig) -> Result<(Socket, bool), UdpError> {
    if config.bind.port() != 0 {
        return bind(config, config.bind);
    }
    let mut tries = 1;
    loop {
        match bind(config, free_port(config)?) {
            Err(UdpError::Bind { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && tries < PORT_TRIES =>
            {
                tries += 1;
            }
            result => return result,
        }
    }
}

/// The address to bind to, with a port that is free now.
fn free_port(config: &UdpConfig) -> Result<SocketAddr, UdpError> {
    let local = bind(config, config.bind)?.0.local_addr()?;
    Ok(local.as_socket().unwrap_or(config.bind))
}

/// Opens a socket, and returns whether it supports receive offload.
fn bind(config: &UdpConfig, address: SocketAddr) -> Result<(Socket, bool), UdpError> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM.nonblocking().cloexec(),
        Some(Protocol::UDP),
    )?;
    let families = Families::of(address);
    if address.is_ipv6() {
        socket.set_only_v6(families == Families::V6)?;
    }
    let (v4, v6) = families.contains();
    for (_, is_v6) in [(v4, false), (v6, true)].into_iter().filter(|(is_there, _)| *is_there) {
        forbid_fragments(socket.as_fd(), is_v6)?;
    }
    socket.set_recv_buffer_size(config.recv_buffer_bytes)?;
    socket.set_send_buffer_size(config.send_buffer_bytes)?;
    let gro = config.gro && knows_gro(socket.as_fd());
    socket.bind(&address.into()).map_err(|source| UdpError::Bind { address, source })?;
    Ok((socket, gro))
}

/// Opens a socket that only sends, from a port that the system chooses at the address of `local`.
pub(super) fn open_to_send(config: &UdpConfig, local: SocketAddr) -> Result<UdpSocket, UdpError> {
    let mut address = local;
    address.set_port(0);
    let (socket, _) = bind(config, address)?;
    // Nothing is read from the socket. Without the filter, which a sandbox may refuse, strangers' datagrams would stay
    // in the receive buffer: the smallest that the kernel grants.
    socket.set_recv_buffer_size(0)?;
    let _ = socket.attach_filter(&[DROP_ALL]);
    Ok(socket.into())
}

/// Makes packets above the path MTU fail with `EMSGSIZE`. Otherwise packets would be sent in
/// fragments, and a lost fragment would lose the packet.
fn forbid_fragments(socket: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    if v6 {
        sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
    } else {
        sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
    }
    Ok(())
}

/// Lets the kernel send packets above the path MTU in fragments, and go on to learn the path MTU. A kernel that refuses has packets
/// dropped instead.
#[cold]
pub(super) fn allow_fragments(socket: &UdpSocket) {
    let Ok(local) = socket.local_addr() else { return };
    let (v4, v6) = Families::of(local).contains();
    if v4 {
        let _ = sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::WANT);
    }
    if v6 {
        let _ = sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::WANT);
    }
}

/// Kernels since 4.18 have the option. Support by the device shows when sending.
fn knows_gso(socket: BorrowedFd<'_>) -> bool {
    int_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
}

/// Kernels since 5.0 have the option, which is off initially, and stays off.
fn knows_gro(socket: BorrowedFd<'_>) -> bool {
    set_gro(socket, false).is_ok()
}

fn set_gro(socket: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set_int_option(socket, libc::SOL_UDP, libc::UDP_GRO, on.into())
}

/// Makes the kernel deliver datagrams of equal size and peer in one buffer, and report their size.
/// Returns true on success.
pub(super) fn enable_gro(socket: BorrowedFd<'_>) -> bool {
    set_gro(socket, true).is_ok()
}

/// Datagrams the kernel has dropped so far, mostly for lack of room. The kernel counts with 32
/// bits.
pub(super) fn dropped(socket: BorrowedFd<'_>) -> u32 {
    let mut memory = [0u32; SK_MEMINFO_DROPS + 1];
    let mut len = size_of_val(&memory) as libc::socklen_t;
    let (to, level) = (memory.as_mut_ptr().cast(), libc::SOL_SOCKET);
    // SAFETY: `to` and `len` describe a live array; the kernel writes at most `len` bytes.
    unsafe { libc::getsockopt(socket.as_raw_fd(), level, libc::SO_MEMINFO, to, &raw mut len) };
    // Zero, if the kernel does not know the option.
    memory[SK_MEMINFO_DROPS]
}

/// Returns how long the datagram that was read last had waited in the kernel, in nanoseconds; `None` before the first datagram, and
/// from a kernel without stamps. The first call makes the kernel note the time of each datagram.
pub(super) fn last_waited_ns(socket: BorrowedFd<'_>) -> Option<u64> {
    /// `SIOCGSTAMPNS`, which libc does not name.
    const TIME_OF_LAST: libc::c_ulong = 0x8907;
    let mut stamp = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the request writes a `timespec`, and `stamp` is one that lives.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), TIME_OF_LAST, &raw mut stamp) };
    let now = clock_gettime(ClockId::Realtime);
    let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
    let waited_ns = ns(now.tv_sec, now.tv_nsec).saturating_sub(ns(stamp.tv_sec, stamp.tv_nsec));
    // A clock that was set back says nothing.
    (result == 0).then(|| u64::try_from(waited_ns).unwrap_or(0))
}

/// Returns the MTU in bytes of IP packet the kernel knows for the path from `local` to `peer`: the
/// MTU of the route's device, or less after a router's report. No packet is sent.
///
/// # Errors
/// When there is no route, the families differ, or `local` is no address of the host.
pub fn path_mtu(local: IpAddr, peer: SocketAddr) -> io::Result<usize> {
    let peer = canonical(peer);
    let local = match (local, peer) {
        (IpAddr::V6(all), SocketAddr::V4(_)) if all.is_unspecified() => {
            Ipv4Addr::UNSPECIFIED.into()
        }
        _ => local,
    };
    let socket = UdpSocket::bind(probe_address(local, peer))?;
    forbid_fragments(socket.as_fd(), peer.is_ipv6())?;
    socket.connect(peer)?;
    let mtu = if peer.is_ipv6() { sockopt::ipv6_mtu(&socket)? } else { sockopt::ip_mtu(&socket)? };
    Ok(mtu as usize)
}

/// Returns the address of this host from which the kernel would send to `peer`. No packet is sent.
///
/// # Errors
/// When there is no route.
pub fn source_to(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// `local` with a free port. A link-local address needs its peer's scope.
fn probe_address(local: IpAddr, peer: SocketAddr) -> SocketAddr {
    match (local, peer) {
        (IpAddr::V6(ip), SocketAddr::V6(peer)) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, 0, 0, peer.scope_id()).into()
        }
        _ => SocketAddr::new(local, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtu__of_loopback_is_the_devices() {
        let device: usize =
            std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap().trim().parse().unwrap();
        let (v4, v6) = (IpAddr::from([127, 0, 0, 1]), "::1".parse::<IpAddr>().unwrap());
        // An IPv4 packet has a 16-bit length; an IPv6 packet has one without its header.
        assert_eq!(path_mtu(v4, (v4, 9).into()).unwrap(), device.min(65_535));
        assert_eq!(path_mtu(v6, (v6, 9).into()).unwrap(), device.min(65_535 + 40));
        assert!(path_mtu(v4, (v6, 9).into()).is_err());
    }
}
