//! The production network: the kernel's sockets, with `mio` as the readiness loop.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Poll, Token};
use petrel_transport::host::HostLink;
use petrel_transport::shm::{
    self, HOST_IDENTITY_BYTES, MeetingDir, PeerFds, PeerStream, Rendezvous, Segment, ShmConfig,
    ShmLink, Side, recv_with_fds, send_with_fds,
};
use petrel_transport::stream::{StreamCipher, StreamLink};
use petrel_transport::udp::{path_mtu, source_to};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_tcp_nodelay, socket_peercred};
use rustix::process::{Resource, getrlimit};

use super::stream::{HostListener, HostStream};
use super::user::Users;
use super::{Events, Fds, Network, Ready, SharedMemory, Wake};
use crate::nexus::host::udp_no_ports;
use crate::nexus::media::HostLinks;

const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// The kernel's sockets, for endpoints with links of type `L`.
pub struct MioNetwork<L = HostLink> {
    poll: Poll,
    users: Users,
    /// Where processes meet to share memory; `None` for the network namespace.
    meeting_dir: Option<MeetingDir>,
    link: PhantomData<fn() -> L>,
}

impl<L> MioNetwork<L> {
    /// Returns a readiness loop, and the waker of its thread, registered as `token`.
    pub(in crate::nexus) fn new(token: usize) -> io::Result<(Self, mio::Waker)> {
        let poll = Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), Token(token))?;
        let users = Users::default();
        Ok((Self { poll, users, meeting_dir: None, link: PhantomData }, waker))
    }
}

impl<L> fmt::Debug for MioNetwork<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MioNetwork").finish_non_exhaustive()
    }
}

impl<L> MioNetwork<L> {
    /// Lets processes meet in a directory.
    pub(in crate::nexus) fn meet_in(&mut self, path: &Path) -> io::Result<()> {
        self.meeting_dir = Some(MeetingDir::open(path)?);
        Ok(())
    }

    /// Listens on a socket that is bound already.
    pub(in crate::nexus) fn listen_on(
        &mut self,
        mut socket: HostListener,
        queue: i32,
        token: usize,
    ) -> io::Result<(HostListener, SocketAddr)> {
        // The standard library's queue of 128 fills in a moment, and a peer that finds it full retries only a second
        // later.
        rustix::net::listen(&socket, queue)?;
        // Accepted connections inherit the option.
        let _ = set_tcp_nodelay(&socket, true);
        self.poll.registry().register(&mut socket, Token(token), Interest::READABLE)?;
        let local = socket.local_addr()?;
        Ok((socket, local))
    }
}

impl<L: HostLinks> Network for MioNetwork<L> {
    type Stream = HostStream;
    type Listener = HostListener;
    type Events = mio::Events;
    type Waker = mio::Waker;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()> {
        crate::nexus::random::fill_random(bytes)
    }

    fn descriptors_max(&self) -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }

    fn path_mtu(&self, local: IpAddr, peer: SocketAddr) -> io::Result<usize> {
        path_mtu(local, peer)
    }

    fn source_to(&self, peer: SocketAddr) -> io::Result<IpAddr> {
        source_to(peer)
    }

    fn udp_no_ports(&self) -> Option<u64> {
        udp_no_ports()
    }

    fn events(&self, count: usize) -> mio::Events {
        mio::Events::with_capacity(count)
    }

    fn poll(&mut self, events: &mut mio::Events, timeout: Option<Duration>) -> io::Result<()> {
        self.poll.poll(events, timeout)
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        queue: i32,
        token: usize,
    ) -> io::Result<(HostListener, SocketAddr)> {
        self.listen_on(HostListener::bind(address)?, queue, token)
    }

    fn close_listener(&mut self, mut listener: HostListener) {
        // If another process shares the socket, closing it here would leave the socket registered. Fails only for an
        // unregistered socket.
        let _ = self.poll.registry().deregister(&mut listener);
    }

    fn accept(&self, listener: &HostListener) -> io::Result<(HostStream, SocketAddr)> {
        listener.accept()
    }

    fn has_waiting(&self, listener: &HostListener) -> bool {
        let mut polled = [PollFd::new(listener, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())) != Ok(0)
    }

    fn connect(&self, remote: SocketAddr) -> io::Result<HostStream> {
        HostStream::connect(remote)
    }

    fn register(
        &self,
        stream: &mut HostStream,
        token: usize,
        is_connecting: bool,
    ) -> io::Result<()> {
        let interest = if is_connecting { BOTH } else { Interest::READABLE };
        self.poll.registry().register(stream, Token(token), interest)
    }

    fn report_room(&self, stream: &mut HostStream, token: usize) -> io::Result<()> {
        self.poll.registry().reregister(stream, Token(token), BOTH)
    }

    fn user_of(&self, stream: &HostStream, ends: (SocketAddr, SocketAddr)) -> Option<u32> {
        match stream {
            HostStream::Tcp(_) => self.users.user_of(ends),
            HostStream::Unix(stream, _) => Some(socket_peercred(stream).ok()?.uid.as_raw()),
        }
    }

    fn deregister(&self, stream: &mut HostStream) {
        // Fails only for an unregistered socket.
        let _ = self.poll.registry().deregister(stream);
    }

    fn stream_link(
        &self,
        (stream, cipher): (HostStream, Option<Box<dyn StreamCipher>>),
        max_frame: u32,
        received: Vec<u8>,
    ) -> io::Result<L> {
        match stream {
            HostStream::Tcp(stream) => {
                let link = StreamLink::new(stream.into(), max_frame as usize, received)?;
                Ok(link.inside(cipher).into())
            }
            HostStream::Unix(..) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Events for mio::Events {
    fn iter(&self) -> impl Iterator<Item = Ready> {
        let ready = |event: &mio::event::Event| {
            let Token(token) = event.token();
            Ready {
                token,
                is_writable: event.is_writable(),
                is_read_closed: event.is_read_closed() || event.is_error(),
            }
        };
        mio::Events::iter(self).map(ready)
    }
}

impl Wake for mio::Waker {
    fn wake(&self) -> io::Result<()> {
        mio::Waker::wake(self)
    }
}

impl<L: HostLinks> SharedMemory for MioNetwork<L> {
    type Rendezvous = Rendezvous;
    type ShmPeer = PeerStream;
    type Segment = Segment;
    type Fds = PeerFds;
    type Link = L;

    fn open_rendezvous(&mut self, token: usize) -> io::Result<Rendezvous> {
        let rendezvous = match &self.meeting_dir {
            Some(directory) => Rendezvous::bind_in(directory)?,
            None => Rendezvous::bind()?,
        };
        let fd = rendezvous.as_fd().as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&fd), Token(token), Interest::READABLE)?;
        Ok(rendezvous)
    }

    fn host_identity(&self) -> io::Result<[u8; HOST_IDENTITY_BYTES]> {
        match &self.meeting_dir {
            Some(directory) => shm::host_identity_in(directory),
            None => shm::host_identity(),
        }
    }

    fn name_of(&self, rendezvous: &Rendezvous) -> Vec<u8> {
        rendezvous.name().to_vec()
    }

    fn accept_shm_peer(&self, rendezvous: &mut Rendezvous) -> io::Result<Option<PeerStream>> {
        rendezvous.accept()
    }

    fn connect_rendezvous(&self, name: &[u8]) -> io::Result<PeerStream> {
        match &self.meeting_dir {
            Some(directory) => shm::connect_in(directory, name),
            None => shm::connect(name),
        }
    }

    fn register_shm_peer(&self, peer: &PeerStream, token: usize) -> io::Result<()> {
        let fd = peer.as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&fd), Token(token), Interest::READABLE)
    }

    fn deregister_shm_peer(&self, peer: &PeerStream) {
        // Fails only for an unregistered socket.
        let _ = self.poll.registry().deregister(&mut SourceFd(&peer.as_raw_fd()));
    }

    fn send_to_shm_peer(
        &self,
        peer: &PeerStream,
        bytes: &[u8],
        segment: Option<&Segment>,
    ) -> io::Result<usize> {
        match segment {
            Some(segment) => send_with_fds(peer, bytes, &[segment.as_fd()]),
            None => send_with_fds(peer, bytes, &[]),
        }
    }

    fn receive_from_shm_peer(
        &self,
        peer: &PeerStream,
        bytes: &mut [u8],
        fds: &mut PeerFds,
        fds_max: usize,
    ) -> io::Result<usize> {
        let (count, more) = recv_with_fds(peer, bytes, fds_max)?;
        fds.add(more);
        Ok(count)
    }

    fn can_close(&self) -> bool {
        shm::can_close()
    }

    fn create_segment(&self, config: &ShmConfig) -> Result<Segment, String> {
        Segment::create(config).map_err(|error| error.to_string())
    }

    fn open_segment(
        &self,
        peer: &PeerStream,
        memory: OwnedFd,
        huge_pages: bool,
    ) -> Result<Segment, String> {
        match peer.user() {
            Ok(user) => Segment::from_fd_of(memory, user, huge_pages).map_err(|e| e.to_string()),
            Err(error) => {
                shm::discard(vec![memory]);
                Err(error.to_string())
            }
        }
    }

    fn max_frame_bytes(&self, segment: &Segment) -> usize {
        segment.max_frame_bytes()
    }

    fn shm_link(&self, segment: Segment, side: Side, peer: PeerStream) -> L {
        ShmLink::new(segment, side, peer).into()
    }
}

impl Fds for PeerFds {
    type Memory = OwnedFd;

    fn count(&self) -> usize {
        PeerFds::count(self)
    }

    fn take_only(&mut self) -> Option<OwnedFd> {
        PeerFds::take_only(self)
    }

    fn discard(memory: OwnedFd) {
        shm::discard(vec![memory]);
    }
}
