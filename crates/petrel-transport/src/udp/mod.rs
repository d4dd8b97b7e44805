//! Kernel UDP: one socket per endpoint, IPv4 or IPv6, without privileges.
//!
//! What a system call costs is spread in two ways. Small frames for one peer share a datagram (see
//! [`bundle`]), which helps on every network. Datagrams of equal size for one peer
//! share a message by segmentation offload (GSO), and joined ones are received at once (GRO), where
//! the kernel can: a call then costs about the same for 1 or for 64 of them. All messages of a burst
//! go in one `sendmmsg`. A burst for which the kernel has no room stays here as a backlog.
//!
//! | module | concern |
//! | --- | --- |
//! | `config` | configuration, capabilities, errors |
//! | `socket` | opening the socket; the MTU of a path |
//! | `association` | connecting the socket to an only peer |
//! | `addr`, `peers` | addresses as the kernel sees them; the peer table |
//! | `plan` | frames into datagrams into messages, without a system call |
//! | `send`, `receive` | the system calls |
//!
//! Nothing is allocated after the start but when peers are added, and for the first backlogs.
//!
//! Designs that were left: `io_uring` and zero-copy sends, which cost more than they gain for
//! datagrams of this size; a connected socket per peer, which would need a poll of each. While there is
//! only one peer, the one socket is connected to it.

mod addr;
mod association;
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

use rustix::io::Errno;

use crate::bundle::{self, BUNDLE_MARK};
use crate::clock;
use crate::transport::{
    FrameHandler, LinkError, MIN_FRAME_BYTES, PeerId, ReturnPath, Transport, TransportStats,
};
use crate::wake::Waker;

pub use config::{
    MTU_BYTES_MIN, MTU_CAP_BYTES, Mtu, UdpCapabilities, UdpConfig, UdpError, UdpLink,
};
pub use socket::path_mtu;

use association::Association;
use peers::PeerTable;
use plan::{Loose, Plan, SMALL_FRAME_BYTES_MAX};
use receive::Receiver;
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
    /// Made while there is one peer, and before it only when the plan is empty: what is planned for
    /// others must go to them.
    association: Association,
    plan: Plan,
    sender: Sender,
    receiver: Receiver,
    /// The plan holds frames for which the kernel had no room.
    is_backlog: bool,
    /// The current burst has found that there is no room, and does not ask again.
    has_asked_for_room: bool,
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
        let local = socket.local_addr()?;
        let message_bytes_max = IP_PACKET_BYTES_MAX - header_bytes(local);
        Ok(Self {
            local,
            association: Association::new(local),
            receiver: Receiver::new(capabilities.gro)?,
            socket,
            config,
            capabilities,
            waker,
            peers: PeerTable::new(),
            plan: Plan::new(if capabilities.gso { message_bytes_max } else { 0 })?,
            sender: Sender::new(),
            is_backlog: false,
            has_asked_for_room: false,
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
        mtu_bytes.min(IP_PACKET_BYTES_MAX) - header_bytes(self.local)
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

    /// Connects the socket to the only peer, if there is one. Nothing may be planned for others.
    fn associate(&mut self) {
        if let Some(peer) = self.peers.only()
            && self.plan.is_empty()
            && !self.association.is_made()
        {
            self.association.make(self.socket.as_fd(), peer);
        }
    }

    /// Sends what was pushed, or tries a backlog again.
    #[cold]
    #[inline(never)]
    fn send_pushed(&mut self) {
        if !self.send_loose() {
            self.send_planned();
        }
    }

    /// Sends the plan, if that is one datagram of small frames. False: it is more, or the kernel
    /// refused it, for which there is the general way.
    #[inline]
    fn send_loose(&mut self) -> bool {
        let Self { socket, plan, association, stats, .. } = self;
        let Some(Loose { name, piece, load }) = plan.loose() else { return false };
        stats.tx_syscalls += 1;
        // SAFETY: the piece lies in the plan, which is borrowed.
        if !unsafe { send::send_datagram(socket.as_fd(), name, association.is_made(), &piece) } {
            return false;
        }
        stats.tx_datagrams += 1;
        stats.tx_frames += load.frames;
        stats.tx_bytes += load.frame_bytes;
        plan.clear_loose();
        true
    }

    /// Sends messages.
    fn send_planned(&mut self) {
        if !self.plan.is_sealed() {
            self.plan.seal();
        }
        match self.send_messages() {
            None => {
                self.plan.clear();
                self.is_backlog = false;
            }
            Some(next) => self.keep(next),
        }
    }

    /// Sends the messages, up to the one that is returned, for which there was no room.
    fn send_messages(&mut self) -> Option<usize> {
        let (mut next, mut tries) = (0, 0);
        while next < self.plan.messages().len() {
            self.stats.tx_syscalls += 1;
            // SAFETY: the large frames of this burst are there until `flush` returns, which is the
            // contract of `push`; a backlog's were copied.
            match unsafe { self.send_from(next) } {
                Ok(count) => {
                    self.count_sent(next, count);
                    (next, tries) = (next + count, 0);
                }
                Err(error) => match reaction(error, self.is_grouped(next), tries) {
                    Reaction::Retry => tries += 1,
                    Reaction::Blocked => return Some(next),
                    Reaction::Ungroup => self.disable_gso(next),
                    Reaction::Drop => {
                        self.drop_message(next);
                        (next, tries) = (next + 1, 0);
                    }
                },
            }
        }
        None
    }

    /// # Safety
    /// That of [`Sender::send`].
    unsafe fn send_from(&mut self, first: usize) -> Result<usize, Errno> {
        let Self { socket, plan, association, sender, .. } = self;
        // SAFETY: by this function's contract.
        unsafe { sender.send(socket.as_fd(), plan, first, association.is_made()) }
    }

    fn is_grouped(&self, message: usize) -> bool {
        self.plan.messages()[message].datagram_count > 1
    }

    fn count_sent(&mut self, first: usize, count: usize) {
        for message in &self.plan.messages()[first..first + count] {
            let load = self.plan.load_of(message);
            self.stats.tx_datagrams += message.datagram_count as u64;
            self.stats.tx_frames += load.frames;
            self.stats.tx_bytes += load.frame_bytes;
        }
    }

    /// The frames of all messages from `first` on wait for room. This burst asks no more.
    #[cold]
    fn keep(&mut self, first: usize) {
        self.plan.keep(first);
        self.has_asked_for_room = true;
        if !self.is_backlog {
            self.is_backlog = true;
            let messages = self.plan.messages().iter();
            self.stats.tx_kept += messages.map(|m| self.plan.load_of(m).frames).sum::<u64>();
        }
    }

    /// Whether frames are kept for which the kernel had no room, after another try if this burst
    /// has made none.
    #[cold]
    #[inline(never)]
    fn is_backlog_left(&mut self) -> bool {
        if !self.has_asked_for_room {
            self.send_pushed();
        }
        self.is_backlog
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
        let load = self.plan.load_of(&self.plan.messages()[message]);
        self.stats.tx_dropped_error += load.frames;
    }

    /// Adds a frame to the burst that the short way did not take.
    ///
    /// # Safety
    /// That of [`Transport::push`].
    #[inline(never)]
    unsafe fn push_slowly(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        if !self.plan.has_room() && !self.is_backlog {
            self.send_pushed();
        }
        if self.is_backlog && self.is_backlog_left() {
            self.stats.tx_blocked += 1;
            return false;
        }
        // SAFETY: by this function's contract.
        unsafe { self.plan_frame(peer, head, body) };
        true
    }

    /// Adds a frame to the burst. There is room for it.
    ///
    /// # Safety
    /// That of [`Transport::push`].
    #[inline]
    unsafe fn plan_frame(&mut self, peer: PeerId, head: &[u8], body: &[u8]) {
        let bytes = head.len() + body.len();
        let Some(target) = self.peers.target(peer) else {
            self.stats.tx_dropped_no_peer += 1;
            return;
        };
        if !(1..=target.datagram_bytes_max).contains(&bytes) {
            self.stats.tx_dropped_oversize += 1;
        } else if bytes <= SMALL_FRAME_BYTES_MAX {
            self.plan.add_small(target, head, body);
        } else {
            // SAFETY: by this function's contract, the frame stays until `flush` has returned,
            // which clears the plan or keeps a copy.
            unsafe { self.plan.add_large(target, head, body) };
        }
    }

    /// What [`Transport::wait`] has to wait for besides datagrams: room in the kernel.
    pub(crate) fn has_backlog(&self) -> bool {
        self.is_backlog
    }

    /// Asks the socket for datagrams, and returns whether it is known to hold more.
    #[inline]
    fn refill(&mut self) -> bool {
        let (syscalls, more) = self.receiver.refill(self.socket.as_fd());
        self.stats.rx_syscalls += syscalls;
        self.stats.rx_dropped_kernel += self.receiver.take_dropped();
        more
    }

    /// Delivers the frames of the datagrams in hand, up to about `budget`. Returns how many there
    /// were, and how much work it was: dropped datagrams count too, so that a flood of them cannot
    /// hold us.
    #[inline]
    fn deliver<H: FrameHandler>(&mut self, budget: usize, handler: &mut H) -> (usize, usize) {
        let Some(train) = self.receiver.train() else {
            self.stats.rx_dropped_truncated += 1;
            self.receiver.skip();
            return (0, 1);
        };
        let Some(peer) = self.peers.find(train.from) else {
            let count = train.datagram_count();
            self.stats.rx_dropped_unknown_peer += count as u64;
            self.receiver.skip();
            return (0, count);
        };
        let (mut delivered, mut work, mut rest) = (0, 0, train.bytes);
        loop {
            let (datagram, behind) = rest.split_at(train.segment_bytes.min(rest.len()));
            let count = if datagram.first().is_some_and(|&first| first != BUNDLE_MARK) {
                deliver_lone(&mut self.stats, peer, datagram, handler);
                1
            } else {
                deliver_bundle(&mut self.stats, peer, datagram, handler)
            };
            (delivered, work, rest) = (delivered + count, work + count.max(1), behind);
            if rest.is_empty() || work >= budget {
                break;
            }
        }
        let handed_out = train.bytes.len() - rest.len();
        self.receiver.advance(handed_out);
        (delivered, work)
    }

    /// Whether frames may be in hand that [`Transport::rx_burst`] did not deliver yet.
    pub(crate) fn has_ready(&self) -> bool {
        self.receiver.has_ready()
    }
}

/// Delivers a datagram that is one frame.
#[inline(always)]
fn deliver_lone<H: FrameHandler>(
    stats: &mut TransportStats,
    peer: PeerId,
    frame: &[u8],
    handler: &mut H,
) {
    if handler.looks_ahead() {
        handler.prepare(frame);
    }
    stats.rx_datagrams += 1;
    stats.rx_frames += 1;
    stats.rx_bytes += frame.len() as u64;
    handler.handle(peer, frame, ReturnPath::NONE);
}

/// Delivers the frames of a bundle, and returns how many there were.
#[inline]
fn deliver_bundle<H: FrameHandler>(
    stats: &mut TransportStats,
    peer: PeerId,
    datagram: &[u8],
    handler: &mut H,
) -> usize {
    let Some(frames) = bundle::frames(datagram) else {
        stats.rx_dropped_malformed += 1;
        return 0;
    };
    if handler.looks_ahead() {
        frames.clone().for_each(|frame| handler.prepare(frame));
    }
    let mut count = 0;
    for frame in frames {
        count += 1;
        handler.handle(peer, frame, ReturnPath::NONE);
    }
    stats.rx_datagrams += 1;
    stats.rx_frames += count as u64;
    stats.rx_bytes += (datagram.len() - bundle::framing_bytes(count)) as u64;
    count
}

fn header_bytes(local: SocketAddr) -> usize {
    if local.is_ipv6() { HEADER_BYTES_V6 } else { HEADER_BYTES_V4 }
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
        if !self.association.is_with(addr) {
            self.association.dissolve(self.socket.as_fd())?;
        }
        // The peer may be one that has frames in the plan, and another limit from now on.
        self.plan.settle();
        let peer = self.peers.add(addr, frame_bytes_max)?;
        self.associate();
        Ok(peer)
    }

    fn remove_peer(&mut self, peer: PeerId) {
        self.plan.close_lane(peer);
        self.peers.remove(peer);
        self.associate();
    }

    #[inline]
    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.peers.get(peer).map_or(0, |peer| peer.max_frame_bytes)
    }

    #[inline]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: by this function's contract. The short way is closed while there is a backlog.
        unsafe { self.plan.try_extend(peer, head, body) || self.push_slowly(peer, head, body) }
    }

    #[inline]
    fn flush(&mut self) {
        if !self.plan.is_empty() && !self.has_asked_for_room {
            self.send_pushed();
        }
        self.has_asked_for_room = false;
    }

    fn rx_burst_to<H: FrameHandler>(&mut self, budget: usize, mut handler: H) -> usize {
        if self.is_backlog {
            self.send_pushed();
        }
        let (mut delivered, mut work, mut may_hold_more) = (0, 0, true);
        while work < budget {
            if !self.receiver.has_ready() {
                if !may_hold_more {
                    break;
                }
                may_hold_more = self.refill();
                continue;
            }
            let (frames, effort) = self.deliver(budget - work, &mut handler);
            (delivered, work) = (delivered + frames, work + effort);
        }
        delivered
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        if !self.has_ready() {
            self.waker.sleep(Some((self.socket.as_fd(), self.has_backlog())), timeout_ns);
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
