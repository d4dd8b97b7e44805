//! The system below the reactor: sockets, readiness, shared memory, time and random numbers.
//!
//! The reactor is generic over [`Network`] and monomorphised: [`MioNetwork`] is for production, and a simulator
//! supplies virtual sockets and a virtual clock. The seeds of the simulator thus run the shipped reactor. The trait is
//! hidden, not a cargo feature: a feature would build a second nexus, different from the nexus of users.

mod mio;
mod stream;
mod user;

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use petrel_transport::shm::{HOST_IDENTITY_BYTES, ShmConfig, Side};
use petrel_transport::stream::StreamCipher;
use petrel_transport::udp::UdpLink;

pub use self::mio::MioNetwork;
pub use self::stream::{HostListener, HostStream};
pub(crate) use self::stream::{is_within_host, new_address_within_host};

/// A ready socket, by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number that the socket was registered with.
    pub token: usize,
    /// Whether the socket accepts bytes again.
    pub is_writable: bool,
    /// Whether the peer has ended its side, or the connection is broken: no later event reports the end.
    pub is_read_closed: bool,
}

/// TCP sockets, and the loop that reports their readiness.
///
/// Only [`poll`](Network::poll) blocks, and each change of readiness is reported once: a reader goes on until
/// [`WouldBlock`](io::ErrorKind::WouldBlock).
pub trait Network: SharedMemory {
    /// An end of a connection.
    type Stream: Stream;
    /// A listening socket.
    type Listener: Debug;
    /// The result of a poll.
    type Events: Events;
    /// Ends the thread's wait from another thread.
    type Waker: Wake;

    /// Returns the time, which never goes back.
    fn now(&self) -> Instant;

    /// Fills `bytes` with unguessable random ones.
    ///
    /// # Errors
    /// When the system has none.
    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// Returns the process's limit of descriptors; `None` is no limit.
    fn descriptors_max(&self) -> Option<u64>;

    /// Returns the path MTU from an address of this host to a peer.
    ///
    /// # Errors
    /// When there is no route.
    fn path_mtu(&self, local: IpAddr, peer: SocketAddr) -> io::Result<usize>;

    /// Returns the address from which the system would send datagrams to a peer.
    ///
    /// # Errors
    /// When there is no route.
    fn source_to(&self, peer: SocketAddr) -> io::Result<IpAddr>;

    /// Returns the number of datagrams without a socket on the host, if the system counts them.
    fn udp_no_ports(&self) -> Option<u64>;

    /// Returns room for `count` events of one poll.
    fn events(&self, count: usize) -> Self::Events;

    /// Waits until a socket is ready, the waker is used, or `timeout` is over; `None` is no limit. The events of the
    /// previous poll are discarded, even on an error.
    ///
    /// # Errors
    /// When the system cannot wait.
    fn poll(&mut self, events: &mut Self::Events, timeout: Option<Duration>) -> io::Result<()>;

    /// Listens, with room for `queue` connections to be accepted. Returns the address with its port.
    ///
    /// # Errors
    /// When the address is taken or not local.
    fn listen(
        &mut self,
        address: SocketAddr,
        queue: i32,
        token: usize,
    ) -> io::Result<(Self::Listener, SocketAddr)>;

    /// Stops listening. Another process that shares the socket goes on.
    fn close_listener(&mut self, listener: Self::Listener) {
        drop(listener);
    }

    /// Returns the next connection made by a peer.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if none is queued, or the system's error.
    fn accept(&self, listener: &Self::Listener) -> io::Result<(Self::Stream, SocketAddr)>;

    /// Returns true if a connection waits to be accepted, or if the system does not say.
    fn has_waiting(&self, listener: &Self::Listener) -> bool;

    /// Begins to connect.
    ///
    /// # Errors
    /// When the system refuses at once.
    fn connect(&self, remote: SocketAddr) -> io::Result<Self::Stream>;

    /// Reports from now on when the stream can be read, and the end of connecting.
    ///
    /// # Errors
    /// When the system refuses.
    fn register(
        &self,
        stream: &mut Self::Stream,
        token: usize,
        is_connecting: bool,
    ) -> io::Result<()>;

    /// Reports from now on when the stream can be written, too. An accepted connection rarely needs it, and the report that there is room at
    /// first would be a wake-up for nothing.
    ///
    /// # Errors
    /// When the system refuses.
    fn report_room(&self, stream: &mut Self::Stream, token: usize) -> io::Result<()>;

    /// Returns the user of the process at the other end of an accepted connection, if on this host and known to the system.
    fn user_of(&self, stream: &Self::Stream, ends: (SocketAddr, SocketAddr)) -> Option<u32> {
        let _ = (stream, ends);
        None
    }

    /// Stops reporting readiness of the stream.
    fn deregister(&self, stream: &mut Self::Stream);

    /// Returns a link over a stream, perhaps inside TLS, for frames of up to `max_frame` bytes. `received` are the first bytes of frames.
    ///
    /// # Errors
    /// When the stream is broken, or the network has no such links.
    fn stream_link(
        &self,
        stream: (Self::Stream, Option<Box<dyn StreamCipher>>),
        max_frame: u32,
        received: Vec<u8>,
    ) -> io::Result<Self::Link> {
        let _ = (stream, max_frame, received);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// An end of a TCP connection.
pub trait Stream: Read + Write + Debug {
    /// Returns the error of connecting, if any. The system reports it once.
    ///
    /// # Errors
    /// When the system fails to report.
    fn take_error(&self) -> io::Result<Option<io::Error>>;

    /// Returns the address of the other end, once connected.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected) before.
    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// Returns the address of this end.
    ///
    /// # Errors
    /// When the connection is broken.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Shuts down this side's direction.
    ///
    /// # Errors
    /// When the connection is broken.
    fn shutdown_write(&self) -> io::Result<()>;

    /// Sends small messages without delay; accepted connections do by themselves. A socket that refuses is merely slower.
    fn set_nodelay(&self);

    /// Returns the MTU of the path to the other end in bytes of IP packet, if the system tells it of the connection.
    fn path_mtu(&self) -> Option<usize> {
        None
    }

    /// Returns true if a read of `count` bytes into a buffer of `room` bytes has taken all that was there.
    fn is_drained_by(&self, count: usize, room: usize) -> bool {
        let _ = (count, room);
        false
    }

    /// Returns the shortest round trip measured by the system.
    fn min_rtt_ns(&self) -> Option<u32>;
}

/// The events of one poll.
pub trait Events {
    /// Iterates over the events, in the system's order.
    fn iter(&self) -> impl Iterator<Item = Ready>;
}

/// Ends a wait.
pub trait Wake: Debug {
    /// Lets the current or the next poll return.
    ///
    /// # Errors
    /// When the system has no memory.
    fn wake(&self) -> io::Result<()>;
}

/// How processes of one host exchange shared memory (`docs/wire-protocol.md` §8.4).
pub trait SharedMemory: Debug + Sized + 'static {
    /// The socket to which local peers connect.
    type Rendezvous: Debug;
    /// A connection to another process of this host.
    type ShmPeer: Debug;
    /// The memory of a link's rings.
    type Segment: Debug;
    /// Descriptors received from a peer.
    type Fds: Fds;
    /// The resources of an endpoint's transport to reach a peer.
    type Link: From<UdpLink> + Debug + 'static;

    /// Listens under a fresh name, and reports peers by `token`.
    ///
    /// # Errors
    /// When the system lacks descriptors or randomness.
    fn open_rendezvous(&mut self, token: usize) -> io::Result<Self::Rendezvous>;

    /// Returns a value that differs between hosts.
    ///
    /// # Errors
    /// When the system fails to report.
    fn host_identity(&self) -> io::Result<[u8; HOST_IDENTITY_BYTES]>;

    /// Returns the name for peers to connect to.
    fn name_of(&self, rendezvous: &Self::Rendezvous) -> Vec<u8>;

    /// Returns the next peer of the same user; `None` if no peer waits.
    ///
    /// # Errors
    /// The system's error, and [`Interrupted`](io::ErrorKind::Interrupted) after many peers of other users.
    fn accept_shm_peer(
        &self,
        rendezvous: &mut Self::Rendezvous,
    ) -> io::Result<Option<Self::ShmPeer>>;

    /// Connects to a rendezvous.
    ///
    /// # Errors
    /// When no process listens there, or a process of another user, or when the queue is full.
    fn connect_rendezvous(&self, name: &[u8]) -> io::Result<Self::ShmPeer>;

    /// Reports from now on by `token` when bytes of a peer arrive.
    ///
    /// # Errors
    /// When the system refuses.
    fn register_shm_peer(&self, peer: &Self::ShmPeer, token: usize) -> io::Result<()>;

    /// Stops reporting readiness of the peer.
    fn deregister_shm_peer(&self, peer: &Self::ShmPeer);

    /// Sends bytes, with a segment if given. Returns the number of bytes sent.
    ///
    /// # Errors
    /// The system's error.
    fn send_to_shm_peer(
        &self,
        peer: &Self::ShmPeer,
        bytes: &[u8],
        segment: Option<&Self::Segment>,
    ) -> io::Result<usize>;

    /// Receives bytes, and adds up to `fds_max` accompanying descriptors to `fds`. Returns the number of bytes; 0 is
    /// the end.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if no bytes are there, and the system's error.
    fn receive_from_shm_peer(
        &self,
        peer: &Self::ShmPeer,
        bytes: &mut [u8],
        fds: &mut Self::Fds,
        fds_max: usize,
    ) -> io::Result<usize>;

    /// Returns true if streams of peers can be closed without a wait for closes that hang.
    fn can_close(&self) -> bool;

    /// Creates a segment.
    ///
    /// # Errors
    /// The reason, for people.
    fn create_segment(&self, config: &ShmConfig) -> Result<Self::Segment, String>;

    /// Checks and maps a segment of a peer and its user.
    ///
    /// # Errors
    /// The reason, for people.
    fn open_segment(
        &self,
        peer: &Self::ShmPeer,
        memory: <Self::Fds as Fds>::Memory,
        huge_pages: bool,
    ) -> Result<Self::Segment, String>;

    /// Returns the largest frame of a segment, in bytes.
    fn max_frame_bytes(&self, segment: &Self::Segment) -> usize;

    /// Returns a link through shared memory.
    fn shm_link(&self, segment: Self::Segment, side: Side, peer: Self::ShmPeer) -> Self::Link;
}

/// Descriptors of a peer, closed by their owner only.
pub trait Fds: Debug + Default {
    /// A descriptor, to be mapped.
    type Memory;

    /// Returns the number of descriptors.
    fn count(&self) -> usize;

    /// Returns the descriptor, unless none or several came.
    fn take_only(&mut self) -> Option<Self::Memory>;

    /// Gives up an unwanted descriptor.
    fn discard(memory: Self::Memory);
}
