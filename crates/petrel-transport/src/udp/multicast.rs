//! Multicast: groups to send to, and group addresses to receive from besides the data port.
//!
//! A group to send to is a peer like any other, at a multicast address; the socket only has to know
//! the interface. Datagrams to groups arrive on separate sockets, one for each address: the data
//! port's socket is bound to an address of the host. A group's socket is bound to the group's
//! address and thus receives nothing else. Over IPv4 the socket is a member for the group's sender
//! only (source-specific, RFC 4607), so that the kernel and the switches exclude other senders.
//! Frames count as those of the peer with their source address; strangers' datagrams are dropped as
//! at the data port.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::config::UdpConfig;
use super::receive::Receiver;
use crate::socket_option::set_int_option;

/// Most addresses that a transport listens at: each costs a system call in every burst.
const LISTENERS_MAX: usize = 16;

/// A group address with its socket.
pub(super) struct Listener {
    address: SocketAddr,
    socket: UdpSocket,
    pub(super) receiver: Receiver,
    /// Wanted senders, once for each group the sender was joined for.
    sources: Vec<IpAddr>,
}

impl Listener {
    fn open(address: SocketAddr, config: &UdpConfig, gro: bool) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM.nonblocking().cloexec(),
            Some(Protocol::UDP),
        )?;
        // Other endpoints of the host may be members too.
        socket.set_reuse_address(true)?;
        socket.set_recv_buffer_size(config.recv_buffer_bytes)?;
        // Receives only groups joined by this socket, not by other sockets of the host.
        let (level, name) = match address {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL),
        };
        set_int_option(socket.as_fd(), level, name, 0)?;
        socket.bind(&address.into())?;
        let receiver = Receiver::new(gro)?;
        Ok(Self { address, socket: socket.into(), receiver, sources: Vec::new() })
    }

    fn join(&mut self, source: IpAddr, interface: IpAddr) -> io::Result<()> {
        if !self.sources.contains(&source) {
            let socket = SockRef::from(&self.socket);
            match (source, self.address.ip(), interface) {
                (IpAddr::V4(source), IpAddr::V4(group), IpAddr::V4(interface)) => {
                    socket.join_ssm_v4(&source, &group, &interface)?;
                }
                // The second source shares the first one's membership.
                (IpAddr::V6(_), IpAddr::V6(group), IpAddr::V6(_)) if self.sources.is_empty() => {
                    socket.join_multicast_v6(&group, 0)?;
                }
                (IpAddr::V6(_), IpAddr::V6(_), IpAddr::V6(_)) => {}
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            }
        }
        self.sources.push(source);
        Ok(())
    }

    fn leave(&mut self, source: IpAddr, interface: IpAddr) {
        let Some(place) = self.sources.iter().position(|&joined| joined == source) else { return };
        self.sources.swap_remove(place);
        if let (IpAddr::V4(source), IpAddr::V4(group), IpAddr::V4(interface)) =
            (source, self.address.ip(), interface)
            && !self.sources.contains(&source.into())
        {
            // On failure the kernel delivers datagrams that are dropped here.
            let _ = SockRef::from(&self.socket).leave_ssm_v4(&source, &group, &interface);
        }
    }
}

/// All group addresses of a transport.
#[derive(Default)]
pub(super) struct Listeners {
    all: Vec<Listener>,
    /// All sockets as one descriptor, to wait for.
    waits: Option<OwnedFd>,
}

impl Listeners {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Listens at `address` to `source`, which is reached from `interface`.
    pub(super) fn join(
        &mut self,
        address: SocketAddr,
        source: IpAddr,
        interface: IpAddr,
        config: &UdpConfig,
        gro: bool,
    ) -> io::Result<()> {
        let place = match self.all.iter().position(|listener| listener.address == address) {
            Some(place) => place,
            None if self.all.len() == LISTENERS_MAX => {
                let why = format!("it listens at {LISTENERS_MAX} multicast addresses already");
                return Err(io::Error::other(why));
            }
            None => self.add(Listener::open(address, config, gro)?)?,
        };
        let joined = self.all[place].join(source, interface);
        self.tidy();
        joined
    }

    fn add(&mut self, listener: Listener) -> io::Result<usize> {
        let waits = match &self.waits {
            Some(waits) => waits,
            None => self.waits.insert(epoll::create(epoll::CreateFlags::CLOEXEC)?),
        };
        let data = epoll::EventData::new_u64(0);
        epoll::add(waits, &listener.socket, data, epoll::EventFlags::IN)?;
        self.all.push(listener);
        Ok(self.all.len() - 1)
    }

    /// Ends one join of `source` at `address`.
    pub(super) fn leave(&mut self, address: SocketAddr, source: IpAddr, interface: IpAddr) {
        let mut here = self.all.iter_mut().filter(|listener| listener.address == address);
        here.by_ref().for_each(|listener| listener.leave(source, interface));
        self.tidy();
    }

    /// Closes unused sockets; closing also removes them from `waits`.
    fn tidy(&mut self) {
        self.all.retain(|listener| !listener.sources.is_empty());
    }

    /// A descriptor that is readable when any of the sockets is.
    pub(super) fn waits(&self) -> Option<BorrowedFd<'_>> {
        self.waits.as_ref().filter(|_| !self.is_empty()).map(|waits| waits.as_fd())
    }

    /// Returns true if there are received datagrams to deliver.
    pub(super) fn has_ready(&self) -> bool {
        self.all.iter().any(|listener| listener.receiver.has_ready())
    }

    /// Polls each socket without undelivered datagrams; returns the number of system calls.
    pub(super) fn refill(&mut self) -> u64 {
        let idle = self.all.iter_mut().filter(|listener| !listener.receiver.has_ready());
        idle.map(|listener| listener.receiver.refill(listener.socket.as_fd()).0).sum()
    }

    /// A receiver with undelivered datagrams.
    pub(super) fn next_ready(&mut self) -> Option<&mut Receiver> {
        let ready = |listener: &&mut Listener| listener.receiver.has_ready();
        self.all.iter_mut().find(ready).map(|listener| &mut listener.receiver)
    }
}

/// Returns `Ok` if a socket of family `v6` may send datagrams to this group. The network's own
/// protocols (RFC 5771 §4, RFC 4291 §2.7.1) are left alone. `docs/wire-protocol.md` §12.2.
pub(super) fn usable(address: SocketAddr, v6: bool) -> Result<(), String> {
    let is_reserved = match address.ip() {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => is_reserved_v6(ip.segments()),
    };
    if address.is_ipv6() != v6 {
        return Err(format!("{address} is of another address family than the data port"));
    }
    if !address.ip().is_multicast() || address.port() == 0 || is_reserved {
        return Err(format!("{address} is no multicast address with a port for applications"));
    }
    Ok(())
}

/// Returns true if the address is reserved, never leaves a host, or belongs to a protocol of the
/// network. The latter are permanently assigned groups (flag T clear) of one link, and those with a
/// small number: routers, time, name services. Users choose the numbers of transient groups,
/// however small.
fn is_reserved_v6(segments: [u16; 8]) -> bool {
    const TRANSIENT: u16 = 0x10;
    const LINK_LOCAL: u16 = 2;
    let scope = segments[0] & 0xF;
    let is_assigned = segments[0] & TRANSIENT == 0;
    let is_small = segments[1..7] == [0; 6];
    matches!(scope, 0 | 1 | 0xF)
        || segments[1..] == [0; 7]
        || (is_assigned && (scope == LINK_LOCAL || is_small))
}

/// Makes the socket send multicast through the interface with this address, over at most `hops`
/// routers.
pub(super) fn send_by(socket: &UdpSocket, interface: IpAddr, hops: u32) -> io::Result<()> {
    let socket = SockRef::from(socket);
    match interface {
        IpAddr::V4(interface) => {
            socket.set_multicast_if_v4(&interface)?;
            socket.set_multicast_ttl_v4(hops)
        }
        IpAddr::V6(_) => socket.set_multicast_hops_v6(hops),
    }
}

/// The host's source address for `peer`, when sending from `local`.
pub(super) fn interface_to(local: IpAddr, peer: SocketAddr) -> io::Result<IpAddr> {
    if !local.is_unspecified() {
        return Ok(local);
    }
    let socket = UdpSocket::bind(SocketAddr::new(local, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_to__is_the_own_address_or_what_the_route_to_the_peer_says() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (any, own, loopback) in
            [("0.0.0.0", "10.9.8.7", "127.0.0.1"), ("::", "2001:db8::7", "::1")]
        {
            // The function needs no particular port: the first port is unavailable, or taken here.
            let _first_port = UdpSocket::bind(SocketAddr::new(ip(any), 1));
            let peer = SocketAddr::new(ip(loopback), 9);
            assert_eq!(interface_to(ip(any), peer).unwrap(), ip(loopback));
            assert_eq!(interface_to(ip(own), peer).unwrap(), ip(own));
        }
    }
}
