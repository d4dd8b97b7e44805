//! The system below the reactor: sockets, readiness, shared memory, time and random numbers.
//!
//! The reactor is generic over [`Network`] and monomorphised: [`MioNetwork`] is production's, and a simulator brings one
//! with virtual sockets and a virtual clock, so that its seeds run the reactor that ships. Hidden and not a cargo
//! feature: a feature would make a second build of the nexus, which is not the one that users have.

mod mio;

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use petrel_transport::shm::{HOST_IDENTITY_BYTES, ShmConfig, Side};
use petrel_transport::udp::UdpLink;

pub use self::mio::MioNetwork;

/// A socket, by its token, with something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number that the socket was registered with.
    pub token: usize,
    /// Whether the socket takes bytes again.
    pub is_writable: bool,
}

/// Sockets of TCP, and the loop that tells which of them are ready.
///
/// Nothing blocks but [`poll`](Network::poll), and readiness is told once for each change: a reader goes on until
/// [`WouldBlock`](io::ErrorKind::WouldBlock).
pub trait Network: SharedMemory {
    /// An end of a connection.
    type Stream: Stream;
    /// A listening socket.
    type Listener: Debug;
    /// What a poll found.
    type Events: Events;
    /// Ends the thread's wait from another thread.
    type Waker: Wake;

    /// The time, which never goes back.
    fn now(&self) -> Instant;

    /// Fills `bytes` with random ones that nobody can guess.
    ///
    /// # Errors
    /// When the system has none.
    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// Descriptors that the process may have; `None` is without limit.
    fn descriptors_max(&self) -> Option<u64>;

    /// The path's MTU from an address of this host to a peer.
    ///
    /// # Errors
    /// When there is no route.
    fn path_mtu(&self, local: IpAddr, peer: SocketAddr) -> io::Result<usize>;

    /// Datagrams that reached no socket of this host, where the system counts them.
    fn udp_no_ports(&self) -> Option<u64>;

    /// Room for so many events of one poll.
    fn events(&self, count: usize) -> Self::Events;

    /// Waits until a socket is ready, the waker is used, or `timeout` is over; `None` is no limit. The events of the
    /// poll before are forgotten, even if this one fails.
    ///
    /// # Errors
    /// When the system cannot wait.
    fn poll(&mut self, events: &mut Self::Events, timeout: Option<Duration>) -> io::Result<()>;

    /// Listens, with room for `queue` connections that are not accepted yet. Returns the address with its port.
    ///
    /// # Errors
    /// When the address is taken or not local.
    fn listen(
        &mut self,
        address: SocketAddr,
        queue: i32,
        token: usize,
    ) -> io::Result<(Self::Listener, SocketAddr)>;

    /// Listens no more. Another process may have the socket, too, and goes on.
    fn close_listener(&mut self, listener: Self::Listener) {
        drop(listener);
    }

    /// The next connection that a peer made.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is none, and what the system says.
    fn accept(&self, listener: &Self::Listener) -> io::Result<(Self::Stream, SocketAddr)>;

    /// Whether a connection waits to be accepted. True where the system does not say.
    fn has_waiting(&self, listener: &Self::Listener) -> bool;

    /// Begins to connect.
    ///
    /// # Errors
    /// When the system refuses at once.
    fn connect(&self, remote: SocketAddr) -> io::Result<Self::Stream>;

    /// Tells from now on when the stream can be read or written.
    ///
    /// # Errors
    /// When the system refuses.
    fn register(&self, stream: &mut Self::Stream, token: usize) -> io::Result<()>;

    /// Tells nothing of the stream any more.
    fn deregister(&self, stream: &mut Self::Stream);
}

/// An end of a connection of TCP.
pub trait Stream: Read + Write + Debug {
    /// The error by which connecting failed, if it did. Asked once.
    ///
    /// # Errors
    /// When the system does not tell.
    fn take_error(&self) -> io::Result<Option<io::Error>>;

    /// The other end, once there is one.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected) before.
    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// This end.
    ///
    /// # Errors
    /// When the connection is broken.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Ends this side's direction.
    ///
    /// # Errors
    /// When the connection is broken.
    fn shutdown_write(&self) -> io::Result<()>;

    /// Lets small messages go without waiting for each other. A socket that refuses is merely slower.
    fn set_nodelay(&self);

    /// The shortest round trip that the system has measured.
    fn min_rtt_ns(&self) -> Option<u32>;
}

/// The events of one poll.
pub trait Events {
    /// Each of them, in the order in which the system told them.
    fn iter(&self) -> impl Iterator<Item = Ready>;
}

/// Ends a wait.
pub trait Wake: Debug {
    /// Lets the present or the next poll return.
    ///
    /// # Errors
    /// When the system has no memory.
    fn wake(&self) -> io::Result<()>;
}

/// How processes of one host meet and hand memory over (`docs/wire-protocol.md` §8.4).
pub trait SharedMemory: Debug + Sized + 'static {
    /// Where peers of this host come.
    type Rendezvous: Debug;
    /// A connection of two processes of this host.
    type Guest: Debug;
    /// The memory of a link's rings.
    type Segment: Debug;
    /// Descriptors of a peer.
    type Fds: Fds;
    /// What an endpoint's transport needs to reach a peer.
    type Link: Debug;

    /// Listens under a fresh name, and tells of guests by `token`.
    ///
    /// # Errors
    /// When the system lacks descriptors or randomness.
    fn open_rendezvous(&mut self, token: usize) -> io::Result<Self::Rendezvous>;

    /// What tells this host from others.
    ///
    /// # Errors
    /// When the system does not tell.
    fn host_identity(&self) -> io::Result<[u8; HOST_IDENTITY_BYTES]>;

    /// The name to tell peers.
    fn name_of(&self, rendezvous: &Self::Rendezvous) -> Vec<u8>;

    /// The next guest of this process's user; `None` if there is none now.
    ///
    /// # Errors
    /// What the system says, and [`Interrupted`](io::ErrorKind::Interrupted) after many strangers.
    fn accept_guest(&self, rendezvous: &mut Self::Rendezvous) -> io::Result<Option<Self::Guest>>;

    /// Connects to a rendezvous.
    ///
    /// # Errors
    /// When nobody listens there, or another user, or too many wait.
    fn meet(&self, name: &[u8]) -> io::Result<Self::Guest>;

    /// Tells from now on by `token` when a guest has said something.
    ///
    /// # Errors
    /// When the system refuses.
    fn register_guest(&self, guest: &Self::Guest, token: usize) -> io::Result<()>;

    /// Tells nothing of the guest any more.
    fn deregister_guest(&self, guest: &Self::Guest);

    /// Sends bytes, and a segment with them if there is one. Returns how many bytes went.
    ///
    /// # Errors
    /// What the system says.
    fn send_to_guest(
        &self,
        guest: &Self::Guest,
        bytes: &[u8],
        segment: Option<&Self::Segment>,
    ) -> io::Result<usize>;

    /// Receives bytes, and at most `fds_max` descriptors with them, which are added to `fds`. Returns the bytes'
    /// number; 0 is the end.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing came, and what the system says.
    fn receive_from_guest(
        &self,
        guest: &Self::Guest,
        bytes: &mut [u8],
        fds: &mut Self::Fds,
        fds_max: usize,
    ) -> io::Result<usize>;

    /// Whether streams of peers can be closed without waiting for those that hang.
    fn can_close(&self) -> bool;

    /// Makes a segment.
    ///
    /// # Errors
    /// Why not, for people.
    fn create_segment(&self, config: &ShmConfig) -> Result<Self::Segment, String>;

    /// Checks and maps a peer's segment.
    ///
    /// # Errors
    /// Why not, for people.
    fn open_segment(
        &self,
        memory: <Self::Fds as Fds>::Memory,
        huge_pages: bool,
    ) -> Result<Self::Segment, String>;

    /// The largest frame of a segment, in bytes.
    fn max_frame_bytes(&self, segment: &Self::Segment) -> usize;

    /// A link through shared memory.
    fn shm_link(&self, segment: Self::Segment, side: Side, guest: Self::Guest) -> Self::Link;

    /// A link over UDP.
    fn udp_link(&self, link: UdpLink) -> Self::Link;
}

/// Descriptors of a peer, which nobody but their owner closes.
pub trait Fds: Debug + Default {
    /// One of them, to be mapped.
    type Memory;

    /// How many there are.
    fn count(&self) -> usize;

    /// The one, if it is one.
    fn take_only(&mut self) -> Option<Self::Memory>;

    /// Gives up one that is not wanted.
    fn discard(memory: Self::Memory);
}
