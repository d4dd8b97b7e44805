//! Kernel UDP: one socket per endpoint, IPv4 or IPv6, without privileges.
//!
//! The cost of a system call is spread in two ways. Small frames for one peer share a datagram (see
//! [`bundle`](crate::bundle)), a gain on every network. Datagrams of equal size for one peer share
//! a message by segmentation offload (GSO), and joined datagrams are received at once (GRO), where
//! the kernel can: a call then costs about the same for 1 or for 64 datagrams. All messages of a
//! burst go in one `sendmmsg`. A burst for which the kernel has no room stays here as a backlog.
//!
//! The datagrams of sealed links are sealed when their burst is planned to the end, and opened in the receive buffer: see `plan::sealing` and
//! `deliver::sealed`. Plain links have the same way as without them.
//!
//! | module | concern |
//! | --- | --- |
//! | `config` | configuration, capabilities, errors |
//! | `socket` | opening the socket; the MTU of a path |
//! | `association` | connecting the socket to an only peer |
//! | `further` | further source ports, for further paths of the network |
//! | `ecn` | marks of congestion |
//! | `multicast` | groups to send to, and to receive from |
//! | `addr`, `peers` | addresses in the kernel's layout; the peer table |
//! | `plan` | frames into datagrams into messages, without a system call |
//! | `send`, `receive` | the system calls |
//! | `burst`, `deliver` | from frames to `send`, and from `receive` to frames |
//! | `device` | the exit through a network device, beside the socket |
//! | `detached` | all of it without a socket, for simulators |
//!
//! After the start, memory is allocated only for new peers and for the first backlogs.
//!
//! Rejected designs: `io_uring` and zero-copy sends, with higher costs than gains for datagrams of
//! this size; a connected socket per peer, which would need a poll of each. While there is only one
//! peer, the single socket is connected.

mod addr;
mod association;
mod burst;
mod config;
mod deliver;
#[doc(hidden)]
pub mod detached;
mod device;
mod ecn;
mod further;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod multicast;
mod peers;
mod plan;
mod receive;
mod send;
mod socket;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use crate::clock;
use crate::mux::Member;
use crate::seal::{Epochs, OVERHEAD_BYTES};
use crate::transport::{
    FrameHandler, LinkError, MIN_FRAME_BYTES, NoReturn, PeerId, RX_BURST_MAX, ReceiveQueue,
    Transport, TransportStats,
};
use crate::wake::{Waker, Watch};

pub use config::{
    Device, DpdkDevice, MTU_BYTES_MIN, MTU_CAP_BYTES, Mtu, UdpCapabilities, UdpConfig, UdpError,
    UdpLink, VerbsDevice, XdpDevice,
};
pub use device::DeviceState;
pub use socket::{path_mtu, source_to};

use addr::{Families, canonical};
use association::Association;
use burst::{Outlet, Room};
use device::DeviceExit;
use ecn::Ecn;
use further::{FURTHER_PORTS_MAX, FurtherPorts, Shared};
use multicast::Listeners;
use peers::PeerTable;
use plan::Plan;
use receive::Receiver;
use send::Sender;

/// IP and UDP header of a datagram, without options.
const HEADER_BYTES_V4: usize = 20 + 8;
const HEADER_BYTES_V6: usize = 40 + 8;

/// Largest IP packet a 16-bit length can state. Bounds a datagram on devices with larger claims,
/// for example loopback, and the size of a segmentation offload.
const IP_PACKET_BYTES_MAX: usize = 65_535;

/// The UDP transport of one endpoint.
///
/// Frames must not begin with [`BUNDLE_MARK`](crate::bundle::BUNDLE_MARK), nor with 0x0E, the mark of sealed datagrams. Links to one address
/// with equal largest frame and equal ECN agreement share a [`PeerId`] until all of them are
/// removed. Links with different terms have separate ids, with one [source](Transport::source_of).
///
/// Every sealed link ([`UdpLink::sealed`]) has a [`PeerId`] of its own, which is its source, too. The datagrams name the link, and no plain datagram
/// reaches the peer. A plain link to the same address is another peer. (Sealed datagrams from an address without sealed links go to its plain peer, if
/// there is one, as frames of an unknown version.)
pub struct Udp {
    socket: UdpSocket,
    config: UdpConfig,
    local: SocketAddr,
    capabilities: UdpCapabilities,
    waker: Waker,
    peers: PeerTable,
    /// Made while there is one peer, and only with an empty plan: frames planned for other peers
    /// must reach them.
    association: Association,
    ecn: Ecn,
    plan: Plan,
    sender: Sender,
    receiver: Receiver,
    listeners: Listeners,
    room: Room,
    further: FurtherPorts,
    device: Option<Box<DeviceExit>>,
    /// Whether datagrams leave by the socket alone, and without control messages.
    sends_bare: bool,
    stats: TransportStats,
}

impl Udp {
    /// Opens the data port.
    ///
    /// # Errors
    /// See [`UdpError`].
    pub fn bind(config: UdpConfig) -> Result<Self, UdpError> {
        Self::bind_with_waker(config, Waker::new()?)
    }

    /// A transport without a port, for an endpoint that does not use UDP: it has no peers.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn without_port(waker: Waker) -> Result<Self, UdpError> {
        // The descriptor stands for the socket, and is never used.
        let socket = UdpSocket::from(OwnedFd::from(UnixDatagram::unbound()?));
        let config = UdpConfig { gso: false, gro: false, ecn: false, ..UdpConfig::default() };
        let capabilities = UdpCapabilities {
            gso: false,
            gro: false,
            ecn: false,
            recv_buffer_bytes: 0,
            send_buffer_bytes: 0,
        };
        Self::of_socket(socket, config.bind, capabilities, (config, waker))
    }

    /// Opens the data port, with a waker that other transports of the endpoint may share.
    ///
    /// # Errors
    /// See [`UdpError`].
    pub fn bind_with_waker(config: UdpConfig, waker: Waker) -> Result<Self, UdpError> {
        if config.mtu.bytes() < MTU_BYTES_MIN {
            return Err(UdpError::MtuTooSmall { configured: config.mtu.bytes() });
        }
        let (socket, capabilities) = socket::open(&config)?;
        // Calibrates the clock here rather than in the first burst.
        clock::now_ns();
        let local = socket.local_addr()?;
        let mut udp = Self::of_socket(socket, local, capabilities, (config, waker))?;
        match udp.config.device.clone() {
            None | Some(Device::Kernel | Device::Verbs(_)) => {}
            Some(device) => udp.use_device(device)?,
        }
        Ok(udp)
    }

    /// Sends and receives by a device beside the socket.
    fn use_device(&mut self, setting: Device) -> Result<(), UdpError> {
        let waker = self.waker.clone();
        let device = DeviceExit::open(setting, &self.socket, self.local, waker)?;
        if let Mtu::Auto { cap_bytes } = &mut self.config.mtu {
            *cap_bytes = device.packet_bytes_max().min(*cap_bytes);
        }
        self.device = Some(Box::new(device));
        self.room.note_device();
        self.sends_bare = false;
        Ok(())
    }

    /// The use of the device in the settings; `None` without one.
    pub fn device(&self) -> Option<DeviceState> {
        self.device.as_ref().map(|device| device.state())
    }

    /// The largest packets to send: as the settings have them, or as the device carries them.
    pub fn mtu(&self) -> Mtu {
        self.config.mtu
    }

    fn of_socket(
        socket: UdpSocket,
        local: SocketAddr,
        capabilities: UdpCapabilities,
        (config, waker): (UdpConfig, Waker),
    ) -> Result<Self, UdpError> {
        let message_bytes_max =
            if capabilities.gso { IP_PACKET_BYTES_MAX - header_bytes(local) } else { 0 };
        Ok(Self {
            local,
            association: Association::new(local),
            ecn: Ecn::new(local),
            receiver: Receiver::new(capabilities.gro)?,
            listeners: Listeners::default(),
            socket,
            capabilities,
            waker,
            peers: PeerTable::new(),
            plan: Plan::new(message_bytes_max)?,
            further: FurtherPorts::open(&config, local, message_bytes_max)?,
            sender: Sender::new(),
            room: Room::default(),
            device: None,
            sends_bare: true,
            stats: TransportStats::default(),
            config,
        })
    }

    /// The address peers send to, with the port the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The options the kernel granted, as of now.
    pub fn capabilities(&self) -> UdpCapabilities {
        self.capabilities
    }

    /// The number of peers.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// The largest frame to a peer over a path of this MTU.
    fn frame_bytes(&self, mtu_bytes: usize, peer: SocketAddr) -> usize {
        mtu_bytes.min(IP_PACKET_BYTES_MAX) - header_bytes(canonical(peer))
    }

    /// The largest frame in either direction between this endpoint and a peer.
    fn agree_on_frame_bytes(&self, link: &UdpLink) -> Result<usize, LinkError> {
        let sealing_bytes = if link.sealed.is_some() { OVERHEAD_BYTES } else { 0 };
        let path = path_mtu(self.local.ip(), link.addr)?;
        let mtu = match self.config.mtu {
            mtu @ Mtu::Auto { .. } => mtu.on_path(path),
            Mtu::Fixed(configured) if configured > path => {
                let peer = link.addr.to_string();
                return Err(LinkError::MtuExceedsPath { configured, path, peer });
            }
            Mtu::Fixed(configured) => configured,
        };
        let least = MTU_BYTES_MIN + sealing_bytes;
        if mtu < least {
            return Err(LinkError::Unsupported(format!(
                "the path to {} carries packets of {mtu} bytes, less than {least}",
                link.addr
            )));
        }
        let announced = link.max_frame.unwrap_or(usize::MAX);
        if announced < MIN_FRAME_BYTES {
            return Err(LinkError::Unsupported(format!(
                "{} takes frames of {announced} bytes only, less than {MIN_FRAME_BYTES}",
                link.addr
            )));
        }
        Ok((self.frame_bytes(mtu, link.addr) - sealing_bytes).min(announced))
    }

    /// Connects the socket to the only peer, if any. The plan must hold no frames for others.
    fn associate(&mut self) {
        if let Some(peer) = self.peers.only()
            && self.plan.is_empty()
            && !self.association.is_made()
        {
            self.association.make(self.socket.as_fd(), peer);
        }
    }

    /// Adapts sent codepoints and read marks to the agreements of the current peers.
    fn adapt_to_ecn(&mut self) -> std::io::Result<()> {
        let socket = self.socket.as_fd();
        self.ecn.adapt(socket, &self.peers, self.plan.is_empty())?;
        self.sends_bare = !self.ecn.is_by_message() && self.device.is_none();
        self.further.adapt_to_ecn(&self.peers)?;
        self.receiver.read_marks(socket, self.ecn.families(), self.peers.ecn_count() > 0)
    }

    /// Adds a frame that the fast path did not accept. A frame that the fast path accepts is not the first of its port in the
    /// burst, so that this function alone notes that further ports have frames.
    ///
    /// # Safety
    /// That of [`Transport::push`].
    #[inline(never)]
    unsafe fn push_slowly_from(
        &mut self,
        source: u8,
        peer: PeerId,
        head: &[u8],
        body: &[u8],
    ) -> bool {
        let Some(index) = source.checked_sub(1) else {
            // SAFETY: by the function's contract.
            return unsafe { self.push_slowly(peer, head, body) };
        };
        self.room.set_further_pushed(true);
        let (further, shared) = self.further();
        // SAFETY: by the function's contract.
        unsafe { further.push_slowly(index.into(), shared, peer, head, body) }
    }

    /// [`Transport::flush`] after a refusal by the kernel, or with frames from further source ports.
    #[cold]
    #[inline(never)]
    fn flush_slowly(&mut self) {
        if !self.plan.is_empty() && !self.room.has_asked() {
            self.send_pushed();
        }
        if !self.room.is_further_pushed() {
            return;
        }
        let (further, shared) = self.further();
        further.flush(shared);
        let has_backlog = further.has_backlog();
        self.room.set_further_pushed(has_backlog);
    }

    /// Offers kept frames to the kernel again.
    #[cold]
    #[inline(never)]
    fn retry(&mut self) {
        if self.room.is_backlog() {
            self.send_pushed();
        }
        let (further, shared) = self.further();
        further.retry(shared);
    }

    /// The further source ports, with the parts that all ports share.
    fn further(&mut self) -> (&mut FurtherPorts, Shared<'_>) {
        let Self { further, peers, sender, stats, device, .. } = self;
        let device = device.as_mut().and_then(|device| device.port());
        (further, Shared { peers, sender, stats, device })
    }

    /// The members of a group would share a key, and could forge messages to each other (`docs/wire-protocol.md` §17.3).
    fn refuse_group_of_sealed(&self, peer: PeerId) -> Result<(), LinkError> {
        match self.peers.is_sealed(peer) {
            true => Err(LinkError::Unsupported("a sealed link has no groups".to_owned())),
            false => Ok(()),
        }
    }

    fn addr_of(&self, peer: PeerId) -> Result<SocketAddr, LinkError> {
        let gone = || LinkError::Unsupported("the peer is gone".to_owned());
        self.peers.get(peer).map(|peer| peer.addr()).ok_or_else(gone)
    }
}

fn header_bytes(address: SocketAddr) -> usize {
    if address.is_ipv6() { HEADER_BYTES_V6 } else { HEADER_BYTES_V4 }
}

impl Transport for Udp {
    type Link = UdpLink;
    type Return = NoReturn;

    #[inline]
    fn now(&self) -> u64 {
        clock::now_ns()
    }

    fn clock(&self) -> clock::Clock {
        clock::Clock::machine()
    }

    fn add_peer(&mut self, mut link: UdpLink) -> Result<PeerId, LinkError> {
        if self.local.port() == 0 {
            return Err(LinkError::Unsupported("UDP is off".to_owned()));
        }
        link.addr = Families::of(self.local).usable(link.addr).map_err(LinkError::Unsupported)?;
        if link.ecn && !self.capabilities.ecn {
            let why = "marks of congestion (ECN) are switched off here, or the kernel refused them";
            return Err(LinkError::Unsupported(why.to_owned()));
        }
        let frame_bytes_max = self.agree_on_frame_bytes(&link)?;
        let UdpLink { addr, ecn, source, sealed, .. } = link;
        if sealed.is_some() {
            self.plan.prepare_to_seal()?;
            self.further.prepare_to_seal()?;
        }
        if !self.association.is_with(addr) {
            self.association.dissolve(self.socket.as_fd())?;
        }
        let peer = match sealed {
            None => self.peers.add(addr, frame_bytes_max, (ecn, source))?,
            Some(keys) => {
                let terms = (ecn, source);
                self.peers.add_sealed(addr, frame_bytes_max, terms, *keys, Epochs::STANDARD)?
            }
        };
        if let Err(error) = self.adapt_to_ecn() {
            self.remove_peer(peer);
            return Err(error.into());
        }
        self.associate();
        Ok(peer)
    }

    fn remove_peer(&mut self, peer: PeerId) {
        let is_sealed = self.peers.is_sealed(peer);
        self.plan.close_lane(peer, is_sealed);
        self.further.close_lane(peer, is_sealed);
        self.peers.remove(peer);
        if let Some(port) = self.device.as_mut().and_then(|device| device.port()) {
            port.forget(peer);
        }
        // On failure, packets claim too little, or the reading of marks continues needlessly.
        let _ = self.adapt_to_ecn();
        self.associate();
    }

    fn open_group(
        &mut self,
        address: SocketAddr,
        towards: PeerId,
        hops: u32,
    ) -> Result<PeerId, LinkError> {
        multicast::usable(address, self.local.is_ipv6()).map_err(LinkError::Unsupported)?;
        self.refuse_group_of_sealed(towards)?;
        let interface = multicast::interface_to(self.local.ip(), self.addr_of(towards)?)?;
        multicast::send_by(&self.socket, interface, hops)?;
        self.association.dissolve(self.socket.as_fd())?;
        self.plan.settle();
        let peer = self.peers.add(address, self.max_frame_bytes(towards), (false, None))?;
        self.adapt_to_ecn()?;
        Ok(peer)
    }

    fn join_group(&mut self, address: SocketAddr, from: PeerId) -> Result<(), LinkError> {
        multicast::usable(address, self.local.is_ipv6()).map_err(LinkError::Unsupported)?;
        self.refuse_group_of_sealed(from)?;
        let source = self.addr_of(from)?;
        let interface = multicast::interface_to(self.local.ip(), source)?;
        let gro = self.capabilities.gro;
        self.listeners.join(address, source.ip(), interface, &self.config, gro)?;
        Ok(())
    }

    fn leave_group(&mut self, address: SocketAddr, from: PeerId) {
        let Ok(source) = self.addr_of(from) else { return };
        if let Ok(interface) = multicast::interface_to(self.local.ip(), source) {
            self.listeners.leave(address, source.ip(), interface);
        }
    }

    fn source_of(&self, peer: PeerId) -> PeerId {
        self.peers.source_of(peer)
    }

    #[inline]
    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.peers.get(peer).map_or(0, |peer| peer.max_frame_bytes)
    }

    #[inline]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: by the function's contract. The fast path is closed during a backlog.
        unsafe { self.plan.try_extend(peer, head, body) || self.push_slowly(peer, head, body) }
    }

    fn take_notice(&mut self) -> Option<String> {
        self.device.as_mut()?.take_notice()
    }

    fn take_ended(&mut self) -> Option<PeerId> {
        self.peers.take_ended()
    }

    fn receive_queue(&self) -> Option<ReceiveQueue> {
        let by_socket = (self.capabilities.recv_buffer_bytes / config::CHARGE_BYTES) as u64;
        // The device catches most packets, or none.
        Some(match &self.device {
            Some(device) => device.receive_queue(by_socket),
            None => ReceiveQueue::Buffer(by_socket),
        })
    }

    fn further_ports(&self) -> &[u16] {
        self.further.ports()
    }

    fn accept_ports(&mut self, peer: PeerId, ports: &[u16]) -> Result<PeerId, LinkError> {
        if ports.len() > FURTHER_PORTS_MAX {
            let count = ports.len();
            return Err(LinkError::Unsupported(format!(
                "{count} further source ports are too many"
            )));
        }
        if !ports.is_empty() {
            self.association.dissolve(self.socket.as_fd())?;
        }
        self.peers.accept_ports(peer, ports)
    }

    #[inline]
    unsafe fn push_from(&mut self, source: u8, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let plan = match source.checked_sub(1) {
            None => &mut self.plan,
            Some(index) => self.further.plan_mut(index.into()),
        };
        // SAFETY: by the function's contract. The fast path is closed during a backlog.
        unsafe {
            plan.try_extend(peer, head, body) || self.push_slowly_from(source, peer, head, body)
        }
    }

    #[inline]
    fn flush(&mut self) {
        if !self.room.is_plain() {
            self.flush_slowly();
        } else if !self.plan.is_empty() {
            self.send_pushed();
        }
        self.room.end_burst();
    }

    /// By the kernel's time stamp of the datagram, which is read alone.
    fn waited_ns(&mut self, pause_ns: u64, awake_ns: u64) -> (u64, usize) {
        let device = self.device.as_mut();
        if let Some(waited_ns) = device.and_then(|device| device.waited_ns(awake_ns)) {
            return (waited_ns, RX_BURST_MAX);
        }
        if !self.receiver.has_ready() {
            self.receiver.ask_for_one();
            self.refill();
        }
        if !self.receiver.has_ready() {
            return (0, RX_BURST_MAX);
        }
        // The stamp is that of the datagram that was read last; datagrams that were read before the pause are older.
        (socket::last_waited_ns(self.socket.as_fd()).unwrap_or(0).min(pause_ns), 1)
    }

    fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, mut handler: H) -> usize {
        if !self.room.is_plain_poll() {
            self.retry();
            if self.device.is_some() {
                return self.receive_by_device(budget, &mut handler);
            }
        }
        self.receive_by_socket(budget, &mut handler)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        self.wait_as_member(timeout_ns);
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        let by_socket = u64::from(socket::dropped(self.socket.as_fd()));
        let by_device = self.device.as_ref().map_or(0, |device| device.dropped());
        TransportStats { rx_dropped_kernel: by_socket + by_device, ..self.stats }
    }
}

impl Member for Udp {
    #[inline]
    fn has_peers(&self) -> bool {
        self.peers.len() > 0
    }

    /// Returns false if received frames wait that [`Transport::rx_burst`] did not deliver yet.
    fn prepare_wait(&mut self) -> bool {
        let has_ready = self.device.as_mut().is_some_and(|device| device.prepare_sleep());
        !has_ready && !self.receiver.has_ready() && !self.listeners.has_ready()
    }

    fn watch<'a>(&'a self, watch: &mut Watch<'a>) {
        let is_full = self.device.as_ref().is_some_and(|device| device.is_full());
        watch.add(self.socket.as_fd(), self.room.is_backlog() && !is_full);
        self.further.watch(watch, !is_full);
        if let Some(device) = &self.device {
            device.watch(watch, self.room.is_backlog() || self.further.has_backlog());
        }
        if let Some(listeners) = self.listeners.waits() {
            watch.add(listeners, false);
        }
    }
}

impl AsFd for Udp {
    /// The socket, to wait for it together with further descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
