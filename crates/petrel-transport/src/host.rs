//! Shared memory to processes of this host and UDP to all others, as one transport.
//!
//! A [`Host`] is an endpoint's default transport. The control plane chooses the medium per peer, by
//! the link it hands over. The top bit of a [`PeerId`] is set for peers over shared memory.
//!
//! A look at a socket costs a system call, and a look at a ring a few instructions. Therefore
//! `rx_burst` skips the socket while there is no UDP peer, and for up to seven calls in a row while
//! the rings have frames. If UDP and shared memory have peers, a polled medium gets at least half
//! of the budget. A flood on one medium thus does not starve the second.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use crate::clock::Clock;
use crate::shm::{Shm, ShmConfig, ShmError, ShmLink};
use crate::transport::{
    FrameHandler, LinkError, PeerId, PeerProcess, ReturnPath, SharedFrame, Transport,
    TransportStats,
};
use crate::udp::{Udp, UdpConfig, UdpError, UdpLink};
use crate::wake::Waker;

/// Marks the peers that are reached through shared memory.
const SHM_BIT: u32 = 1 << 31;

/// Calls in a row that skip the socket while the rings are busy. An empty receive costs some 200
/// ns, like a call that finds frames in a ring. The socket thus takes an eighth of the time, and a
/// datagram waits for some microseconds, less than its travel time.
const UDP_SKIPS_MAX: u32 = 7;

/// Settings of a [`Host`].
#[derive(Clone, Debug, Default)]
pub struct HostConfig {
    /// The data port.
    pub udp: UdpConfig,
    /// Sizes and limits of rings.
    pub shm: ShmConfig,
}

/// Why a [`Host`] could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The data port cannot be used.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// The settings for shared memory are impossible.
    #[error(transparent)]
    Shm(#[from] ShmError),
}

/// How a peer is reached.
#[derive(Debug)]
pub enum HostLink {
    /// Over the network.
    Udp(UdpLink),
    /// Through rings in shared memory.
    Shm(ShmLink),
}

/// UDP and shared memory as one transport.
pub struct Host {
    udp: Udp,
    shm: Shm,
    waker: Waker,
    shm_peer_count: usize,
    /// Whether the last poll of the rings found frames.
    shm_is_busy: bool,
    /// Calls since the last poll of the socket.
    udp_skips: u32,
}

impl Host {
    /// Opens the data port. Shared memory needs nothing until the first link.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn new(config: HostConfig) -> Result<Self, HostError> {
        config.shm.validate()?;
        let waker = Waker::new().map_err(UdpError::Io)?;
        Ok(Self {
            udp: Udp::bind_with_waker(config.udp, waker.clone())?,
            shm: Shm::new(&config.shm, waker.clone()),
            waker,
            shm_peer_count: 0,
            shm_is_busy: false,
            udp_skips: 0,
        })
    }

    /// The UDP part: its address and the options the kernel granted.
    pub fn udp(&self) -> &Udp {
        &self.udp
    }

    /// Returns true if the peer is reached through shared memory.
    #[inline]
    pub fn is_shm(peer: PeerId) -> bool {
        peer.0 & SHM_BIT != 0
    }

    /// Returns true if this call polls the socket.
    #[inline]
    fn take_udp_turn(&mut self) -> bool {
        if self.udp.peer_count() == 0 {
            return false;
        }
        let is_due = !self.shm_is_busy || self.udp_skips >= UDP_SKIPS_MAX;
        self.udp_skips = if is_due { 0 } else { self.udp_skips + 1 };
        is_due
    }

    /// Sleeps until a frame arrives on either medium or the waker is used. Returns true if a peer
    /// over shared memory rang.
    fn sleep(&mut self, timeout_ns: Option<u64>) -> bool {
        // Without UDP peers no call empties the socket: strangers' datagrams must not end the
        // sleep.
        let socket =
            (self.udp.peer_count() > 0).then(|| (self.udp.as_fd(), self.udp.has_backlog()));
        self.waker.sleep_with(socket, [self.udp.listeners(), self.shm.bells()], timeout_ns)
    }
}

fn by_network(peer: PeerId) -> Result<(), LinkError> {
    if Host::is_shm(peer) {
        let why = "multicast is for peers over the network, and this one shares memory";
        return Err(LinkError::Unsupported(why.to_owned()));
    }
    Ok(())
}

#[inline]
fn to_shm(peer: PeerId) -> PeerId {
    PeerId(peer.0 & !SHM_BIT)
}

#[inline]
fn from_shm(peer: PeerId) -> PeerId {
    debug_assert!(peer.0 & SHM_BIT == 0);
    PeerId(peer.0 | SHM_BIT)
}

impl Transport for Host {
    type Link = HostLink;

    #[inline]
    fn now(&self) -> u64 {
        self.udp.now()
    }

    fn clock(&self) -> Clock {
        Clock::machine()
    }

    fn add_peer(&mut self, link: HostLink) -> Result<PeerId, LinkError> {
        match link {
            HostLink::Udp(link) => self.udp.add_peer(link),
            HostLink::Shm(link) => {
                let peer = self.shm.add_peer(link)?;
                self.shm_peer_count += 1;
                Ok(from_shm(peer))
            }
        }
    }

    fn remove_peer(&mut self, peer: PeerId) {
        if !Self::is_shm(peer) {
            self.udp.remove_peer(peer);
        } else if self.max_frame_bytes(peer) > 0 {
            self.shm_peer_count -= 1;
            self.shm.remove_peer(to_shm(peer));
        }
    }

    fn open_group(
        &mut self,
        address: SocketAddr,
        towards: PeerId,
        hops: u32,
    ) -> Result<PeerId, LinkError> {
        by_network(towards)?;
        self.udp.open_group(address, towards, hops)
    }

    fn join_group(&mut self, address: SocketAddr, from: PeerId) -> Result<(), LinkError> {
        by_network(from)?;
        self.udp.join_group(address, from)
    }

    fn leave_group(&mut self, address: SocketAddr, from: PeerId) {
        if !Self::is_shm(from) {
            self.udp.leave_group(address, from);
        }
    }

    fn source_of(&self, peer: PeerId) -> PeerId {
        if Self::is_shm(peer) { peer } else { self.udp.source_of(peer) }
    }

    #[inline]
    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        if Self::is_shm(peer) {
            self.shm.max_frame_bytes(to_shm(peer))
        } else {
            self.udp.max_frame_bytes(peer)
        }
    }

    fn is_networked(&self, peer: PeerId) -> bool {
        !Self::is_shm(peer)
    }

    fn process_of(&self, peer: PeerId) -> Option<PeerProcess> {
        if Self::is_shm(peer) { self.shm.process_of(to_shm(peer)) } else { None }
    }

    #[inline]
    fn may_receive(&self) -> bool {
        self.udp.peer_count() > 0 || self.shm.may_receive()
    }

    #[inline(always)]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: the contract is the same, and `flush` flushes both.
        unsafe {
            if Self::is_shm(peer) {
                self.shm.push(to_shm(peer), head, body)
            } else {
                push_by_udp(&mut self.udp, peer, head, body)
            }
        }
    }

    #[inline]
    fn flush(&mut self) {
        // Shared memory first: its peers are microseconds nearer.
        self.shm.flush();
        self.udp.flush();
    }

    #[inline]
    fn rx_burst_to<H: FrameHandler>(&mut self, budget: usize, mut handler: H) -> usize {
        let shares = self.shm_peer_count > 0;
        let mut received = 0;
        if self.take_udp_turn() {
            let udp_budget = if shares { budget.div_ceil(2) } else { budget };
            received += self.udp.rx_burst_to(udp_budget, ByUdp(&mut handler));
        }
        if shares {
            let left = budget.saturating_sub(received);
            let count = self.shm.rx_burst_to(left, ByShm(&mut handler));
            self.shm_is_busy = count > 0;
            received += count;
        }
        received
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        // Makes the next `rx_burst` poll the socket as well.
        self.shm_is_busy = false;
        if self.udp.has_ready() {
            return;
        }
        if self.shm_peer_count == 0 {
            self.sleep(timeout_ns);
        } else if self.shm.prepare_wait() {
            let has_rung = self.sleep(timeout_ns);
            self.shm.finish_wait(has_rung);
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        self.udp.stats() + self.shm.stats()
    }
}

/// Out of line, so the path through shared memory stays short.
///
/// # Safety
/// As for [`Transport::push`].
#[inline(never)]
unsafe fn push_by_udp(udp: &mut Udp, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
    // SAFETY: the contract is the same.
    unsafe { udp.push(peer, head, body) }
}

/// Forwards frames that came through shared memory, under the host's peer ids.
struct ByShm<'a, H>(&'a mut H);

impl<H: FrameHandler> FrameHandler for ByShm<'_, H> {
    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0.handle_marked(from_shm(peer), frame);
    }

    #[inline(always)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], back: ReturnPath<'_>) {
        self.0.handle(from_shm(peer), frame, back);
    }

    #[inline]
    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, back: ReturnPath<'_>) {
        self.0.handle_shared(from_shm(peer), frame, back);
    }

    #[inline(always)]
    fn looks_ahead(&self) -> bool {
        self.0.looks_ahead()
    }

    #[inline(always)]
    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        self.0.prepare(frame, is_whole);
    }
}

/// Forwards frames that came over the network.
struct ByUdp<'a, H>(&'a mut H);

impl<H: FrameHandler> FrameHandler for ByUdp<'_, H> {
    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0.handle_marked(peer, frame);
    }

    /// Out of line, so the handler is inlined once only.
    #[inline(never)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], back: ReturnPath<'_>) {
        self.0.handle(peer, frame, back);
    }

    #[inline(always)]
    fn looks_ahead(&self) -> bool {
        self.0.looks_ahead()
    }

    #[inline(always)]
    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        self.0.prepare(frame, is_whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TxFrame;
    use crate::conformance::{self, End, Harness, Medium, Star};
    use crate::shm::{Segment, Side};
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;

    /// Logs each call as a string. The flag is the result of `looks_ahead`.
    struct Heard(bool, Vec<String>);

    impl FrameHandler for Heard {
        fn handle(&mut self, peer: PeerId, frame: &[u8], back: ReturnPath<'_>) {
            assert!(!back.is_there());
            self.1.push(format!("{} {frame:?}", peer.0));
        }

        fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
            self.1.push(format!("{} {frame:?} marked", peer.0));
        }

        fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, back: ReturnPath<'_>) {
            assert!(!back.is_there());
            self.1.push(format!("{} {:?} shared", peer.0, frame.into_private()));
        }

        fn looks_ahead(&self) -> bool {
            self.0
        }

        fn prepare(&mut self, frame: &[u8], is_whole: bool) {
            self.1.push(format!("{frame:?} ahead, {is_whole}"));
        }
    }

    /// Calls each method of a handler, as for peer 3.
    fn hand_all<H: FrameHandler>(mut by: H) {
        by.handle(PeerId(3), &[1], ReturnPath::NONE);
        by.handle_marked(PeerId(3), &[2]);
        by.handle_shared(
            PeerId(3),
            SharedFrame::new(crate::SharedBytes::from(&[3][..]), &mut vec![0]),
            ReturnPath::NONE,
        );
        by.prepare(&[4], true);
        by.prepare(&[5], false);
    }

    #[test]
    fn handlers_behind_either_transport__hear_all_and_by_the_hosts_names() {
        for looks_ahead in [false, true] {
            let mut heard = Heard(looks_ahead, Vec::new());
            assert_eq!(ByShm(&mut heard).looks_ahead(), looks_ahead);
            assert_eq!(ByUdp(&mut heard).looks_ahead(), looks_ahead);
            hand_all(ByShm(&mut heard));
            let peer = from_shm(PeerId(3)).0;
            assert_ne!(peer, 3);
            let ahead = ["[4] ahead, true".to_owned(), "[5] ahead, false".to_owned()];
            let [frame, marked] = [format!("{peer} [1]"), format!("{peer} [2] marked")];
            let shared = format!("{peer} [3] shared");
            assert_eq!(heard.1, [&[frame, marked, shared][..], &ahead].concat());
            heard.1.clear();
            hand_all(ByUdp(&mut heard));
            // Over UDP there are no shared frames: `handle_shared` falls back to `handle`.
            let frames = ["3 [1]", "3 [2] marked", "3 [3]"].map(str::to_owned);
            assert_eq!(heard.1, [&frames[..], &ahead].concat());
        }
    }

    fn host() -> Host {
        Host::new(HostConfig::default()).unwrap()
    }

    fn link_by_udp(a: &mut Host, b: &mut Host) -> (PeerId, PeerId) {
        let to = |host: &Host| {
            HostLink::Udp(UdpLink { addr: host.udp().local_addr(), max_frame: None, ecn: false })
        };
        (a.add_peer(to(b)).unwrap(), b.add_peer(to(a)).unwrap())
    }

    fn link_by_shm(a: &mut Host, b: &mut Host) -> (PeerId, PeerId) {
        let (bell_a, bell_b) = UnixStream::pair().unwrap();
        let segment = Segment::create(&ShmConfig::default()).unwrap();
        let opened = Segment::from_fd(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let link_a = ShmLink::new(segment, Side::Creator, bell_a);
        let link_b = ShmLink::new(opened, Side::Opener, bell_b);
        (a.add_peer(HostLink::Shm(link_a)).unwrap(), b.add_peer(HostLink::Shm(link_b)).unwrap())
    }

    type LinkUp = fn(&mut Host, &mut Host) -> (PeerId, PeerId);

    /// A hub and two leaves, linked by the two given functions.
    struct Linked([LinkUp; 2]);

    impl Harness for Linked {
        type T = Host;

        fn medium(&self) -> Medium {
            Medium::lossy_when_full().with_capacity(70_000)
        }

        fn star(&mut self) -> Star<Host> {
            let mut hub = host();
            let mut leaf = |link_up: LinkUp| {
                let mut transport = host();
                let (to_leaf, peer) = link_up(&mut hub, &mut transport);
                (to_leaf, End { transport, peer })
            };
            let [(to_first, first), (to_second, second)] = [leaf(self.0[0]), leaf(self.0[1])];
            Star { hub, peers: [to_first, to_second], leaves: [first, second] }
        }
    }

    fn conforms(links: [LinkUp; 2]) {
        conformance::run_all(&mut Linked(links));
        conformance::run_threaded(&mut Linked(links));
    }

    #[test]
    fn conformance__by_udp() {
        conforms([link_by_udp, link_by_udp]);
    }

    #[test]
    fn conformance__by_shm() {
        conforms([link_by_shm, link_by_shm]);
    }

    #[test]
    fn conformance__by_both() {
        conforms([link_by_udp, link_by_shm]);
        conforms([link_by_shm, link_by_udp]);
    }

    #[test]
    fn wait__is_not_ended_by_strangers_while_there_is_no_udp_peer() {
        let (mut a, mut b) = (host(), host());
        let (to_b, _) = link_by_shm(&mut a, &mut b);
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(b"\x1Ahello", b.udp().local_addr()).unwrap();
        assert_eq!(b.rx_burst(64, |_, _| panic!("a stranger was heard")), 0);
        assert_eq!(b.stats().rx_syscalls, 0);
        a.tx_burst(&[TxFrame { peer: to_b, head: b"\x1Aframe", body: b"" }]);
        b.wait(None);
        assert_eq!(b.rx_burst(64, |peer, _| assert!(Host::is_shm(peer))), 1);
    }

    /// A datagram is not forgotten while each call finds frames in a ring.
    #[test]
    fn rx_burst__looks_at_the_socket_every_eighth_time_while_rings_are_busy() {
        let (mut hub, mut near, mut far) = (host(), host(), host());
        let (_, near_peer) = link_by_shm(&mut hub, &mut near);
        let (from_far, far_peer) = link_by_udp(&mut hub, &mut far);
        let by_ring = TxFrame { peer: near_peer, head: b"\x1Aring", body: b"" };
        near.tx_burst(&[by_ring]);
        assert_eq!(hub.rx_burst(64, |_, _| {}), 1);
        far.tx_burst(&[TxFrame { peer: far_peer, head: b"\x1Afar", body: b"" }]);
        let mut calls_until_heard = 0;
        let mut is_heard = false;
        while !is_heard {
            near.tx_burst(&[by_ring]);
            hub.rx_burst(64, |peer, _| is_heard |= peer == from_far);
            calls_until_heard += 1;
            assert!(is_heard || calls_until_heard < 1_000_000, "the datagram is forgotten");
        }
        assert!(calls_until_heard >= 8, "the socket was looked at in call {calls_until_heard}");
    }

    #[test]
    fn rx_burst__after_a_wait_looks_at_both() {
        let (mut hub, mut near, mut far) = (host(), host(), host());
        let (from_near, near_peer) = link_by_shm(&mut hub, &mut near);
        let (from_far, far_peer) = link_by_udp(&mut hub, &mut far);
        for _ in 0..100 {
            near.tx_burst(&[TxFrame { peer: near_peer, head: b"\x1Aring", body: b"" }]);
            hub.wait(None);
            assert_eq!(hub.rx_burst(64, |peer, _| assert_eq!(peer, from_near)), 1);
            far.tx_burst(&[TxFrame { peer: far_peer, head: b"\x1Afar", body: b"" }]);
            hub.wait(None);
            assert_eq!(hub.rx_burst(64, |peer, _| assert_eq!(peer, from_far)), 1);
        }
    }

    #[test]
    fn rx_burst__shares_one_budget() {
        let (mut hub, mut near, mut far) = (host(), host(), host());
        let (_, near_peer) = link_by_shm(&mut hub, &mut near);
        let (_, far_peer) = link_by_udp(&mut hub, &mut far);
        // Too large to share a datagram; datagrams are delivered whole.
        let large = [0x1A; 3000];
        let to = |peer| TxFrame { peer, head: &large, body: b"" };
        assert_eq!(near.tx_burst(&[to(near_peer); 30]), 0);
        assert_eq!(far.tx_burst(&[to(far_peer); 20]), 0);
        let mut delivered = 0;
        while delivered < 50 {
            let count = hub.rx_burst(10, |_, _| {});
            assert!(count <= 10, "{count} frames at a budget of 10");
            delivered += count;
        }
    }
}
