//! Datagrams through a network device, beside the kernel's socket: see [`crate::device`].
//!
//! A peer without a way over the device gets its datagrams from the kernel's socket, and datagrams that the device does not catch arrive there.
//! A device that is lost is opened again when it is back; until then all datagrams go by the kernel's socket.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

use rustix::net::netdevice::name_to_index;

use super::addr::{AddrKey, canonical};
use super::config::{Device, UdpError, XdpDevice};
use super::peers::PeerTable;
use super::plan::{Loose, Message, Plan};
use super::receive::{Train, Trains};
use crate::device::Nic;
use crate::device::dpdk::{self, Dpdk};
use crate::device::either::{DevicePort, EitherNic, EitherWays};
use crate::device::ether::ways::{Link, Ways};
use crate::device::interface::interfaces_with;
use crate::device::port::{Datagrams, Destination, FindWays, Port};
use crate::device::xdp::{DEFAULT_HELPER, PACKET_BYTES_MAX, Xdp, XdpConfig, XdpError};
use crate::shm::UNSTAMPED_PAUSE_NS;
use crate::transport::{PeerId, ReceiveQueue, TransportStats};
use crate::wake::{Waker, Watch};

/// Time between two looks at the device's state.
const LOOK_NS: u64 = 10_000_000;

/// Time between two attempts to open a device.
const RETRY_NS: u64 = 1_000_000_000;

/// Packets that a device may hold for reception before it is open.
const FRAMES_BEFORE: usize = 512;

/// The kernel's socket is asked after frames or polls of the device of this weight: asking costs a system call, some 200 ns, a poll of an empty
/// device 10. A round trip by DPDK takes few µs and many polls, so that its empty ones weigh less.
const WEIGHT_PER_ASK: usize = 256;
const EMPTY_POLL_WEIGHT: usize = 8;
const EMPTY_POLL_WEIGHT_DPDK: usize = 1;

type Opened = Result<DevicePort, String>;

/// The device of an endpoint.
pub(super) struct DeviceExit {
    setting: Device,
    local: SocketAddr,
    /// Wakes the endpoint when an attempt to open the device has ended: packets may wait there, and the endpoint may sleep without watching the device.
    waker: Waker,
    state: State,
    /// Frames and polls, weighted, since the kernel's socket was asked.
    weight: usize,
    next_look_ns: u64,
    /// Packets that former devices have dropped.
    dropped_before: u64,
    notice: Option<String>,
}

#[expect(clippy::large_enum_variant, reason = "the exit is in a box, and mostly on")]
enum State {
    On(DevicePort),
    /// Lost, or not yet opened, and why.
    Off {
        why: String,
        /// A thread opens the device: the kernel, or a helper, may take long.
        opening: Option<Receiver<Opened>>,
    },
}

/// The use of a device by an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// Datagrams go by the device on this interface.
    On(String),
    /// Datagrams go by the kernel's socket, for this reason; a device that comes back is used again.
    Off(String),
}

impl DeviceExit {
    /// Opens a device for the port of the kernel's `socket`.
    ///
    /// # Errors
    /// There is no device to use, and the setting demands one.
    pub(super) fn open(
        setting: Device,
        socket: &UdpSocket,
        local: SocketAddr,
        waker: Waker,
    ) -> Result<Self, UdpError> {
        let state = match open_port(&setting, socket, local, Xdp::open) {
            Ok(port) => State::On(port),
            Err(why) if setting.is_required() => return Err(UdpError::Device(why)),
            Err(why) => State::Off { why, opening: None },
        };
        Ok(Self {
            setting,
            local,
            waker,
            state,
            weight: 0,
            next_look_ns: 0,
            dropped_before: 0,
            notice: None,
        })
    }

    /// The device's port, if the device works.
    #[inline]
    pub(super) fn port(&mut self) -> Option<&mut DevicePort> {
        match &mut self.state {
            State::On(port) => Some(port),
            State::Off { .. } => None,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        matches!(self.state, State::On(_))
    }

    pub(super) fn state(&self) -> DeviceState {
        match &self.state {
            State::On(port) => DeviceState::On(port.nic().name()),
            State::Off { why, .. } => DeviceState::Off(why.clone()),
        }
    }

    /// Returns what has happened to the device, once.
    pub(super) fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Returns true if kept frames wait for room in the device, and not in the kernel.
    pub(super) fn is_full(&self) -> bool {
        matches!(&self.state, State::On(port) if port.is_full())
    }

    /// Notes a poll of the device, which has found work of so many frames. Returns true if the kernel's socket is to be asked now.
    #[inline]
    pub(super) fn note_poll(&mut self, work: usize) -> bool {
        self.weight += match (work, &self.setting) {
            (0, Device::Dpdk(_)) => EMPTY_POLL_WEIGHT_DPDK,
            (0, _) => EMPTY_POLL_WEIGHT,
            _ => work,
        };
        let is_due = self.weight >= WEIGHT_PER_ASK || !self.is_on();
        if is_due {
            self.weight = 0;
        }
        is_due
    }

    /// Has the next poll ask the kernel's socket, too: after datagrams on a foreign queue, further ones are likely.
    pub(super) fn expect_missed(&mut self) {
        self.weight = WEIGHT_PER_ASK;
    }

    /// Returns true if a frame waits that was not delivered yet. The next poll asks the kernel's socket, too.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        self.expect_missed();
        let Some(port) = self.port() else { return false };
        port.nic().prepare_sleep();
        port.has_received()
    }

    /// Returns how long received frames may have waited, after a pause with `awake_ns` not slept: see
    /// [`Transport::waited_ns`](crate::Transport::waited_ns).
    pub(super) fn waited_ns(&mut self, awake_ns: u64) -> Option<u64> {
        let has_received = self.port().is_some_and(|port| port.has_received());
        has_received.then_some(if awake_ns >= UNSTAMPED_PAUSE_NS { awake_ns } else { 0 })
    }

    /// Watches for frames, and for room for kept ones if the device had none.
    pub(super) fn watch<'a>(&'a self, watch: &mut Watch<'a>, is_backlog: bool) {
        if let State::On(port) = &self.state {
            // The first of the sockets sends.
            let mut for_room = is_backlog && port.is_full();
            for fd in port.nic().fds() {
                watch.add(fd, std::mem::take(&mut for_room));
            }
        }
    }

    /// The packets that devices have dropped for want of memory or room.
    pub(super) fn dropped(&self) -> u64 {
        match &self.state {
            State::On(port) => self.dropped_before + port.nic().dropped(),
            State::Off { .. } => self.dropped_before,
        }
    }

    /// The receive queue, for `by_socket` packets at most.
    pub(super) fn receive_queue(&self, by_socket: u64) -> ReceiveQueue {
        let frames = match &self.state {
            State::On(port) => port.nic().receive_frames(),
            State::Off { .. } => match &self.setting {
                Device::Xdp(setting) => setting.config.chunks as usize / 2,
                _ => FRAMES_BEFORE,
            },
        };
        let packets = by_socket.min(frames as u64);
        match &self.setting {
            Device::Dpdk(_) => ReceiveQueue::Shared(dpdk::ring(frames as u64), packets),
            _ => ReceiveQueue::Ring(packets),
        }
    }

    /// The largest packets that the device carries, or may carry once it works.
    pub(super) fn packet_bytes_max(&self) -> usize {
        match &self.state {
            State::On(port) => port.packet_bytes_max().min(PACKET_BYTES_MAX),
            State::Off { .. } => PACKET_BYTES_MAX,
        }
    }

    /// Follows the changes of ways, gives a lost device up, and opens it again when it is back. Most calls do nothing.
    pub(super) fn look(&mut self, now_ns: u64, socket: &UdpSocket, stats: &mut TransportStats) {
        let is_opening = matches!(&self.state, State::Off { opening: Some(_), .. });
        if now_ns < self.next_look_ns && !is_opening {
            return;
        }
        self.next_look_ns = now_ns + LOOK_NS;
        match &mut self.state {
            State::On(port) => {
                let is_gone = port.follow_changes().link == Link::Gone;
                let fault = port.nic().fault().or(is_gone.then_some("the interface was removed"));
                let Some(why) = fault else { return };
                stats.device_losses += 1;
                self.dropped_before = self.dropped();
                self.notice = Some(format!("datagrams go by the kernel: {why}"));
                self.state = State::Off { why: why.to_owned(), opening: None };
            }
            State::Off { opening: None, .. } => self.begin_to_open(socket),
            State::Off { why, opening: Some(opening) } => match opening.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(Ok(port)) => {
                    self.notice =
                        Some(format!("datagrams go by the device on {}", port.nic().name()));
                    if let Device::Dpdk(_) = &self.setting {
                        dpdk::ring(port.nic().receive_frames() as u64);
                    }
                    self.state = State::On(port);
                }
                answer => {
                    if let Ok(Err(now)) = answer {
                        *why = now;
                    }
                    self.state = State::Off { why: std::mem::take(why), opening: None };
                    self.next_look_ns = now_ns + RETRY_NS;
                }
            },
        }
    }

    /// Opens the device on a thread of its own.
    fn begin_to_open(&mut self, socket: &UdpSocket) {
        let (setting, local, waker) = (self.setting.clone(), self.local, self.waker.clone());
        let (result, opened) = mpsc::channel();
        let State::Off { opening, .. } = &mut self.state else { return };
        let Ok(socket) = socket.try_clone() else { return };
        let open = move || {
            // The endpoint may have ended.
            let _ = result.send(open_port(&setting, &socket, local, Xdp::open_at_once));
            waker.wake();
        };
        if thread::Builder::new().name("petrel-device".to_owned()).spawn(open).is_ok() {
            *opening = Some(opened);
        }
    }
}

/// Opens the device of a setting for the port of the kernel's `socket`. Returns the reason if that cannot be done.
fn open_port(setting: &Device, socket: &UdpSocket, local: SocketAddr, open: OpenXdp) -> Opened {
    match setting {
        Device::Kernel | Device::Verbs(_) => unreachable!("{setting} is no exit of UDP"),
        Device::Xdp(setting) => open_xdp(setting, socket, local, open),
        Device::Dpdk(setting) => {
            let (nic, ways) = Dpdk::open(&setting.arguments, local)?;
            let index = nic.interface();
            Ok(Port::new(EitherNic::Dpdk(nic), EitherWays::Dpdk(ways), local, index))
        }
    }
}

/// [`Xdp::open`], or its way without patience.
type OpenXdp = fn(&XdpConfig, &str, BorrowedFd<'_>) -> Result<Xdp, XdpError>;

fn open_xdp(setting: &XdpDevice, socket: &UdpSocket, local: SocketAddr, open: OpenXdp) -> Opened {
    let interface = match &setting.interface {
        Some(name) => name.clone(),
        None => interface_of(local.ip())?,
    };
    let cannot = |error: io::Error| format!("{interface}: {error}");
    let index = name_to_index(socket, &interface).map_err(|error| cannot(error.into()))?;
    let ways = Ways::open(index).map_err(cannot)?;
    let mut config = setting.config.clone();
    config.helper.get_or_insert_with(|| DEFAULT_HELPER.into());
    let nic = open(&config, &interface, socket.as_fd()).map_err(|why| why.to_string())?;
    Ok(Port::new(EitherNic::Xdp(nic), EitherWays::Kernel(ways), local, index))
}

/// Returns the name of the interface with an address: of the only one with any, if the port has all addresses of the host.
fn interface_of(ip: IpAddr) -> Result<String, String> {
    let found = interfaces_with(ip).map_err(|error| format!("cannot list interfaces: {error}"))?;
    match &found[..] {
        [one] => Ok(one.clone()),
        [] => Err(format!("no interface that is up has the address {ip}")),
        several => Err(format!("several interfaces have addresses: name one of {several:?}")),
    }
}

/// The result of [`Leaving::send_from`].
pub(super) enum Sent {
    /// The device has taken this number of messages, at least one.
    Messages(usize),
    /// The device has no room now.
    NoRoom,
    /// The kernel is to send this number of messages, at least one.
    ByKernel(usize),
}

/// A device, and the burst that it sends.
pub(super) struct Leaving<'a, N, W> {
    pub(super) port: &'a mut Port<N, W>,
    pub(super) plan: &'a mut Plan,
    pub(super) peers: &'a mut PeerTable,
    pub(super) stats: &'a mut TransportStats,
    pub(super) source_port: u16,
}

impl<N: Nic, W: FindWays> Leaving<'_, N, W> {
    /// Sends a plan of one datagram of small frames. Returns false if the general path must send the plan.
    pub(super) fn send_loose(self, is_to_seal: bool) -> bool {
        let Self { port, plan, peers, stats, source_port } = self;
        let loose = if is_to_seal { plan.seal_loose(peers) } else { plan.loose() };
        let Some(Loose { peer, name, piece, load }) = loose else { return false };
        let bytes = piece.iov_len;
        if !port.reaches(peer, bytes, || destination(peers, peer, name.addr())) {
            return false;
        }
        // SAFETY: the piece lies in the plan, which is borrowed.
        let pieces = std::iter::once(unsafe { bytes_of(piece) });
        let is_ecn = peers.is_ecn(peer);
        let datagrams = Datagrams { pieces, bytes, segment_bytes: bytes, source_port, is_ecn };
        if !port.send(peer, datagrams) {
            return false;
        }
        stats.tx_syscalls += port.flush();
        stats.tx_device_datagrams += 1;
        stats.tx_datagrams += 1;
        stats.tx_frames += load.frames;
        stats.tx_bytes += load.frame_bytes;
        plan.clear_loose();
        true
    }

    /// Sends messages from `first` on, up to the first one for the other exit. The caller has counted one system call.
    ///
    /// # Safety
    /// The large frames of these messages are still in place.
    pub(super) unsafe fn send_from(self, first: usize) -> Sent {
        let Self { port, plan, peers, stats, source_port } = self;
        let messages = &plan.messages()[first..];
        let mut reaches = |message: &Message| {
            let peer = plan.peer_of(message);
            let to = || destination(peers, peer, plan.name_of(message).addr());
            port.reaches(peer, plan.segment_bytes(message), to)
        };
        let by_kernel = messages.iter().take_while(|message| !reaches(message)).count();
        if by_kernel > 0 {
            port.set_full(false);
            return Sent::ByKernel(by_kernel);
        }
        let by_device = messages.iter().take_while(|message| reaches(message)).count();
        let mut sent = 0;
        for message in &messages[..by_device] {
            let peer = plan.peer_of(message);
            let datagrams = Datagrams {
                // SAFETY: by this function's contract.
                pieces: plan.pieces_of(message).map(|piece| unsafe { bytes_of(piece) }),
                bytes: plan.bytes(message),
                segment_bytes: plan.segment_bytes(message),
                source_port,
                is_ecn: peers.is_ecn(peer),
            };
            if !port.send(peer, datagrams) {
                break;
            }
            stats.tx_device_datagrams += message.datagram_count as u64;
            sent += 1;
        }
        // Without room too: the device may wait for this call.
        stats.tx_syscalls = stats.tx_syscalls + port.flush() - 1;
        port.set_full(sent == 0);
        if sent == 0 { Sent::NoRoom } else { Sent::Messages(sent) }
    }
}

/// The address of a peer; `None` if the peer was removed.
fn destination(peers: &PeerTable, peer: PeerId, addr: SocketAddr) -> Option<Destination> {
    let source = peers.get(peer)?.source_address();
    Some(Destination { addr: canonical(addr), source })
}

/// # Safety
/// The piece is live memory that is not written while the slice lives.
unsafe fn bytes_of<'a>(piece: libc::iovec) -> &'a [u8] {
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
}

impl<N: Nic, W: FindWays> Trains for Port<N, W> {
    #[inline]
    fn train(&mut self) -> Option<Train<'_>> {
        let (from, bytes) = self.current();
        let segment_bytes = bytes.len().max(1);
        Some(Train { from: AddrKey::from(from), bytes, segment_bytes })
    }

    #[inline]
    fn is_marked(&self) -> bool {
        Port::is_marked(self)
    }

    fn first_mut(&mut self) -> &mut [u8] {
        self.current().1
    }

    /// Every datagram comes alone.
    fn is_within_train(&self) -> bool {
        false
    }

    /// The datagram is delivered as a whole.
    #[inline]
    fn advance(&mut self, _: usize) {
        self.skip();
    }

    #[inline]
    fn skip(&mut self) {
        Port::skip(self);
    }
}
