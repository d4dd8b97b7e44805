//! Plain non-blocking UDP sockets, connected to one another.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use petrel_command::failure::Failure;
use petrel_transport::clock;
use petrel_transport::socket_option::set_int_option;

/// Requested socket buffer size: the same as the library's.
const BUFFER_BYTES: libc::c_int = 4 << 20;

/// The most bytes of one system call: the largest UDP datagram over IPv4.
pub(in super::super) const CALL_BYTES_MAX: usize = 65_507;

/// The most datagrams of one call by segmentation offload, on every kernel with support.
pub(in super::super) const SEGMENTS_MAX: usize = 64;

/// After a silence of this length, outstanding datagrams count as lost. Longer than a thread is usually
/// kept off its CPU.
const LOSS_TIMEOUT_NS: u64 = 100_000_000;

/// Empty polls, of some 150 ns each, between two reads of the clock.
const POLLS_PER_CLOCK_READ: u32 = 256;

/// Datagrams of equal sizes to and from a peer.
pub(in super::super) trait Medium: Sized {
    /// Returns the addresses of the calling and the answering end on a test bed with these addresses.
    fn addresses(library: [IpAddr; 2]) -> [IpAddr; 2] {
        library
    }

    /// Prepares the port of a bound socket, which sends datagrams of `bytes` bytes.
    fn open(
        socket: UdpSocket,
        peer: SocketAddr,
        bytes: usize,
        joins: Joins,
    ) -> Result<Self, Failure>;

    /// Sends whole datagrams, one behind the other. Returns false, with none sent, if there is no room.
    fn send(&mut self, datagrams: &[u8]) -> bool;

    /// Receives datagrams, one behind the other. Returns their bytes.
    fn receive(&mut self, datagrams: &mut [u8]) -> Option<usize>;
}

/// The directions in which one system call carries several datagrams, where the medium has system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Joins {
    Neither,
    Sent,
    Received,
    Both,
}

impl Medium for UdpSocket {
    fn open(
        socket: UdpSocket,
        peer: SocketAddr,
        bytes: usize,
        joins: Joins,
    ) -> Result<Self, Failure> {
        socket.connect(peer)?;
        if matches!(joins, Joins::Sent | Joins::Both) {
            // The kernel cuts the bytes of one call.
            set_int_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes as libc::c_int)?;
        }
        if matches!(joins, Joins::Received | Joins::Both) {
            // All datagrams have equal sizes, and the receiver need not ask for the size.
            set_int_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
        }
        Ok(socket)
    }

    #[inline]
    fn send(&mut self, datagrams: &[u8]) -> bool {
        UdpSocket::send(self, datagrams).is_ok()
    }

    #[inline]
    fn receive(&mut self, datagrams: &mut [u8]) -> Option<usize> {
        self.recv(datagrams).ok()
    }
}

/// Binds a socket to a free port of an address.
pub(in super::super) fn bind(address: IpAddr) -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.set_nonblocking(true)?;
    for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        set_int_option(&socket, libc::SOL_SOCKET, option, BUFFER_BYTES)?;
    }
    Ok(socket)
}

/// Returns a datagram's number; a short datagram yields a number that never occurs.
#[inline]
pub(in super::super) fn stamp(datagram: &[u8]) -> u64 {
    datagram.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// Measures the length of a silence. Reads the clock once in many polls.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct LossTimeout {
    polls: u32,
    end_ns: Option<u64>,
}

impl LossTimeout {
    /// Returns true if outstanding datagrams count as lost by now. To be called once per empty poll.
    #[inline]
    pub(in super::super) fn is_over(&mut self) -> bool {
        self.polls += 1;
        self.polls.is_multiple_of(POLLS_PER_CLOCK_READ) && self.is_over_by_clock()
    }

    fn is_over_by_clock(&mut self) -> bool {
        let now_ns = clock::now_ns();
        now_ns >= *self.end_ns.get_or_insert(now_ns + LOSS_TIMEOUT_NS)
    }
}
