//! Kernel UDP: one socket per endpoint, IPv4 or IPv6, without privileges.
//!
//! What a system call costs is spread in two ways. Small frames for one peer share a datagram (see
//! [`bundle`]), which helps on every network. Datagrams of equal size for one peer
//! share a message by segmentation offload (GSO), and joined ones are received at once (GRO), where
//! the kernel can: a call then costs about the same for 1 or for 64 of them. All messages of a burst
//! go in one `sendmmsg`.
//!
//! | module | concern |
//! | --- | --- |
//! | `config` | configuration, capabilities, errors |
//! | `socket` | opening the socket; the MTU of a path |
//! | `addr`, `peers` | addresses as the kernel sees them; the peer table |
//! | `plan` | frames into datagrams into messages, without a system call |
//! | `send`, `receive` | the system calls |
//!
//! Nothing is allocated after the start but when peers are added.
//!
//! Designs that were left: `io_uring` and zero-copy sends, which cost more than they gain for
//! datagrams of this size; a connected socket per peer, which would need a poll of each.

mod addr;
mod config;
mod peers;
mod plan;
mod receive;
mod send;
mod socket;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use crate::transport::{
    LinkError, MIN_FRAME_BYTES, PeerId, TX_BURST_MAX, Transport, TransportStats, TxFrame,
};
use crate::wake::Waker;
use crate::{bundle, clock};

pub use config::{
    MTU_BYTES_MIN, MTU_CAP_BYTES, Mtu, UdpCapabilities, UdpConfig, UdpError, UdpLink,
};
pub use socket::path_mtu;

use peers::PeerTable;
use plan::{Plan, indices};
use receive::{Received, Receiver};
use send::{Reaction, Sender, reaction};

/// IP and UDP header of a datagram, without options.
const HEADER_BYTES_V4: usize = 20 + 8;
const HEADER_BYTES_V6: usize = 40 + 8;

/// Largest IP packet that a 16-bit length can state. Bounds a datagram on devices such as loopback
/// that claim more, and what one segmentation offload may carry.
const IP_PACKET_BYTES_MAX: usize = 65_535;

/// The UDP transport of one endpoint.
///
/// Frames must not begin with [`bundle::BUNDLE_MARK`]. Several links to one address share a
/// [`PeerId`], which stays until each of them is removed.
pub struct Udp {
    socket: UdpSocket,
    config: UdpConfig,
    local: SocketAddr,
    capabilities: UdpCapabilities,
    waker: Waker,
    peers: PeerTable,
    plan: Plan,
    sender: Sender,
    receiver: Receiver,
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
        Ok(Self {
            local: socket.local_addr()?,
            receiver: Receiver::new(capabilities.gro)?,
            socket,
            config,
            capabilities,
            waker,
            peers: PeerTable::new(),
            plan: Plan::new(),
            sender: Sender::new(),
            stats: TransportStats::default(),
        })
    }

    /// The address that peers send to, with the port that the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What the kernel granted of the configuration, as of now.
    pub fn capabilities(&self) -> UdpCapabilities {
        self.capabilities
    }

    /// How many peers there are.
    pub fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// The largest frame over a path of this MTU.
    fn frame_bytes(&self, mtu_bytes: usize) -> usize {
        mtu_bytes.min(IP_PACKET_BYTES_MAX) - self.header_bytes()
    }

    fn header_bytes(&self) -> usize {
        if self.local.is_ipv6() { HEADER_BYTES_V6 } else { HEADER_BYTES_V4 }
    }

    /// The largest frame that goes to a peer, and that it may send.
    fn agree_on_frame_bytes(&self, link: &UdpLink) -> Result<usize, LinkError> {
        let path = path_mtu(self.local.ip(), link.addr)?;
        let mtu = match self.config.mtu {
            Mtu::Auto { cap_bytes } => cap_bytes.min(path),
            Mtu::Fixed(configured) if configured > path => {
                let peer = link.addr.to_string();
                return Err(LinkError::MtuExceedsPath { configured, path, peer });
            }
            Mtu::Fixed(configured) => configured,
        };
        if mtu < MTU_BYTES_MIN {
            let least = MTU_BYTES_MIN;
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
        Ok(self.frame_bytes(mtu).min(announced))
    }

    /// Plans all frames that can be sent, and counts the others.
    fn plan_by_peer(&mut self, frames: &[TxFrame<'_>]) {
        let message_bytes_max =
            if self.capabilities.gso { self.frame_bytes(IP_PACKET_BYTES_MAX) } else { 0 };
        self.plan.clear();
        let mut left = set_of_first(frames.len());
        while left != 0 {
            let peer = frames[left.trailing_zeros() as usize].peer;
            let set = subset(left, |index| frames[index].peer == peer);
            left &= !set;
            let Some(known) = self.peers.get(peer) else {
                self.stats.tx_dropped_no_peer += u64::from(set.count_ones());
                continue;
            };
            let frame_bytes_max = known.max_frame_bytes;
            let fits = |index: usize| (1..=frame_bytes_max).contains(&frames[index].len());
            let fitting = subset(set, fits);
            self.stats.tx_dropped_oversize += u64::from((set & !fitting).count_ones());
            self.plan.add(peer, frames, fitting, frame_bytes_max, message_bytes_max);
        }
    }

    /// Sends what is planned and returns the frames for which there was no room.
    fn send_plan(&mut self, frames: &[TxFrame<'_>]) -> u64 {
        let (mut next, mut tries) = (0, 0);
        while next < self.plan.messages().len() {
            self.stats.tx_syscalls += 1;
            let socket = self.socket.as_fd();
            match self.sender.send(socket, &self.plan, next, frames, &self.peers) {
                Ok(count) => {
                    self.count_sent(next, count, frames);
                    (next, tries) = (next + count, 0);
                    continue;
                }
                Err(error) => match reaction(error, self.is_grouped(next), tries) {
                    Reaction::Retry => tries += 1,
                    Reaction::Blocked => return self.block(next),
                    Reaction::Ungroup => self.disable_gso(next),
                    Reaction::Drop => {
                        self.drop_message(next);
                        (next, tries) = (next + 1, 0);
                    }
                },
            }
        }
        0
    }

    fn is_grouped(&self, message: usize) -> bool {
        self.plan.messages()[message].datagram_count > 1
    }

    fn count_sent(&mut self, first: usize, count: usize, frames: &[TxFrame<'_>]) {
        for message in &self.plan.messages()[first..first + count] {
            let set = self.plan.frames_of(message);
            self.stats.tx_datagrams += message.datagram_count as u64;
            self.stats.tx_frames += u64::from(set.count_ones());
            self.stats.tx_bytes += indices(set).map(|i| frames[i].len() as u64).sum::<u64>();
        }
    }

    /// The frames of all messages from `first` on stay with the caller.
    fn block(&mut self, first: usize) -> u64 {
        let messages = &self.plan.messages()[first..];
        let blocked = messages.iter().fold(0, |set, message| set | self.plan.frames_of(message));
        self.stats.tx_blocked += u64::from(blocked.count_ones());
        blocked
    }

    /// Devices and routes change while a socket is open, so that the kernel may refuse at any time
    /// what it took before. There is no way back: it would cost an error each time to ask again.
    #[cold]
    fn disable_gso(&mut self, first: usize) {
        self.capabilities.gso = false;
        self.stats.gso_disabled += 1;
        self.plan.ungroup(first);
    }

    fn drop_message(&mut self, message: usize) {
        let set = self.plan.frames_of(&self.plan.messages()[message]);
        self.stats.tx_dropped_error += u64::from(set.count_ones());
    }

    /// Delivers the frames of the next datagram in hand, and returns how many there were.
    #[inline]
    fn deliver_next<F: FnMut(PeerId, &[u8])>(&mut self, on_frame: &mut F) -> usize {
        let (from, bytes) = match self.receiver.next_datagram() {
            Some(Received::Datagram { from, bytes }) => (from, bytes),
            Some(Received::Truncated) => {
                self.stats.rx_dropped_truncated += 1;
                return 0;
            }
            None => return 0,
        };
        let Some(peer) = self.peers.find(from) else {
            self.stats.rx_dropped_unknown_peer += 1;
            return 0;
        };
        let Some(frames) = bundle::frames(bytes) else {
            self.stats.rx_dropped_malformed += 1;
            return 0;
        };
        let mut count = 0;
        for frame in frames {
            count += 1;
            self.stats.rx_bytes += frame.len() as u64;
            on_frame(peer, frame);
        }
        self.stats.rx_datagrams += 1;
        self.stats.rx_frames += count as u64;
        count
    }

    /// Whether frames may be in hand that [`Transport::rx_burst`] did not deliver yet.
    pub(crate) fn has_ready(&self) -> bool {
        self.receiver.has_ready()
    }
}

/// The first `count` frames of a burst.
fn set_of_first(count: usize) -> u64 {
    if count == 0 { 0 } else { u64::MAX >> (64 - count) }
}

/// Those of `set` for which `predicate` holds.
fn subset(set: u64, predicate: impl Fn(usize) -> bool) -> u64 {
    indices(set).filter(|&index| predicate(index)).fold(0, |found, index| found | 1 << index)
}

impl Transport for Udp {
    type Link = UdpLink;

    #[inline]
    fn now(&self) -> u64 {
        clock::now_ns()
    }

    fn add_peer(&mut self, link: UdpLink) -> Result<PeerId, LinkError> {
        let addr = addr::usable(link.addr, self.local.is_ipv6()).map_err(LinkError::Unsupported)?;
        let frame_bytes_max = self.agree_on_frame_bytes(&UdpLink { addr, ..link })?;
        self.peers.add(addr, frame_bytes_max)
    }

    fn remove_peer(&mut self, peer: PeerId) {
        self.peers.remove(peer);
    }

    #[inline]
    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.peers.get(peer).map_or(0, |peer| peer.max_frame_bytes)
    }

    fn tx_burst(&mut self, frames: &[TxFrame<'_>]) -> u64 {
        assert!(frames.len() <= TX_BURST_MAX, "a burst of {} frames", frames.len());
        self.plan_by_peer(frames);
        self.send_plan(frames)
    }

    fn rx_burst<F: FnMut(PeerId, &[u8])>(&mut self, budget: usize, mut on_frame: F) -> usize {
        let (mut delivered, mut work, mut may_hold_more) = (0, 0, true);
        // Dropped datagrams count as work too, so that a flood of them cannot hold us here.
        while work < budget {
            if !self.receiver.has_ready() {
                if !may_hold_more {
                    break;
                }
                let (syscalls, more) = self.receiver.refill(self.socket.as_fd());
                self.stats.rx_syscalls += syscalls;
                may_hold_more = more;
                continue;
            }
            let count = self.deliver_next(&mut on_frame);
            delivered += count;
            work += count.max(1);
        }
        delivered
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        if !self.has_ready() {
            self.waker.sleep(Some(self.socket.as_fd()), timeout_ns);
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}

impl AsFd for Udp {
    /// The socket, to wait for it together with other descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
