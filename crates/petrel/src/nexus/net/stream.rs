//! Control connections of the production network: over TCP, or within the host over a Unix socket.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use petrel_transport::path::{tcp_min_rtt_ns, tcp_path_mtu};

use super::Stream;

/// Addresses within this host, which no network has: the prefix is for packets to be discarded (RFC 6666). The other half
/// of such an address is a random number, and with the number the name of an abstract Unix socket.
const PREFIX: [u16; 4] = [0x100, 0, 0, 0];

/// Returns an address within this host for a listener.
///
/// # Errors
/// When the system has no random numbers.
pub(crate) fn new_address_within_host() -> io::Result<SocketAddr> {
    let mut number = [0; 8];
    crate::nexus::random::fill_random(&mut number)?;
    Ok(address_within_host(u64::from_ne_bytes(number)))
}

fn address_within_host(number: u64) -> SocketAddr {
    let segment = |place: u32| (number >> (16 * place)) as u16;
    let [a, b, c, d] = PREFIX;
    let ip = Ipv6Addr::new(a, b, c, d, segment(3), segment(2), segment(1), segment(0));
    // A port of 0 would let the system choose.
    SocketAddr::from((ip, 1))
}

/// Returns true for an address of [`address_within_host`].
pub(crate) fn is_within_host(address: SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(ip) if ip.segments()[..4] == PREFIX)
}

fn name_of(address: SocketAddr) -> io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(format!("petrel control {}", address.ip()))
}

/// An end of a control connection.
#[derive(Debug)]
pub enum HostStream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket, to the address or from a client of the address.
    Unix(UnixStream, SocketAddr),
}

impl From<TcpStream> for HostStream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

#[cfg(test)]
impl HostStream {
    pub(in crate::nexus) fn tcp(&self) -> &TcpStream {
        let Self::Tcp(stream) = self else { panic!("the connection is within the host") };
        stream
    }
}

impl HostStream {
    pub(super) fn connect(remote: SocketAddr) -> io::Result<Self> {
        match is_within_host(remote) {
            true => Ok(Self::Unix(UnixStream::connect_addr(&name_of(remote)?)?, remote)),
            false => Ok(Self::Tcp(TcpStream::connect(remote)?)),
        }
    }
}

impl Read for HostStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream, _) => stream.read(buffer),
        }
    }
}

impl Write for HostStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream, _) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for HostStream {
    fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Tcp(stream) => stream.take_error(),
            Self::Unix(stream, _) => stream.take_error(),
        }
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr(),
            Self::Unix(_, address) => Ok(*address),
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr(),
            Self::Unix(_, address) => Ok(*address),
        }
    }

    fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream, _) => stream.shutdown(Shutdown::Write),
        }
    }

    fn set_nodelay(&self) {
        if let Self::Tcp(stream) = self {
            // A socket that refuses is merely slower.
            let _ = stream.set_nodelay(true);
        }
    }

    fn min_rtt_ns(&self) -> Option<u32> {
        match self {
            Self::Tcp(stream) => tcp_min_rtt_ns(stream.as_fd()),
            Self::Unix(..) => None,
        }
    }

    fn path_mtu(&self) -> Option<usize> {
        match self {
            Self::Tcp(stream) => tcp_path_mtu(stream.as_fd()),
            Self::Unix(..) => None,
        }
    }

    /// Linux raises an event for bytes that come later (`epoll(7)`).
    fn is_drained_by(&self, count: usize, room: usize) -> bool {
        count < room
    }
}

/// A listening socket.
#[derive(Debug)]
pub enum HostListener {
    /// Over TCP.
    Tcp(TcpListener),
    /// A Unix socket at an address within this host.
    Unix(UnixListener, SocketAddr),
}

impl HostListener {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        match is_within_host(address) {
            true => Ok(Self::Unix(UnixListener::bind_addr(&name_of(address)?)?, address)),
            false => Ok(Self::Tcp(TcpListener::bind(address)?)),
        }
    }

    pub(in crate::nexus) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Unix(_, address) => Ok(*address),
        }
    }

    pub(super) fn accept(&self) -> io::Result<(HostStream, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, remote) = listener.accept()?;
                Ok((HostStream::Tcp(stream), remote))
            }
            Self::Unix(listener, address) => {
                let (stream, _) = listener.accept()?;
                Ok((HostStream::Unix(stream, *address), *address))
            }
        }
    }
}

impl AsFd for HostListener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

macro_rules! source {
    ($name:ident) => {
        impl Source for $name {
            fn register(&mut self, by: &Registry, token: Token, of: Interest) -> io::Result<()> {
                match self {
                    Self::Tcp(socket) => socket.register(by, token, of),
                    Self::Unix(socket, _) => socket.register(by, token, of),
                }
            }

            fn reregister(&mut self, by: &Registry, token: Token, of: Interest) -> io::Result<()> {
                match self {
                    Self::Tcp(socket) => socket.reregister(by, token, of),
                    Self::Unix(socket, _) => socket.reregister(by, token, of),
                }
            }

            fn deregister(&mut self, by: &Registry) -> io::Result<()> {
                match self {
                    Self::Tcp(socket) => socket.deregister(by),
                    Self::Unix(socket, _) => socket.deregister(by),
                }
            }
        }
    };
}

source!(HostStream);
source!(HostListener);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_within_host__is_one_and_has_a_name_of_its_own() {
        let addresses = [0, 1, u64::MAX, 0x1234_5678_9ABC_DEF0].map(address_within_host);
        assert!(addresses.iter().all(|address| is_within_host(*address)));
        assert_eq!(addresses[3].to_string(), "[100::1234:5678:9abc:def0]:1");
        let names: Vec<_> = addresses.iter().map(|address| name_of(*address).unwrap()).collect();
        let names = names.iter().map(|name| name.as_abstract_name().unwrap());
        assert_eq!(names.collect::<std::collections::HashSet<_>>().len(), 4);
        for other in ["[101::1]:1", "[::1]:1", "127.0.0.1:1", "[100:0:0:1::1]:1"] {
            assert!(!is_within_host(other.parse().unwrap()), "{other}");
        }
    }
}
