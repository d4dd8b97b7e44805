//! Marks of congestion: on the wire, and in the transport.

use std::os::fd::AsRawFd;

use super::*;
use crate::socket_option::{int_option, set_int_option};
use crate::transport::{FrameHandler, NoReturn};
use crate::udp::ecn;

const NOT_ECT: u8 = 0b00;
const ECT_0: u8 = 0b10;
pub(super) const CE: u8 = 0b11;

/// Received frames in order, with their marks.
#[derive(Default)]
pub(super) struct Heard(pub(super) Vec<(Vec<u8>, bool)>);

impl FrameHandler<NoReturn> for &mut Heard {
    fn handle(&mut self, _peer: PeerId, frame: &[u8], _back: Option<&mut NoReturn>) {
        self.0.push((frame.to_vec(), false));
    }

    fn handle_marked(&mut self, _peer: PeerId, frame: &[u8]) {
        self.0.push((frame.to_vec(), true));
    }
}

/// A transport, and a plain socket whose link to it is ECN-capable, or not. The transport looks at
/// the mark of every lone datagram to come.
fn with_socket(config: UdpConfig, ecn: bool) -> WithSocket {
    let mut ends = WithSocket::new(config);
    ends.udp.remove_peer(ends.peer);
    ends.peer = add(&mut ends.udp, &ends.socket, ecn);
    if ecn {
        hear_alone(&mut ends, CE, 1);
    }
    ends
}

/// Sends `count` datagrams with a codepoint, one by one, and returns the number of marks seen.
/// Before every datagram the transport finds an empty socket, and thus expects a single datagram.
fn hear_alone(ends: &mut WithSocket, codepoint: u8, count: usize) -> usize {
    set_codepoint(&ends.socket, codepoint);
    let mut heard = Heard::default();
    for sent in 1..=count {
        assert_eq!(ends.udp.rx_burst_to(64, &mut heard), 0);
        ends.send_to_udp(b"\x1Aalone");
        while heard.0.len() < sent {
            ends.udp.wait(Some(30_000_000_000));
            ends.udp.rx_burst_to(1, &mut heard);
        }
    }
    set_codepoint(&ends.socket, NOT_ECT);
    heard.0.iter().filter(|(_, is_marked)| *is_marked).count()
}

#[test]
fn rx_burst__looks_at_few_of_those_that_come_alone_until_one_is_marked() {
    for config in configs() {
        let mut ends = with_socket(config, true);
        assert_eq!(hear_alone(&mut ends, ECT_0, 200), 0);
        let first = hear_alone(&mut ends, CE, 10);
        assert!((6..10).contains(&first), "{first} of 10: one of the first five, and then all");
        assert_eq!(hear_alone(&mut ends, CE, 10), 10);
    }
}

fn add(udp: &mut Udp, socket: &UdpSocket, ecn: bool) -> PeerId {
    let addr = socket.local_addr().unwrap();
    udp.add_peer(UdpLink { ecn, ..UdpLink::to(addr) }).unwrap()
}

fn is_v6(socket: &UdpSocket) -> bool {
    socket.local_addr().unwrap().is_ipv6()
}

/// Sets the codepoint of all further datagrams of a socket.
pub(super) fn set_codepoint(socket: &UdpSocket, codepoint: u8) {
    let (level, name) = match is_v6(socket) {
        true => (libc::SOL_IPV6, libc::IPV6_TCLASS),
        false => (libc::SOL_IP, libc::IP_TOS),
    };
    set_int_option(socket.as_fd(), level, name, codepoint.into()).unwrap();
}

/// The frames a transport delivers before `last`, sent behind all others.
fn heard_until(ends: &mut WithSocket, last: &[u8]) -> Vec<(Vec<u8>, bool)> {
    ends.send_to_udp(last);
    let mut heard = Heard::default();
    while heard.0.last().is_none_or(|(frame, _)| frame != last) {
        ends.udp.wait(Some(30_000_000_000));
        ends.udp.rx_burst_to(64, &mut heard);
    }
    heard.0.pop();
    heard.0
}

/// The next datagram, with the codepoint the kernel reports.
fn next_with_codepoint(socket: &UdpSocket) -> (Vec<u8>, u8) {
    let mut bytes = vec![0u8; 70_000];
    let mut control = [0u64; 8];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut iov, 1);
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points to live memory of the stated sizes; the control message lies there,
    // and has at least the read byte.
    unsafe {
        let len = libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0);
        bytes.truncate(usize::try_from(len).expect("a datagram comes within the time limit"));
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        assert!(!message.is_null(), "no control message with {bytes:02x?}");
        // The low byte is the first one, of a byte and of a little-endian number.
        (bytes, libc::CMSG_DATA(message).read() & CE)
    }
}

/// A socket that reports codepoints.
fn observer(ip: &str) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    ecn::read_marks(socket.as_fd(), addr::Families::of(socket.local_addr().unwrap()), true)
        .unwrap();
    socket
}

pub(super) fn configs() -> [UdpConfig; 3] {
    [v4(), bind_to("::1"), UdpConfig { gro: false, gso: false, ..v4() }]
}

#[test]
fn rx_burst__tells_frames_with_a_mark_from_those_without() {
    for config in configs() {
        let mut ends = with_socket(config, true);
        let before = ends.udp.stats();
        for codepoint in [NOT_ECT, ECT_0, CE, 0b01, CE, ECT_0] {
            set_codepoint(&ends.socket, codepoint);
            ends.send_to_udp(b"\x1Aalone");
            ends.send_to_udp(b"\x0F\x04\0\x1Aone\x05\0\x1Btwo!");
            set_codepoint(&ends.socket, NOT_ECT);
            let is_marked = codepoint == CE;
            let expected = [&b"\x1Aalone"[..], b"\x1Aone", b"\x1Btwo!"];
            let expected = expected.map(|frame| (frame.to_vec(), is_marked));
            assert_eq!(heard_until(&mut ends, b"\x1Flast"), expected, "codepoint {codepoint}");
        }
        let stats = ends.udp.stats();
        assert_eq!(stats.rx_marked - before.rx_marked, 6);
        assert_eq!(stats.rx_frames - before.rx_frames, 24);
        assert_eq!(stats.rx_datagrams - before.rx_datagrams, 18);
        assert_eq!(stats.rx_dropped_truncated, 0);
    }
}

/// Sends `count` datagrams of one size in a message the kernel may hand over whole.
fn send_train(ends: &WithSocket, codepoint: u8, first: u8, count: u8) -> Vec<(Vec<u8>, bool)> {
    const BYTES: usize = 1200;
    set_codepoint(&ends.socket, codepoint);
    let datagrams: Vec<Vec<u8>> = (first..first + count).map(|byte| vec![byte; BYTES]).collect();
    let cut = BYTES as libc::c_int;
    set_int_option(ends.socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, cut).unwrap();
    ends.send_to_udp(&datagrams.concat());
    set_int_option(ends.socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).unwrap();
    datagrams.into_iter().map(|datagram| (datagram, codepoint == CE)).collect()
}

#[test]
fn rx_burst__marks_joined_datagrams_all_or_none() {
    for config in [v4(), bind_to("::1")] {
        let mut ends = with_socket(config, true);
        for round in 0..20 {
            let trains = [(ECT_0, 0x10, 9), (CE, 0x20, 12), (NOT_ECT, 0x30, 1), (CE, 0x40, 2)];
            let sent = trains.map(|(codepoint, first, n)| send_train(&ends, codepoint, first, n));
            set_codepoint(&ends.socket, NOT_ECT);
            assert_eq!(heard_until(&mut ends, b"\x1Flast"), sent.concat(), "round {round}");
        }
        let stats = ends.udp.stats();
        assert_eq!((stats.rx_marked, stats.rx_frames), (1 + 14 * 20, 1 + 25 * 20));
        // Receive offload must be on, for joined datagrams; unjoined, there is a system call per
        // eight.
        let gro = int_option(ends.udp.socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO).unwrap();
        assert_eq!(gro, 1, "the test does not show what it should");
    }
}

#[test]
fn rx_burst__stops_within_a_marked_train_and_goes_on_there() {
    let mut ends = with_socket(v4(), true);
    send_train(&ends, NOT_ECT, 0x10, 4);
    (0..4).for_each(|_| ends.send_to_udp(b"\x1Asmall"));
    heard_until(&mut ends, b"\x1Flast");
    let sent = send_train(&ends, CE, 0x10, 30);
    let mut heard = Heard::default();
    while heard.0.len() < sent.len() {
        ends.udp.wait(Some(30_000_000_000));
        assert!(ends.udp.rx_burst_to(7, &mut heard) <= 7);
    }
    assert_eq!(heard.0, sent);
}

#[test]
fn rx_burst__reads_no_marks_unless_a_peer_agreed() {
    for config in configs() {
        let mut ends = with_socket(config, false);
        let other = observer(&ends.udp.local_addr().ip().to_string());
        for ecn in [false, true, false] {
            let is_heard = ecn.then(|| add(&mut ends.udp, &other, true));
            set_codepoint(&ends.socket, CE);
            ends.send_to_udp(b"\x1Amarked");
            let heard = heard_until(&mut ends, b"\x1Flast");
            assert_eq!(heard, [(b"\x1Amarked".to_vec(), ecn)]);
            is_heard.into_iter().for_each(|peer| ends.udp.remove_peer(peer));
        }
    }
}

/// Sends in all possible ways to each of the sockets in turn, and checks the codepoints on the
/// wire.
fn check_codepoints(udp: &mut Udp, to: &[(PeerId, &UdpSocket, u8)]) {
    let large: Vec<Vec<u8>> = (0x10..0x14u8).map(|byte| vec![byte; 3000]).collect();
    let small = |peer| frame(peer, b"\x1Aframe");
    for &(peer, socket, codepoint) in to {
        // A lone datagram, by `sendto` if possible; then a train, in one message or several.
        assert_eq!(udp.tx_burst(&[small(peer)]), 0);
        assert_eq!(next_with_codepoint(socket), (b"\x1Aframe".to_vec(), codepoint));
        let burst: Vec<_> = large.iter().map(|bytes| frame(peer, bytes)).collect();
        assert_eq!(udp.tx_burst(&burst[..1]), 0);
        assert_eq!(next_with_codepoint(socket), (large[0].clone(), codepoint));
        assert_eq!(udp.tx_burst(&burst), 0);
        let expect = |bytes: &Vec<u8>| {
            assert_eq!(next_with_codepoint(socket), (bytes.clone(), codepoint));
        };
        large.iter().for_each(expect);
    }
    // Alternating between all sockets in one burst.
    let one_each = |bytes: &'static [u8]| to.iter().map(move |&(peer, ..)| frame(peer, bytes));
    let large_each = to.iter().flat_map(|&(peer, ..)| large.iter().map(move |b| frame(peer, b)));
    let burst: Vec<_> =
        one_each(b"\x1Aone").chain(one_each(b"\x1Atwo")).chain(large_each).collect();
    assert_eq!(udp.tx_burst(&burst), 0);
    for &(_, socket, codepoint) in to {
        let bundle = b"\x0F\x04\0\x1Aone\x04\0\x1Atwo".to_vec();
        assert_eq!(next_with_codepoint(socket), (bundle, codepoint));
        let expect = |bytes: &Vec<u8>| {
            assert_eq!(next_with_codepoint(socket), (bytes.clone(), codepoint));
        };
        large.iter().for_each(expect);
    }
}

#[test]
fn tx_burst__says_ect_to_those_who_agreed_and_to_nobody_else() {
    for config in configs() {
        let config = UdpConfig { mtu: Mtu::Fixed(4000), ..config };
        let ip = config.bind.ip().to_string();
        let sockets = [(); 3].map(|()| observer(&ip));
        let mut udp = Udp::bind(config).unwrap();
        let first = add(&mut udp, &sockets[0], true);
        check_codepoints(&mut udp, &[(first, &sockets[0], ECT_0)]);
        assert!(!udp.ecn.is_by_message(), "the socket can say it, at no cost");

        let second = add(&mut udp, &sockets[1], false);
        let both = [(first, &sockets[0], ECT_0), (second, &sockets[1], NOT_ECT)];
        check_codepoints(&mut udp, &both);
        assert!(udp.ecn.is_by_message());

        let third = add(&mut udp, &sockets[2], true);
        check_codepoints(&mut udp, &[both[0], both[1], (third, &sockets[2], ECT_0)]);
        udp.remove_peer(second);
        check_codepoints(&mut udp, &[both[0], (third, &sockets[2], ECT_0)]);
        assert!(!udp.ecn.is_by_message());

        udp.remove_peer(first);
        udp.remove_peer(third);
        let second = add(&mut udp, &sockets[1], false);
        check_codepoints(&mut udp, &[(second, &sockets[1], NOT_ECT)]);
        assert_eq!(udp.stats().gso_disabled, 0);
    }
}

/// A datagram belongs to a single link, and has the link's codepoint (`docs/wire-protocol.md`
/// §8.4).
#[test]
fn add_peer__of_a_link_without_ecn_to_an_address_leaves_the_others_ect() {
    let mut udp = Udp::bind(UdpConfig { mtu: Mtu::Fixed(4000), ..v4() }).unwrap();
    let socket = observer("127.0.0.1");
    let capable = add(&mut udp, &socket, true);
    assert_eq!(add(&mut udp, &socket, true), capable);
    check_codepoints(&mut udp, &[(capable, &socket, ECT_0)]);
    let other = add(&mut udp, &socket, false);
    assert_ne!(other, capable);
    check_codepoints(&mut udp, &[(capable, &socket, ECT_0)]);
    check_codepoints(&mut udp, &[(other, &socket, NOT_ECT)]);
    udp.remove_peer(other);
    check_codepoints(&mut udp, &[(capable, &socket, ECT_0)]);
    (0..2).for_each(|_| udp.remove_peer(capable));
    let other = add(&mut udp, &socket, false);
    check_codepoints(&mut udp, &[(other, &socket, NOT_ECT)]);
}

#[test]
fn add_peer__refuses_ecn_where_it_is_switched_off() {
    let mut udp = Udp::bind(UdpConfig { ecn: false, ..v4() }).unwrap();
    assert!(!udp.capabilities().ecn);
    let addr = "127.0.0.1:9".parse().unwrap();
    let refused = udp.add_peer(UdpLink { ecn: true, ..UdpLink::to(addr) });
    assert!(matches!(refused, Err(LinkError::Unsupported(why)) if why.contains("ECN")));
    assert_eq!(udp.peer_count(), 0);
}
