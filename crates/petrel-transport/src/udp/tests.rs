mod both;
mod device;
mod dpdk;
mod ecn;
mod further;
mod kept;
mod multicast;
mod offload;
mod relay;
mod sealed;

use std::net::UdpSocket;

use super::*;
use crate::TxFrame;
use crate::conformance::{self, End, Harness, Medium, Star};
use crate::socket_option::{int_option, set_int_option};

fn frame(peer: PeerId, bytes: &[u8]) -> TxFrame<'_> {
    TxFrame { peer, head: bytes, body: &[] }
}

fn bind_to(ip: &str) -> UdpConfig {
    UdpConfig { bind: SocketAddr::new(ip.parse().unwrap(), 0), ..UdpConfig::default() }
}

fn v4() -> UdpConfig {
    bind_to("127.0.0.1")
}

/// Transports of one configuration, over the loopback device.
struct Loopback {
    config: UdpConfig,
    /// Whether the links of each leaf are ECN-capable.
    ecn: [bool; 2],
}

impl Loopback {
    fn end(&self) -> Udp {
        Udp::bind(self.config.clone()).unwrap()
    }
}

fn link(to: &Udp) -> UdpLink {
    UdpLink::to(to.local_addr())
}

impl Harness for Loopback {
    type T = Udp;

    /// The smallest default buffer, 208 KiB in the kernel's accounting, holds this many bytes of
    /// datagrams of any size.
    fn medium(&self) -> Medium {
        Medium::lossy_when_full().with_capacity(70_000)
    }

    fn star(&mut self) -> Star<Udp> {
        let mut hub = self.end();
        let mut join = |ecn| {
            let mut leaf = self.end();
            let to_leaf = hub.add_peer(UdpLink { ecn, ..link(&leaf) }).unwrap();
            let peer = leaf.add_peer(UdpLink { ecn, ..link(&hub) }).unwrap();
            (to_leaf, End { transport: leaf, peer })
        };
        let [(to_first, first), (to_second, second)] = self.ecn.map(&mut join);
        Star { hub, peers: [to_first, to_second], leaves: [first, second] }
    }
}

fn conforms(config: UdpConfig) {
    conforms_with_ecn(config, [false; 2]);
}

fn conforms_with_ecn(config: UdpConfig, ecn: [bool; 2]) {
    let mut harness = Loopback { config, ecn };
    conformance::run_all(&mut harness);
    conformance::run_threaded(&mut harness);
}

#[test]
fn conformance__v4() {
    conforms(v4());
}

#[test]
fn conformance__v6() {
    conforms(bind_to("::1"));
}

#[test]
fn conformance__with_ecn() {
    conforms_with_ecn(v4(), [true; 2]);
    conforms_with_ecn(bind_to("::1"), [true; 2]);
}

#[test]
fn conformance__with_ecn_to_one_of_two() {
    conforms_with_ecn(v4(), [true, false]);
    conforms_with_ecn(bind_to("::1"), [false, true]);
    conforms_with_ecn(UdpConfig { gso: false, gro: false, ..v4() }, [true, false]);
}

#[test]
fn conformance__without_gso() {
    conforms(UdpConfig { gso: false, ..v4() });
}

#[test]
fn conformance__without_gro() {
    conforms(UdpConfig { gro: false, ..v4() });
}

#[test]
fn conformance__without_gso_and_gro_on_v6() {
    conforms(UdpConfig { gso: false, gro: false, ..bind_to("::1") });
}

#[test]
fn conformance__smallest_mtu() {
    conforms(UdpConfig { mtu: Mtu::Fixed(MTU_BYTES_MIN), ..v4() });
    conforms(UdpConfig { mtu: Mtu::Fixed(MTU_BYTES_MIN), ..bind_to("::1") });
}

#[test]
fn conformance__largest_mtu() {
    conforms(UdpConfig { mtu: Mtu::Auto { cap_bytes: usize::MAX }, ..v4() });
    conforms(UdpConfig { mtu: Mtu::Auto { cap_bytes: usize::MAX }, ..bind_to("::1") });
}

/// A transport, and a plain socket as the peer, for raw datagrams.
struct WithSocket {
    udp: Udp,
    peer: PeerId,
    socket: UdpSocket,
}

impl WithSocket {
    fn new(config: UdpConfig) -> Self {
        let socket = UdpSocket::bind((config.bind.ip(), 0)).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        let mut udp = Udp::bind(config).unwrap();
        let addr = socket.local_addr().unwrap();
        let peer = udp.add_peer(UdpLink::to(addr)).unwrap();
        Self { udp, peer, socket }
    }

    /// [`WithSocket::new`] with a second, silent peer, so the socket is not connected.
    fn with_another(config: UdpConfig) -> Self {
        let mut ends = Self::new(config);
        let addr = SocketAddr::new(ends.udp.local_addr().ip(), 9);
        ends.udp.add_peer(UdpLink::to(addr)).unwrap();
        assert!(!ends.udp.association.is_made());
        ends
    }

    fn send_to_udp(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.udp.local_addr()).unwrap();
    }

    fn next_datagram(&self) -> Vec<u8> {
        let mut buffer = vec![0; 70_000];
        let len = self.socket.recv(&mut buffer).unwrap();
        buffer[..len].to_vec()
    }

    /// The frames the transport delivers up to `last`, sent behind all others.
    fn frames_until(&mut self, last: &[u8]) -> Vec<Vec<u8>> {
        self.send_to_udp(last);
        let mut frames: Vec<Vec<u8>> = Vec::new();
        while frames.last().is_none_or(|frame| frame != last) {
            self.udp.wait(Some(30_000_000_000));
            self.udp.rx_burst(64, |_, frame| frames.push(frame.to_vec()));
        }
        frames.pop();
        frames
    }
}

#[test]
fn capabilities__are_what_was_asked_for_and_the_kernel_has() {
    for bind in [v4(), bind_to("::1")] {
        let whole = Udp::bind(bind.clone()).unwrap().capabilities();
        for [gso, gro, ecn] in (0..8).map(|bits| [1, 2, 4].map(|bit| bits & bit != 0)) {
            let some = Udp::bind(UdpConfig { gso, gro, ecn, ..bind.clone() }).unwrap();
            let some = some.capabilities();
            assert_eq!(some.gso, gso && whole.gso);
            assert_eq!(some.gro, gro && whole.gro);
            assert_eq!(some.ecn, ecn && whole.ecn);
        }
    }
}

#[test]
fn rx_burst__drops_malformed_bundles_whole_and_counts_them() {
    let mut ends = WithSocket::new(v4());
    let malformed: [&[u8]; 7] = [
        &[],
        &[0x0F],
        &[0x0F, 5],
        &[0x0F, 0, 0],
        &[0x0F, 2, 0, 1],
        &[0x0F, 1, 0, 0x1A, 9, 9],
        &[0x0F, 1, 0, 0x1A, 0, 0, 1, 0, 0x1A],
    ];
    malformed.iter().for_each(|datagram| ends.send_to_udp(datagram));
    ends.send_to_udp(&[0x0F, 1, 0, 0x1A, 2, 0, 0x1B, 0x1C]);
    assert_eq!(ends.frames_until(b"\x1Flast"), [vec![0x1A], vec![0x1B, 0x1C]]);
    let stats = ends.udp.stats();
    assert_eq!((stats.rx_dropped_malformed, stats.rx_frames, stats.rx_datagrams), (7, 3, 2));
}

#[test]
fn rx_burst__drops_strangers_and_counts_them() {
    let mut ends = WithSocket::with_another(v4());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..300 {
        stranger.send_to(b"\x1Ahello", ends.udp.local_addr()).unwrap();
        stranger.send_to(&[], ends.udp.local_addr()).unwrap();
        assert_eq!(ends.udp.rx_burst(64, |_, _| panic!("a stranger was heard")), 0);
    }
    assert!(ends.frames_until(b"\x1Flast").is_empty());
    assert_eq!(ends.udp.stats().rx_dropped_unknown_peer, 600);
}

#[test]
fn rx_burst__returns_from_a_flood_of_strangers() {
    let mut ends = WithSocket::with_another(UdpConfig { gro: false, ..v4() });
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..100 {
        stranger.send_to(b"\x1Ahello", ends.udp.local_addr()).unwrap();
    }
    let mut dropped = 0;
    while dropped < 100 {
        assert_eq!(ends.udp.rx_burst(32, |_, _| panic!("a stranger was heard")), 0);
        let now_dropped = ends.udp.stats().rx_dropped_unknown_peer;
        assert!(now_dropped - dropped <= 32, "one call took {} datagrams", now_dropped - dropped);
        dropped = now_dropped;
    }
}

#[test]
fn rx_burst__counts_what_the_kernel_dropped() {
    let mut ends = WithSocket::new(UdpConfig { recv_buffer_bytes: 4096, ..v4() });
    let sent = 400u64;
    (0..sent).for_each(|_| ends.send_to_udp(&[0x1A; 1000]));
    let mut received = 0;
    while ends.udp.rx_burst(64, |_, _| received += 1) > 0 {}
    assert!(received < sent, "the buffer holds everything");
    assert!(ends.frames_until(b"\x1Flast").is_empty());
    assert_eq!(ends.udp.stats().rx_dropped_kernel, sent - received);
}

#[test]
fn rx_burst__delivers_datagrams_that_wait_in_the_socket_in_order() {
    for gro in [true, false] {
        let mut ends = WithSocket::new(UdpConfig { gro, ..v4() });
        let sent: Vec<Vec<u8>> = (0..50u8).map(|byte| vec![0x10 + byte; 100]).collect();
        sent.iter().for_each(|datagram| ends.send_to_udp(datagram));
        assert_eq!(ends.frames_until(b"\x1Flast"), sent);
        let calls = ends.udp.stats().rx_syscalls;
        assert!(calls < sent.len() as u64, "{calls} calls for 51 datagrams");
    }
}

#[test]
fn rx_burst__has_datagrams_joined_from_when_they_come_in_numbers() {
    let mut ends = WithSocket::new(v4());
    let is_on =
        |udp: &Udp| int_option(udp.socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO).unwrap() == 1;
    assert!(ends.udp.capabilities().gro);
    for _ in 0..20 {
        assert!(ends.frames_until(b"\x1Falone").is_empty());
        assert!(!is_on(&ends.udp));
    }
    let mut near = Udp::bind(UdpConfig { mtu: Mtu::Fixed(4000), ..v4() }).unwrap();
    let (from, to) = (ends.udp.add_peer(link(&near)).unwrap(), near.add_peer(link(&ends.udp)));
    let (to, large) = (to.unwrap(), (0x10..0x20u8).map(|byte| vec![byte; 3900]));
    let large: Vec<_> = large.collect();
    let burst: Vec<_> = large.iter().map(|bytes| frame(to, bytes)).collect();
    // Scheduling decides how many are in the socket at a time: soon several are.
    let (mut rounds, mut rounds_joined) = (0, 0);
    while rounds < 10_000 && rounds_joined < 3 {
        assert_eq!(near.tx_burst(&burst), 0);
        let mut received = Vec::new();
        while received.len() < large.len() {
            ends.udp.wait(Some(30_000_000_000));
            ends.udp.rx_burst(64, |peer, bytes| {
                assert_eq!(peer, from);
                received.push(bytes.to_vec());
            });
        }
        assert_eq!(received, large);
        rounds += 1;
        rounds_joined += u32::from(is_on(&ends.udp));
    }
    assert_eq!(rounds_joined, 3);
}

#[test]
fn tx_burst__sends_single_frames_bare_and_small_ones_in_a_bundle() {
    let mut ends = WithSocket::new(v4());
    assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, b"\x1Aone")]), 0);
    assert_eq!(ends.next_datagram(), b"\x1Aone");
    let burst = [frame(ends.peer, b"\x1Aone"), frame(ends.peer, b"\x1Btwo!")];
    assert_eq!(ends.udp.tx_burst(&burst), 0);
    assert_eq!(ends.next_datagram(), b"\x0F\x04\0\x1Aone\x05\0\x1Btwo!");
    let stats = ends.udp.stats();
    assert_eq!((stats.tx_frames, stats.tx_datagrams, stats.tx_syscalls), (3, 2, 2));
    assert_eq!(stats.tx_bytes, 4 + 4 + 5);
}

#[test]
fn tx_burst__segments_large_frames_in_one_call() {
    for config in [v4(), bind_to("::1")] {
        let mut ends = WithSocket::new(UdpConfig { mtu: Mtu::Fixed(4000), ..config });
        let large: Vec<_> = (0x10..0x1Au8).map(|byte| vec![byte; 3900]).collect();
        let burst: Vec<_> = large.iter().map(|bytes| frame(ends.peer, bytes)).collect();
        assert_eq!(ends.udp.tx_burst(&burst), 0);
        large.iter().for_each(|bytes| assert_eq!(ends.next_datagram(), *bytes));
        let stats = ends.udp.stats();
        assert_eq!((stats.tx_datagrams, stats.tx_syscalls, stats.gso_disabled), (10, 1, 0));
        assert_eq!((stats.tx_frames, stats.tx_bytes), (10, 39_000));
    }
}

/// Without checksums the kernel refuses to segment, so the refusal here is real.
#[test]
fn tx_burst__sends_one_by_one_where_the_kernel_refuses_to_segment() {
    let mut ends = WithSocket::new(UdpConfig { mtu: Mtu::Fixed(4000), ..v4() });
    switch_off_checksums(&ends.udp.socket);
    let large: Vec<_> = (0x10..0x18u8).map(|byte| vec![byte; 3900]).collect();
    let burst: Vec<_> = large.iter().map(|bytes| frame(ends.peer, bytes)).collect();
    for round in 1..=2 {
        assert_eq!(ends.udp.tx_burst(&burst), 0);
        large.iter().for_each(|bytes| assert_eq!(ends.next_datagram(), *bytes));
        let stats = ends.udp.stats();
        assert_eq!((stats.gso_disabled, stats.tx_frames), (1, 8 * round));
        assert!(!ends.udp.capabilities().gso);
    }
}

fn switch_off_checksums(socket: &UdpSocket) {
    set_int_option(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
}

/// The kernel refuses to send to a broadcast address, which no link can name.
#[test]
fn tx_burst__drops_what_is_refused_and_sends_the_rest() {
    let mut ends = WithSocket::new(v4());
    let other = WithSocket::new(v4());
    let broadcast = "127.255.255.255:9".parse().unwrap();
    let refused = ends.udp.peers.add(broadcast, 2000, (false, None)).unwrap();
    let addr = other.socket.local_addr().unwrap();
    let other_peer = ends.udp.add_peer(UdpLink::to(addr)).unwrap();
    let burst = [
        frame(ends.peer, b"\x1Afirst"),
        frame(refused, b"\x1Arefused"),
        frame(refused, b"\x1Arefused"),
        frame(other_peer, b"\x1Aother"),
        frame(ends.peer, b"\x1Aalso first"),
    ];
    for round in 1..=3 {
        assert_eq!(ends.udp.tx_burst(&burst), 0);
        assert_eq!(ends.next_datagram(), b"\x0F\x06\0\x1Afirst\x0B\0\x1Aalso first");
        assert_eq!(other.next_datagram(), b"\x1Aother");
        let stats = ends.udp.stats();
        assert_eq!((stats.tx_dropped_error, stats.tx_frames), (2 * round, 3 * round));
    }
}

#[test]
fn tx_burst__to_a_closed_port_does_not_harm_others() {
    let mut ends = WithSocket::new(v4());
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = ends.udp.add_peer(UdpLink::to(closed)).unwrap();
    for _ in 0..20 {
        let burst = [frame(nobody, b"\x1Alost"), frame(ends.peer, b"\x1Akept")];
        assert_eq!(ends.udp.tx_burst(&burst), 0);
        assert_eq!(ends.next_datagram(), b"\x1Akept");
        assert_eq!(ends.udp.rx_burst(64, |_, _| panic!("nobody sent this")), 0);
    }
    assert_eq!(ends.udp.stats().tx_frames, 40);
}

#[test]
fn add_peer__of_a_second_one_opens_the_socket_for_both() {
    for config in [v4(), bind_to("::1"), UdpConfig { gso: false, gro: false, ..v4() }] {
        let mut ends = WithSocket::new(config.clone());
        let local = ends.udp.local_addr();
        for _ in 0..3 {
            assert!(ends.udp.association.is_made());
            let other = UdpSocket::bind((config.bind.ip(), 0)).unwrap();
            other.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
            let addr = other.local_addr().unwrap();
            let other_peer = ends.udp.add_peer(UdpLink::to(addr)).unwrap();
            assert!(!ends.udp.association.is_made());
            assert_eq!(ends.udp.socket.local_addr().unwrap(), local);
            other.send_to(b"\x1Aother", local).unwrap();
            assert_eq!(ends.frames_until(b"\x1Flast"), [b"\x1Aother"]);
            let burst = [frame(ends.peer, b"\x1Ato one"), frame(other_peer, b"\x1Ato other")];
            assert_eq!(ends.udp.tx_burst(&burst), 0);
            assert_eq!(ends.next_datagram(), b"\x1Ato one");
            let (mut buffer, expected) = ([0; 99], b"\x1Ato other");
            assert_eq!(other.recv_from(&mut buffer).unwrap(), (expected.len(), local));
            assert_eq!(&buffer[..expected.len()], expected);
            ends.udp.remove_peer(other_peer);
        }
        let large: Vec<_> = (0x10..0x18u8).map(|byte| vec![byte; 3900]).collect();
        let burst: Vec<_> = large.iter().map(|bytes| frame(ends.peer, bytes)).collect();
        assert_eq!(ends.udp.tx_burst(&burst), 0);
        large.iter().for_each(|bytes| assert_eq!(ends.next_datagram(), *bytes));
    }
}

#[test]
fn add_peer__of_the_only_one_again_leaves_the_socket_connected() {
    let mut ends = WithSocket::new(v4());
    let addr = ends.socket.local_addr().unwrap();
    let again = ends.udp.add_peer(UdpLink::to(addr)).unwrap();
    assert_eq!(again, ends.peer);
    for _ in 0..2 {
        assert!(ends.udp.association.is_with(addr));
        ends.udp.remove_peer(again);
    }
    assert_eq!(ends.udp.peer_count(), 0);
    // The new peer's frames do not reach the former peer.
    let other = WithSocket::new(v4());
    let addr = other.socket.local_addr().unwrap();
    let link = UdpLink::to(addr);
    let peer = ends.udp.add_peer(link).unwrap();
    assert!(ends.udp.association.is_with(addr));
    assert_eq!(ends.udp.tx_burst(&[frame(peer, b"\x1Ato other")]), 0);
    assert_eq!(other.next_datagram(), b"\x1Ato other");
    ends.socket.set_nonblocking(true).unwrap();
    assert!(ends.socket.recv(&mut [0; 99]).is_err());
}

#[test]
fn add_peer__looks_at_the_senders_of_what_came_before() {
    let mut udp = Udp::bind(v4()).unwrap();
    let [stranger, friend] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    stranger.send_to(b"\x1Astrange", udp.local_addr()).unwrap();
    friend.send_to(b"\x1Aearly", udp.local_addr()).unwrap();
    let addr = friend.local_addr().unwrap();
    let peer = udp.add_peer(UdpLink::to(addr)).unwrap();
    assert!(udp.association.is_with(addr));
    let mut ends = WithSocket { udp, peer, socket: friend };
    assert_eq!(ends.frames_until(b"\x1Flast"), [b"\x1Aearly"]);
    assert_eq!(ends.udp.stats().rx_dropped_unknown_peer, 1);
    // From now on, the kernel refuses strangers' datagrams.
    stranger.send_to(b"\x1Astrange", ends.udp.local_addr()).unwrap();
    assert!(ends.frames_until(b"\x1Flast").is_empty());
    assert_eq!(ends.udp.stats().rx_dropped_unknown_peer, 1);
}

#[test]
fn add_peer__of_a_transport_without_an_address_of_its_own_connects_nothing() {
    for (any, own) in [("0.0.0.0", "127.0.0.1"), ("::", "::1")] {
        let mut udp = Udp::bind(bind_to(any)).unwrap();
        let peer = UdpSocket::bind((own, 0)).unwrap();
        udp.add_peer(UdpLink::to(peer.local_addr().unwrap())).unwrap();
        assert!(!udp.association.is_made());
    }
}

/// The kernel reports the closed port of the peer to a connected socket, in the next call.
#[test]
fn tx_burst__to_an_only_peer_that_is_away_goes_on_until_it_is_back() {
    for gso in [true, false] {
        let mut ends = WithSocket::new(UdpConfig { gso, mtu: Mtu::Fixed(4000), ..v4() });
        let addr = ends.socket.local_addr().unwrap();
        let large = [vec![0x1A; 3900], vec![0x1B; 3900]];
        ends.send_to_udp(b"\x1Abefore");
        // Closes the former socket.
        ends.socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for round in 1..=20 {
            let burst = [frame(ends.peer, &large[0]), frame(ends.peer, &large[1])];
            assert_eq!(ends.udp.tx_burst(&burst), 0);
            assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, b"\x1Asmall")]), 0);
            let expected = usize::from(round == 1);
            let mut received = 0;
            ends.udp.rx_burst(64, |_, bytes| {
                assert_eq!(bytes, b"\x1Abefore");
                received += 1;
            });
            assert_eq!(received, expected, "an error hides what came before");
        }
        let stats = ends.udp.stats();
        assert_eq!((stats.tx_frames, stats.tx_dropped_error, stats.gso_disabled), (60, 0, 0));
        ends.socket = UdpSocket::bind(addr).unwrap();
        ends.socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, b"\x1Awelcome")]), 0);
        assert_eq!(ends.next_datagram(), b"\x1Awelcome");
        assert_eq!(ends.frames_until(b"\x1Flast"), Vec::<Vec<u8>>::new());
    }
}

#[test]
fn wait__sleeps_on_after_the_news_that_a_peer_is_away() {
    let mut ends = WithSocket::new(v4());
    ends.socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, b"\x1Alost")]), 0);
    assert_eq!(ends.udp.rx_burst(64, |_, _| panic!("nobody sent this")), 0);
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut socket = [PollFd::new(&ends.udp.socket, PollFlags::IN)];
    assert_eq!(poll(&mut socket, Some(&at_once)), Ok(0), "the error is still there");
}

/// Two ends of a pair of local sockets, which keep message boundaries and ignore addresses.
fn local_pair() -> [UdpSocket; 2] {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    sockopt::set_socket_send_buffer_size(&near, 4096).unwrap();
    [near.into(), far.into()]
}

/// A transport whose socket is full whenever the far end is not read. (Over loopback, datagrams do not stay
/// with the sender.)
struct WithFullSocket {
    udp: Udp,
    peer: PeerId,
    far: UdpSocket,
}

impl WithFullSocket {
    fn new() -> Self {
        let [near, far] = local_pair();
        let mut udp = Udp::bind(UdpConfig { gso: false, mtu: Mtu::Fixed(4000), ..v4() }).unwrap();
        let addr = "127.0.0.1:9".parse().unwrap();
        let peer = udp.add_peer(UdpLink::to(addr)).unwrap();
        udp.socket = near;
        Self { udp, peer, far }
    }

    /// Pushes and flushes a frame, then overwrites the bytes.
    fn send(&mut self, bytes: &[u8]) -> bool {
        let mut frame = bytes.to_vec();
        // SAFETY: the frame changes only after the flush.
        let is_taken = unsafe { self.udp.push(self.peer, &frame[..1], &frame[1..]) };
        self.udp.flush();
        frame.fill(0xEE);
        is_taken
    }

    fn arrived(&self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 5000];
        std::iter::from_fn(|| self.far.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec()))
            .collect()
    }
}

#[test]
fn flush__keeps_what_the_kernel_has_no_room_for_and_sends_it_first() {
    let mut ends = WithFullSocket::new();
    let mut sent = Vec::new();
    let mut number = 0x10;
    for round in 0..5 {
        while ends.udp.stats().tx_kept == round {
            sent.push(vec![number; 3000]);
            assert!(ends.send(sent.last().unwrap()), "there is no backlog yet");
            number = 0x10 + (number + 1) % 0x80;
        }
        let kept = ends.udp.stats();
        assert_eq!((kept.tx_kept, kept.tx_frames), (round + 1, sent.len() as u64 - 1));
        assert!(!ends.send(&[0x1A; 40]) && !ends.send(&[0x1A; 3000]));
        let mut arrived = ends.arrived();
        // By another frame, by the end of an empty burst, or by receiving.
        match round % 3 {
            0 => {
                sent.push(vec![0x1B; 30]);
                assert!(ends.send(&[0x1B; 30]));
            }
            1 => ends.udp.flush(),
            _ => assert_eq!(ends.udp.rx_burst(0, |_, _| {}), 0),
        }
        arrived.extend(ends.arrived());
        assert!(arrived == sent, "round {round}");
        let stats = ends.udp.stats();
        assert_eq!((stats.tx_blocked, stats.tx_dropped_error), (2 * (round + 1), 0));
        sent.clear();
        ends.udp.stats.tx_frames = 0;
    }
}

#[test]
fn push__asks_a_full_socket_once_per_burst() {
    let mut ends = WithFullSocket::new();
    while ends.udp.stats().tx_kept == 0 {
        assert!(ends.send(&[0x10; 3000]));
    }
    let before = ends.udp.stats().tx_syscalls;
    assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, &[0x11; 50]); 60]), u64::MAX >> 4);
    assert_eq!(ends.udp.stats().tx_syscalls, before + 1);
    assert_eq!(ends.udp.tx_burst(&[]), 0);
    assert_eq!(ends.udp.stats().tx_syscalls, before + 2);
}

#[test]
fn push__beyond_the_room_of_a_burst_keeps_what_was_taken_and_refuses_the_rest() {
    let mut ends = WithFullSocket::new();
    let bodies: Vec<Vec<u8>> = (0..1000u32).map(|i| vec![0x10 + (i % 200) as u8; 2500]).collect();
    let mut taken = 0;
    for body in &bodies {
        // SAFETY: the bodies live until the flush.
        let is_taken = unsafe { ends.udp.push(ends.peer, body, &[]) };
        assert!(is_taken || taken < 1000, "a frame is taken behind one that was refused");
        taken += usize::from(is_taken);
        if !is_taken {
            break;
        }
    }
    assert!(taken < bodies.len(), "the socket takes everything");
    ends.udp.flush();
    let mut arrived = Vec::new();
    while arrived.len() < taken {
        ends.udp.flush();
        arrived.extend(ends.arrived());
    }
    assert_eq!(arrived, bodies[..taken]);
    assert!(!ends.udp.room.is_backlog());
}

#[test]
fn wait__ends_when_a_backlog_may_go_out() {
    let mut ends = WithFullSocket::new();
    while ends.udp.stats().tx_kept == 0 {
        assert!(ends.send(&[0x10; 3000]));
    }
    let far = ends.far.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 5000];
        (0..).take_while(|_| far.recv(&mut buffer).is_ok()).count()
    });
    while ends.udp.room.is_backlog() {
        ends.udp.wait(None);
        ends.udp.flush();
    }
    let read_before = reader.join().unwrap() as u64;
    let arrived = read_before + ends.arrived().len() as u64;
    assert_eq!((arrived, ends.udp.stats().tx_kept), (ends.udp.stats().tx_frames, 1));
}

#[test]
fn remove_peer__does_not_redirect_frames_on_their_way() {
    let mut ends = WithSocket::new(v4());
    let other = WithSocket::new(v4());
    let addr = other.socket.local_addr().unwrap();
    let mut frames = [[0x1A; 50], [0x1B; 50]];
    // SAFETY: the frames change only after the flush.
    unsafe { assert!(ends.udp.push(ends.peer, &frames[0], &[])) };
    ends.udp.remove_peer(ends.peer);
    let reused = ends.udp.add_peer(UdpLink::to(addr)).unwrap();
    assert_eq!(reused, ends.peer);
    // SAFETY: as above.
    unsafe { assert!(ends.udp.push(reused, &frames[1], &[])) };
    ends.udp.flush();
    frames.iter_mut().for_each(|frame| frame.fill(0xEE));
    assert_eq!(ends.next_datagram(), [0x1A; 50]);
    assert_eq!(other.next_datagram(), [0x1B; 50]);
}

#[test]
fn add_peer__checks_the_link() {
    let mut udp = Udp::bind(v4()).unwrap();
    let to = |addr: &str, max_frame| UdpLink {
        addr: addr.parse().unwrap(),
        max_frame,
        ecn: false,
        source: None,
        sealed: None,
    };
    for addr in ["[::1]:5", "0.0.0.0:5", "127.0.0.1:0", "224.0.0.1:5"] {
        assert!(matches!(udp.add_peer(to(addr, None)), Err(LinkError::Unsupported(_))), "{addr}");
    }
    let small = udp.add_peer(to("127.0.0.1:5", Some(MIN_FRAME_BYTES - 1)));
    assert!(matches!(small, Err(LinkError::Unsupported(_))));
    let peer = udp.add_peer(to("[::ffff:127.0.0.1]:5", Some(2000))).unwrap();
    assert_eq!(udp.max_frame_bytes(peer), 2000);
    assert_eq!(udp.add_peer(to("127.0.0.1:5", Some(2000))).unwrap(), peer);
    assert_eq!(udp.peer_count(), 1);
    let other = udp.add_peer(to("127.0.0.1:5", None)).unwrap();
    assert_eq!(udp.max_frame_bytes(other), Mtu::default().on_path(65_535) - 28);
    assert_eq!(udp.max_frame_bytes(peer), 2000, "another link's limit is its own");
    assert_eq!((udp.source_of(other), udp.source_of(peer)), (peer, peer));
}

#[test]
fn add_peer__checks_the_mtu_against_the_path() {
    let path = path_mtu("127.0.0.1".parse().unwrap(), "127.0.0.1:5".parse().unwrap()).unwrap();
    let mut udp = Udp::bind(UdpConfig { mtu: Mtu::Fixed(path + 1), ..v4() }).unwrap();
    let refused = udp.add_peer(UdpLink::to("127.0.0.1:5".parse().unwrap()));
    let Err(LinkError::MtuExceedsPath { configured, path: found, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((configured, found), (path + 1, path));
    assert_eq!(udp.peer_count(), 0);
}

#[test]
fn bind__explains_what_it_refuses() {
    let small = Udp::bind(UdpConfig { mtu: Mtu::Fixed(1279), ..v4() });
    assert!(matches!(small, Err(UdpError::MtuTooSmall { configured: 1279 })));
    let first = Udp::bind(v4()).unwrap();
    let taken = Udp::bind(UdpConfig { bind: first.local_addr(), ..v4() });
    assert!(matches!(taken, Err(UdpError::Bind { address, .. }) if address == first.local_addr()));
}
