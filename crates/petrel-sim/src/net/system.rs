//! The network as the reactor of one process sees it.

use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::nexus::net::{Events, Fds, Network, Ready, SharedMemory, Stream, Wake};
use petrel::nexus::stepped::WAKER;
use petrel_transport::shm::{HOST_IDENTITY_BYTES, ShmConfig, Side};
use petrel_transport::udp::UdpLink;

use super::tcp::SocketId;
use super::unix::{Memory, UnixConnectionId};
use super::{NetRef, ProcessId};

/// A type of links that the network can make, as an endpoint gets them.
pub(crate) trait NetLink: From<UdpLink> + std::fmt::Debug + 'static {
    /// Returns a link through memory. The connection is open as long as both processes.
    fn of_memory(memory: Memory, side: Side, connection: SimUnixConnection) -> Self;
}

pub(crate) struct SimNetwork<L> {
    net: NetRef,
    process: ProcessId,
    link: PhantomData<L>,
    /// Events returned by a poll: fewer than the reactor's capacity, as after a flood.
    events_max: usize,
}

impl<L> std::fmt::Debug for SimNetwork<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimNetwork").field("process", &self.process).finish_non_exhaustive()
    }
}

impl<L> SimNetwork<L> {
    pub(crate) fn new(net: &NetRef, process: ProcessId, events_max: usize) -> Self {
        Self { net: Rc::clone(net), process, link: PhantomData, events_max }
    }

    pub(crate) fn waker(&self) -> SimWaker {
        SimWaker { net: Rc::clone(&self.net), process: self.process }
    }
}

impl<L: NetLink> Network for SimNetwork<L> {
    type Stream = SimStream;
    type Listener = SocketAddr;
    type Events = SimEvents;
    type Waker = SimWaker;

    fn now(&self) -> Instant {
        self.net.borrow().instant()
    }

    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.net.borrow_mut().rng.fill(bytes);
        Ok(())
    }

    fn descriptors_max(&self) -> Option<u64> {
        Some(self.net.borrow().processes[self.process].descriptors_max)
    }

    /// Hosts of the simulation have one address.
    fn source_to(&self, _peer: SocketAddr) -> io::Result<IpAddr> {
        Err(io::ErrorKind::NetworkUnreachable.into())
    }

    fn path_mtu(&self, _local: IpAddr, _peer: SocketAddr) -> io::Result<usize> {
        let net = &mut *self.net.borrow_mut();
        match net.happens(net.conditions.scarce) {
            true => Err(io::ErrorKind::NetworkUnreachable.into()),
            false => Ok(net.conditions.mtu),
        }
    }

    fn udp_no_ports(&self) -> Option<u64> {
        Some(0)
    }

    fn events(&self, count: usize) -> SimEvents {
        SimEvents { ready: Vec::new(), count: count.min(self.events_max) }
    }

    fn poll(&mut self, events: &mut SimEvents, _timeout: Option<Duration>) -> io::Result<()> {
        events.ready.clear();
        let net = &mut *self.net.borrow_mut();
        if net.processes[self.process].poll_fails {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if net.happens(net.conditions.choppy) && net.rng.below(8) == 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        events.ready = net.take_ready(self.process, events.count);
        Ok(())
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        queue: i32,
        token: usize,
    ) -> io::Result<(SocketAddr, SocketAddr)> {
        let queue = usize::try_from(queue).unwrap_or(0);
        let local = self.net.borrow_mut().listen(self.process, address, queue, token)?;
        Ok((local, local))
    }

    fn accept(&self, listener: &SocketAddr) -> io::Result<(SimStream, SocketAddr)> {
        let (id, remote) = self.net.borrow_mut().accept(self.process, *listener)?;
        Ok((SimStream { net: Rc::clone(&self.net), id }, remote))
    }

    fn has_waiting(&self, listener: &SocketAddr) -> bool {
        self.net.borrow().has_waiting(*listener)
    }

    fn connect(&self, remote: SocketAddr) -> io::Result<SimStream> {
        let id = self.net.borrow_mut().connect(self.process, remote)?;
        Ok(SimStream { net: Rc::clone(&self.net), id })
    }

    fn register(
        &self,
        stream: &mut SimStream,
        token: usize,
        _is_connecting: bool,
    ) -> io::Result<()> {
        self.net.borrow_mut().register(stream.id, token)
    }

    /// Sockets of the simulation always report room.
    fn report_room(&self, _stream: &mut SimStream, _token: usize) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&self, stream: &mut SimStream) {
        self.net.borrow_mut().deregister(stream.id);
    }
}

pub(crate) struct SimStream {
    net: NetRef,
    id: SocketId,
}

impl std::fmt::Debug for SimStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimStream({})", self.id)
    }
}

impl Read for SimStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.net.borrow_mut().read(self.id, buffer)
    }
}

impl Write for SimStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.net.borrow_mut().write(self.id, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for SimStream {
    fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.net.borrow_mut().take_error(self.id))
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.net.borrow().peer_addr(self.id)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.net.borrow().local_addr(self.id))
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.net.borrow_mut().shutdown(self.id)
    }

    fn set_nodelay(&self) {}

    fn min_rtt_ns(&self) -> Option<u32> {
        self.net.borrow().min_rtt_ns(self.id)
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.net.borrow_mut().close(self.id);
    }
}

#[derive(Debug)]
pub(crate) struct SimEvents {
    ready: Vec<Ready>,
    count: usize,
}

impl Events for SimEvents {
    fn iter(&self) -> impl Iterator<Item = Ready> {
        self.ready.iter().copied()
    }
}

pub(crate) struct SimWaker {
    net: NetRef,
    process: ProcessId,
}

impl std::fmt::Debug for SimWaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimWaker({})", self.process)
    }
}

impl Wake for SimWaker {
    fn wake(&self) -> io::Result<()> {
        self.net.borrow_mut().notify(self.process, WAKER);
        Ok(())
    }
}

/// An end of a connection through a Unix socket.
pub(crate) struct SimUnixConnection {
    net: NetRef,
    id: UnixConnectionId,
}

impl std::fmt::Debug for SimUnixConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimUnixConnection({})", self.id)
    }
}

impl Drop for SimUnixConnection {
    fn drop(&mut self) {
        self.net.borrow_mut().close_unix(self.id);
    }
}

impl<L: NetLink> SharedMemory for SimNetwork<L> {
    type Rendezvous = Vec<u8>;
    type ShmPeer = SimUnixConnection;
    type Segment = Memory;
    type Fds = SimFds;
    type Link = L;

    fn open_rendezvous(&mut self, token: usize) -> io::Result<Vec<u8>> {
        self.net.borrow_mut().open_rendezvous(self.process, token)
    }

    fn host_identity(&self) -> io::Result<[u8; HOST_IDENTITY_BYTES]> {
        let mut identity = [1; HOST_IDENTITY_BYTES];
        identity[..8].copy_from_slice(&self.net.borrow().machine_of(self.process).to_le_bytes());
        Ok(identity)
    }

    fn name_of(&self, rendezvous: &Vec<u8>) -> Vec<u8> {
        rendezvous.clone()
    }

    fn accept_shm_peer(&self, rendezvous: &mut Vec<u8>) -> io::Result<Option<SimUnixConnection>> {
        let id = self.net.borrow_mut().accept_unix(self.process, rendezvous)?;
        Ok(id.map(|id| SimUnixConnection { net: Rc::clone(&self.net), id }))
    }

    fn connect_rendezvous(&self, name: &[u8]) -> io::Result<SimUnixConnection> {
        let id = self.net.borrow_mut().connect_rendezvous(self.process, name)?;
        Ok(SimUnixConnection { net: Rc::clone(&self.net), id })
    }

    fn register_shm_peer(&self, connection: &SimUnixConnection, token: usize) -> io::Result<()> {
        self.net.borrow_mut().register_unix(connection.id, token)
    }

    fn deregister_shm_peer(&self, connection: &SimUnixConnection) {
        self.net.borrow_mut().deregister_unix(connection.id);
    }

    fn send_to_shm_peer(
        &self,
        connection: &SimUnixConnection,
        bytes: &[u8],
        segment: Option<&Memory>,
    ) -> io::Result<usize> {
        self.net.borrow_mut().send_unix(connection.id, bytes, segment.copied())
    }

    fn receive_from_shm_peer(
        &self,
        connection: &SimUnixConnection,
        bytes: &mut [u8],
        fds: &mut SimFds,
        fds_max: usize,
    ) -> io::Result<usize> {
        self.net.borrow_mut().receive_unix(connection.id, bytes, &mut fds.0, fds_max)
    }

    fn can_close(&self) -> bool {
        !self.net.borrow().processes[self.process].closes_hang
    }

    fn create_segment(&self, config: &ShmConfig) -> Result<Memory, String> {
        let net = &mut *self.net.borrow_mut();
        if net.happens(net.conditions.scarce_shm) {
            return Err("no memory for rings".to_owned());
        }
        let is_sound = !net.happens(net.conditions.scarce_shm);
        net.segments += 1;
        let ShmConfig { max_frame_bytes, ring_bytes, .. } = *config;
        Ok(Memory { max_frame_bytes, ring_bytes, number: net.segments, is_sound })
    }

    fn open_segment(
        &self,
        _peer: &SimUnixConnection,
        memory: Memory,
        _huge_pages: bool,
    ) -> Result<Memory, String> {
        if memory.is_sound { Ok(memory) } else { Err("this is no segment".to_owned()) }
    }

    fn max_frame_bytes(&self, segment: &Memory) -> usize {
        segment.max_frame_bytes
    }

    fn shm_link(&self, memory: Memory, side: Side, connection: SimUnixConnection) -> L {
        L::of_memory(memory, side, connection)
    }
}

/// Received memory descriptors of a peer.
#[derive(Debug, Default)]
pub(crate) struct SimFds(Vec<Memory>);

impl Fds for SimFds {
    type Memory = Memory;

    fn count(&self) -> usize {
        self.0.len()
    }

    fn take_only(&mut self) -> Option<Memory> {
        if self.0.len() == 1 { self.0.pop() } else { None }
    }

    fn discard(_memory: Memory) {}
}
