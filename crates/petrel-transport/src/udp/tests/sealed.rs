//! Sealed links (`docs/wire-protocol.md` §17.3): over the conformance suite, on the wire, and under attack.

use super::further::{FromFurtherPorts, Heard, several};
use super::*;
use crate::conformance::{TestKey, sealed_link};
use crate::seal::{
    self, HEAD_BYTES, NUMBER_END, PATH_END, Refusal, SealedDatagram, SealedLink, TAG_BYTES,
};
use crate::udp::addr::RawAddr;

fn sealed_to(addr: SocketAddr, keys: SealedLink) -> UdpLink {
    UdpLink { sealed: Some(Box::new(keys)), ..UdpLink::to(addr) }
}

/// A star with sealed links to some leaves.
struct SealedStar {
    plain: Loopback,
    is_sealed: [bool; 2],
    /// Whether a plain link to every leaf is there as well.
    has_plain_beside: bool,
}

impl Harness for SealedStar {
    type T = Udp;

    fn medium(&self) -> Medium {
        self.plain.medium()
    }

    fn star(&mut self) -> Star<Udp> {
        let mut hub = self.plain.end();
        let mut join = |nth: usize| {
            let (mut leaf, ecn) = (self.plain.end(), self.plain.ecn[nth]);
            let mut to_leaf = UdpLink { ecn, ..link(&leaf) };
            let mut to_hub = UdpLink { ecn, ..link(&hub) };
            if self.is_sealed[nth] {
                let paths = [7 + nth as u32, 7];
                let [at_hub, at_leaf] = sealed_link(nth as u64, paths);
                (to_leaf.sealed, to_hub.sealed) = (Some(Box::new(at_hub)), Some(Box::new(at_leaf)));
            }
            if self.has_plain_beside {
                hub.add_peer(link(&leaf)).unwrap();
                leaf.add_peer(link(&hub)).unwrap();
            }
            let at_hub = hub.add_peer(to_leaf).unwrap();
            let peer = leaf.add_peer(to_hub).unwrap();
            (at_hub, End { transport: leaf, peer })
        };
        let [(to_first, first), (to_second, second)] = [0, 1].map(&mut join);
        Star { hub, peers: [to_first, to_second], leaves: [first, second] }
    }
}

fn conforms_sealed(config: UdpConfig, ecn: [bool; 2]) {
    for is_sealed in [[true; 2], [true, false]] {
        let plain = Loopback { config: config.clone(), ecn };
        let mut harness = SealedStar { plain, is_sealed, has_plain_beside: false };
        conformance::run_all(&mut harness);
        conformance::run_threaded(&mut harness);
    }
}

#[test]
fn conformance__sealed_beside_plain_links_of_the_same_ports() {
    for config in [v4(), UdpConfig { gso: false, gro: false, ..bind_to("::1") }] {
        let plain = Loopback { config, ecn: [false; 2] };
        let harness = &mut SealedStar { plain, is_sealed: [true; 2], has_plain_beside: true };
        // Datagrams of a removed sealed link are not for the plain one, but its core tells that: no removal here.
        conformance::delivers_every_size(harness);
        conformance::delivers_bursts_of_mixed_sizes(harness);
        conformance::delivers_pushed_bursts_of_any_length(harness);
        conformance::keeps_peers_apart(harness);
        conformance::respects_the_budget(harness);
        conformance::counts_answers_on_the_way_back(harness);
        conformance::accounts_for_every_frame_when_full(harness);
    }
}

#[test]
fn conformance__sealed() {
    conforms_sealed(v4(), [false; 2]);
    conforms_sealed(bind_to("::1"), [false; 2]);
}

#[test]
fn conformance__sealed_without_offload() {
    conforms_sealed(UdpConfig { gso: false, gro: false, ..v4() }, [false; 2]);
    conforms_sealed(UdpConfig { gso: false, ..bind_to("::1") }, [false; 2]);
    conforms_sealed(UdpConfig { gro: false, ..v4() }, [false; 2]);
}

#[test]
fn conformance__sealed_with_ecn() {
    conforms_sealed(v4(), [true; 2]);
    conforms_sealed(bind_to("::1"), [true, false]);
}

#[test]
fn conformance__sealed_of_small_and_large_mtu() {
    for ip in ["127.0.0.1", "::1"] {
        let least = Mtu::Fixed(MTU_BYTES_MIN + OVERHEAD_BYTES);
        conforms_sealed(UdpConfig { mtu: least, ..bind_to(ip) }, [false; 2]);
        let largest = Mtu::Auto { cap_bytes: usize::MAX };
        conforms_sealed(UdpConfig { mtu: largest, ..bind_to(ip) }, [false; 2]);
    }
}

#[test]
fn conformance__sealed_from_a_further_port() {
    for config in
        [several("127.0.0.1", 1), UdpConfig { gso: false, gro: false, ..several("::1", 2) }]
    {
        let plain = Loopback { config, ecn: [false; 2] };
        let star = SealedStar { plain, is_sealed: [true; 2], has_plain_beside: false };
        let mut harness = FromFurtherPorts(star);
        conformance::run_all(&mut harness);
        conformance::run_threaded(&mut harness);
    }
}

/// A transport with a sealed link to a plain socket, for which the test seals and opens.
struct WithKeys {
    udp: Udp,
    peer: PeerId,
    socket: UdpSocket,
    sender: seal::Sender,
    receiver: seal::Receiver,
}

/// The path of the transport's end, and of the test's.
const PATHS: [u32; 2] = [0x0012_3456, 0x00AB_CDEF];

impl WithKeys {
    fn new(config: UdpConfig) -> Self {
        Self::with_secret(config, 1)
    }

    fn with_secret(config: UdpConfig, secret: u64) -> Self {
        let socket = UdpSocket::bind((config.bind.ip(), 0)).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        let mut udp = Udp::bind(config).unwrap();
        let [at_udp, at_socket] = sealed_link(secret, PATHS);
        let peer = udp.add_peer(sealed_to(socket.local_addr().unwrap(), at_udp)).unwrap();
        let SealedLink { remote_path, send, receive, .. } = at_socket;
        let sender = seal::Sender::new(remote_path, send, Epochs::STANDARD);
        let receiver = seal::Receiver::new(receive, Epochs::STANDARD);
        Self { udp, peer, socket, sender, receiver }
    }

    fn sealed(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut datagram = [&[0; HEAD_BYTES], plain, &[0; TAG_BYTES]].concat();
        self.sender.seal(&mut datagram);
        datagram
    }

    fn opened(&mut self, mut datagram: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let sealed = SealedDatagram::parse(&mut datagram).expect("a sealed datagram");
        assert_eq!(sealed.path(), PATHS[1]);
        self.receiver.open(sealed).map(<[u8]>::to_vec)
    }

    fn next_opened(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 70_000];
        let len = self.socket.recv(&mut buffer).unwrap();
        self.opened(buffer[..len].to_vec()).expect("what the transport sealed")
    }

    /// Delivers datagrams of equal size, but for the last, that the kernel has joined.
    fn receive(&mut self, train: &[u8], segment_bytes: usize) -> Vec<(PeerId, Vec<u8>)> {
        let from = self.socket.local_addr().unwrap();
        self.receive_from(from, train, segment_bytes)
    }

    fn receive_from(
        &mut self,
        from: SocketAddr,
        train: &[u8],
        segment_bytes: usize,
    ) -> Vec<(PeerId, Vec<u8>)> {
        let segment = (segment_bytes < train.len()).then_some(segment_bytes as u32);
        self.udp.receiver.fill_with_any(&RawAddr::from(from), train, segment, 0);
        let mut got = Vec::new();
        while self.udp.receiver.has_ready() {
            // Some at a time.
            self.udp.rx_burst(3, |peer, frame| got.push((peer, frame.to_vec())));
        }
        got
    }

    fn receive_one(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let got = self.receive(datagram, datagram.len());
        assert!(got.iter().all(|(peer, _)| *peer == self.peer));
        got.into_iter().map(|(_, frame)| frame).collect()
    }

    /// The datagrams dropped so far: plain, forged, replayed, of unknown peers, malformed.
    fn drops(&self) -> [u64; 5] {
        let stats = self.udp.stats();
        [
            stats.rx_dropped_plain,
            stats.rx_dropped_forged,
            stats.rx_dropped_replayed,
            stats.rx_dropped_unknown_peer,
            stats.rx_dropped_malformed,
        ]
    }
}

#[test]
fn tx_burst__seals_every_datagram_once() {
    for config in [v4(), bind_to("::1")] {
        let mut ends = WithKeys::new(config);
        assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, b"\x1Aone")]), 0);
        assert_eq!(ends.next_opened(), b"\x1Aone");
        let burst = [frame(ends.peer, b"\x1Aone"), frame(ends.peer, b"\x1Btwo!")];
        assert_eq!(ends.udp.tx_burst(&burst), 0);
        let mut datagram = [0; 100];
        let len = ends.socket.recv(&mut datagram).unwrap();
        assert_eq!(len, 14 + OVERHEAD_BYTES);
        assert_eq!(datagram[..HEAD_BYTES], *b"\x0E\xEF\xCD\xAB\x01\0\0\0\0\0\0\0", "number 1");
        assert!(datagram.windows(3).all(|bytes| bytes != b"one" && bytes != b"two"));
        assert_eq!(
            ends.opened(datagram[..len].to_vec()).unwrap(),
            b"\x0F\x04\0\x1Aone\x05\0\x1Btwo!"
        );
        let stats = ends.udp.stats();
        assert_eq!((stats.tx_frames, stats.tx_datagrams, stats.tx_syscalls), (3, 2, 2));
        assert_eq!(stats.tx_bytes, 4 + 4 + 5);
    }
}

#[test]
fn tx_burst__segments_sealed_datagrams() {
    for config in [v4(), bind_to("::1")] {
        let mut ends = WithKeys::new(UdpConfig { mtu: Mtu::Fixed(4000), ..config });
        let size = ends.udp.max_frame_bytes(ends.peer);
        assert_eq!(size, 4000 - header_bytes(ends.udp.local_addr()) - OVERHEAD_BYTES);
        // As many as the largest message has without sealing, and a shorter one.
        let sizes = [vec![size; 40], vec![3000]].concat();
        let large = (0x10u8..).zip(sizes).map(|(byte, size)| vec![byte; size]);
        let large: Vec<_> = large.collect();
        let burst: Vec<_> = large.iter().map(|bytes| frame(ends.peer, bytes)).collect();
        assert_eq!(ends.udp.tx_burst(&burst), 0);
        for bytes in &large {
            assert_eq!(ends.next_opened(), *bytes);
        }
        let stats = ends.udp.stats();
        assert_eq!((stats.tx_datagrams, stats.tx_syscalls, stats.gso_disabled), (41, 1, 0));
        assert_eq!(stats.tx_bytes, 40 * size as u64 + 3000);
    }
}

/// Datagrams that are sent singly after the refusal are those that were refused, with the same numbers.
#[test]
fn tx_burst__sends_sealed_datagrams_one_by_one_where_the_kernel_refuses_to_segment() {
    let mut ends = WithKeys::new(UdpConfig { mtu: Mtu::Fixed(4000), ..v4() });
    switch_off_checksums(&ends.udp.socket);
    let large: Vec<_> = (0x10..0x18u8).map(|byte| vec![byte; 3900]).collect();
    let mut burst: Vec<_> = large.iter().map(|bytes| frame(ends.peer, bytes)).collect();
    burst.extend([frame(ends.peer, b"\x1Aone"), frame(ends.peer, b"\x1Btwo")]);
    for round in 1..=2u64 {
        assert_eq!(ends.udp.tx_burst(&burst), 0);
        for bytes in &large {
            assert_eq!(ends.next_opened(), *bytes);
        }
        assert_eq!(ends.next_opened(), b"\x0F\x04\0\x1Aone\x04\0\x1Btwo");
        let stats = ends.udp.stats();
        assert_eq!((stats.tx_frames, stats.gso_disabled), (10 * round, 1));
        assert_eq!(stats.tx_bytes, round * (8 * 3900 + 8));
    }
    let mut datagram = [0; 4000];
    assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, b"\x1Aone")]), 0);
    ends.socket.recv(&mut datagram).unwrap();
    assert_eq!(datagram[4..12], 18u64.to_le_bytes(), "a number for each datagram so far");
}

#[test]
fn flush__keeps_sealed_datagrams_as_they_are() {
    let config = UdpConfig { gso: false, mtu: Mtu::Fixed(4000), ..v4() };
    let mut ends = WithKeys::new(config);
    let [near, far] = local_pair();
    (ends.udp.socket, ends.socket) = (near, far);
    let (mut sent, mut arrived) = (Vec::new(), Vec::new());
    let mut buffer = [0; 5000];
    for round in 0..200u32 {
        for nth in 0..1 + round % 4 {
            let mut bytes =
                vec![0x10 + (sent.len() % 200) as u8; [40, 3000, 900][(nth % 3) as usize]];
            // SAFETY: the frame stays until the flush.
            let is_taken = unsafe { ends.udp.push(ends.peer, &bytes[..1], &bytes[1..]) };
            if is_taken {
                sent.push(bytes.clone());
            }
            ends.udp.flush();
            bytes.fill(0xEE);
        }
        if round % 3 == 0 {
            while let Ok(len) = ends.socket.recv(&mut buffer) {
                arrived.push(ends.opened(buffer[..len].to_vec()).expect("each is sealed once"));
            }
        }
    }
    while ends.udp.room.is_backlog() {
        while let Ok(len) = ends.socket.recv(&mut buffer) {
            arrived.push(ends.opened(buffer[..len].to_vec()).expect("each is sealed once"));
        }
        ends.udp.flush();
    }
    while let Ok(len) = ends.socket.recv(&mut buffer) {
        arrived.push(ends.opened(buffer[..len].to_vec()).expect("each is sealed once"));
    }
    assert_eq!(arrived, sent);
    let stats = ends.udp.stats();
    assert!(stats.tx_kept > 20 && stats.tx_blocked > 20, "{stats:?}");
    assert_eq!((stats.tx_frames, stats.tx_dropped_error), (sent.len() as u64, 0));
}

#[test]
fn rx_burst__opens_lone_frames_and_bundles() {
    let mut ends = WithKeys::new(v4());
    let lone = ends.sealed(b"\x1Aalone");
    assert_eq!(ends.receive_one(&lone), [b"\x1Aalone"]);
    let bundle = ends.sealed(b"\x0F\x01\0\x1A\x02\0\x1B\x1C");
    assert_eq!(ends.receive_one(&bundle), [vec![0x1A], vec![0x1B, 0x1C]]);
    let stats = ends.udp.stats();
    assert_eq!((stats.rx_frames, stats.rx_datagrams, stats.rx_bytes), (3, 2, 9));
    for malformed in [&b"\x0F"[..], b"\x0F\x02\0\x1A", b"\x0Enested", b"\x0E"] {
        let datagram = ends.sealed(malformed);
        assert!(ends.receive_one(&datagram).is_empty());
    }
    let nested = ends.sealed(b"\x1Ainner");
    let nested = ends.sealed(&nested);
    assert!(ends.receive_one(&nested).is_empty());
    assert_eq!(ends.drops(), [0, 0, 0, 0, 5]);
}

#[test]
fn rx_burst__drops_replayed_and_changed_datagrams() {
    let mut ends = WithKeys::new(v4());
    let first = ends.sealed(b"\x1Afirst");
    let second = ends.sealed(b"\x1Asecond");
    for bit in 0..second.len() * 8 {
        let mut changed = second.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(ends.receive_one(&changed).is_empty(), "bit {bit}");
    }
    for len in 1..second.len() {
        assert!(ends.receive_one(&second[..len]).is_empty(), "{len} bytes");
    }
    let longer = [&second[..], b"\0"].concat();
    assert!(ends.receive_one(&longer).is_empty());
    let [plain, forged, replayed, unknown, malformed] = ends.drops();
    // The bits of the first byte, of the path, and of the number, of which some name an epoch without a key.
    assert_eq!((plain, unknown, replayed), (8, 24, 64 - 23));
    assert_eq!(malformed, OVERHEAD_BYTES as u64);
    let all = second.len() * 8 + second.len();
    assert_eq!(plain + forged + replayed + unknown + malformed, all as u64);
    // Late, but in time.
    assert_eq!(ends.receive_one(&second), [b"\x1Asecond"]);
    assert_eq!(ends.receive_one(&first), [b"\x1Afirst"]);
    let before = ends.drops();
    for datagram in [&first, &second] {
        assert!(ends.receive_one(datagram).is_empty());
    }
    assert_eq!(ends.drops()[2], before[2] + 2);
}

#[test]
fn rx_burst__drops_what_the_transport_has_sealed_itself() {
    let mut ends = WithKeys::new(v4());
    assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, b"\x1Aout")]), 0);
    let mut datagram = [0; 100];
    let len = ends.socket.recv(&mut datagram).unwrap();
    assert!(ends.receive_one(&datagram[..len]).is_empty());
    datagram[1..4].copy_from_slice(&PATHS[0].to_le_bytes()[..3]);
    assert!(ends.receive_one(&datagram[..len]).is_empty());
    assert_eq!(ends.drops(), [0, 1, 0, 1, 0], "another path, and another key");
}

#[test]
fn rx_burst__takes_sealed_datagrams_from_the_address_and_announced_ports_alone() {
    let mut ends = WithKeys::new(v4());
    let own = ends.socket.local_addr().unwrap();
    let [further, stranger] = [own.port() ^ 1, own.port() ^ 2].map(|port| (own.ip(), port).into());
    assert_eq!(ends.udp.accept_ports(ends.peer, &[9, own.port() ^ 1]).unwrap(), ends.peer);
    assert!(!ends.udp.association.is_made());
    let hear = |ends: &mut WithKeys, from: SocketAddr| {
        let datagram = ends.sealed(b"\x1Ahello");
        ends.udp.receiver.fill_with_any(&RawAddr::from(from), &datagram, None, 0);
        let mut heard = Heard::default();
        ends.udp.rx_burst_to(1, &mut heard);
        heard.0
    };
    assert_eq!(hear(&mut ends, own), [(0, b"\x1Ahello".to_vec(), false)]);
    assert_eq!(hear(&mut ends, further), [(2, b"\x1Ahello".to_vec(), false)]);
    assert!(hear(&mut ends, stranger).is_empty());
    assert_eq!(ends.drops(), [0, 0, 0, 1, 0]);
    // Another plain peer has the port as its own address.
    ends.udp.add_peer(UdpLink { sealed: None, ..UdpLink::to(further) }).unwrap();
    assert_eq!(hear(&mut ends, further), [(2, b"\x1Ahello".to_vec(), false)]);
    ends.udp.accept_ports(ends.peer, &[]).unwrap();
    assert!(hear(&mut ends, stranger).is_empty());
    let after = hear(&mut ends, own);
    assert_eq!(after.len(), 1, "one number for all ports");
}

#[test]
fn rx_burst__drops_plain_datagrams_of_a_sealed_address() {
    let mut ends = WithKeys::new(v4());
    assert!(ends.receive_one(b"\x1Aplain").is_empty());
    assert!(ends.receive(b"\x1Aplain\x1Bplain", 6).is_empty());
    assert!(ends.receive_one(b"\x0F\x01\0\x1A").is_empty());
    assert!(ends.receive_one(b"").is_empty());
    assert_eq!(ends.drops(), [5, 0, 0, 0, 0]);
    let stranger = SocketAddr::from(([127, 0, 0, 1], 9));
    assert!(ends.receive_from(stranger, b"\x1Aplain", 100).is_empty());
    let sealed = ends.sealed(b"\x1Asealed");
    assert!(ends.receive_from(stranger, &sealed, 100).is_empty());
    assert_eq!(ends.drops(), [5, 0, 0, 2, 0]);
    // The number of a dropped datagram is not used up.
    assert_eq!(ends.receive_one(&sealed), [b"\x1Asealed"]);
}

/// Joined datagrams of two sealed links and a plain one, of one address.
#[test]
fn rx_burst__of_a_train_keeps_links_apart() {
    for has_plain in [true, false] {
        let mut ends = WithKeys::new(v4());
        let addr = ends.socket.local_addr().unwrap();
        let [at_udp, at_socket] = sealed_link(2, [3, 4]);
        let other = ends.udp.add_peer(sealed_to(addr, at_udp)).unwrap();
        let mut other_sender = seal::Sender::new(3, at_socket.send, Epochs::STANDARD);
        let plain = has_plain.then(|| ends.udp.add_peer(UdpLink::to(addr)).unwrap());
        assert!(ends.udp.association.is_made(), "all have one address");
        let size = 20 + OVERHEAD_BYTES;
        let (mut train, mut expected, mut dropped) = (Vec::new(), Vec::new(), 0);
        for (nth, kind) in (0u8..).zip(b"ppsootsppposxsspo") {
            let contents = [0x20 + nth; 20];
            match kind {
                b's' => {
                    train.extend(ends.sealed(&contents));
                    expected.push((ends.peer, contents.to_vec()));
                }
                b'o' => {
                    let mut datagram = vec![0; size];
                    datagram[HEAD_BYTES..][..20].copy_from_slice(&contents);
                    other_sender.seal(&mut datagram);
                    train.extend(datagram);
                    expected.push((other, contents.to_vec()));
                }
                b'x' | b't' => {
                    let mut datagram = ends.sealed(&contents);
                    datagram[30] ^= 1;
                    train.extend(datagram);
                }
                _ => {
                    train.extend(vec![0x20 + nth; size]);
                    dropped += 1;
                    expected.extend(plain.map(|plain| (plain, vec![0x20 + nth; size])));
                }
            }
        }
        // A shorter last one.
        train.extend(ends.sealed(b"\x1Alast"));
        expected.push((ends.peer, b"\x1Alast".to_vec()));
        assert_eq!(ends.receive(&train, size), expected);
        let dropped = if has_plain { 0 } else { dropped };
        assert_eq!(ends.drops(), [dropped, 2, 0, 0, 0]);
        assert!(ends.receive(&train[..0], size).is_empty());
    }
}

#[test]
fn rx_burst__of_links_that_come_and_go() {
    let mut ends = WithKeys::new(v4());
    let addr = ends.socket.local_addr().unwrap();
    let plain = ends.udp.add_peer(UdpLink::to(addr)).unwrap();
    assert_ne!(plain, ends.peer);
    assert_eq!((ends.udp.source_of(plain), ends.udp.source_of(ends.peer)), (plain, ends.peer));
    assert_eq!(ends.receive(b"\x1Aplain", 100), [(plain, b"\x1Aplain".to_vec())]);
    let sealed = ends.sealed(b"\x1Asealed");
    assert_eq!(ends.receive(&sealed, 100), [(ends.peer, b"\x1Asealed".to_vec())]);
    ends.udp.remove_peer(plain);
    assert!(ends.receive(b"\x1Aplain", 100).is_empty());
    let plain = ends.udp.add_peer(UdpLink::to(addr)).unwrap();
    ends.udp.remove_peer(ends.peer);
    ends.udp.remove_peer(ends.peer);
    assert_eq!(ends.receive(b"\x1Aplain", 100), [(plain, b"\x1Aplain".to_vec())]);
    // Without a sealed link, its datagrams are frames of no known version.
    let sealed = ends.sealed(b"\x1Asealed");
    assert_eq!(ends.receive(&sealed, 100), [(plain, sealed.clone())]);
    ends.udp.remove_peer(plain);
    assert!(ends.receive(&sealed, 100).is_empty());
    assert_eq!(ends.drops(), [1, 0, 0, 1, 0]);
    assert_eq!(ends.udp.peer_count(), 0);
}

#[test]
fn remove_peer__drops_frames_that_are_not_sealed_yet() {
    for (size, has_other) in [(40, false), (3000, false), (40, true), (3000, true)] {
        let mut ends = WithKeys::new(v4());
        let addr = ends.socket.local_addr().unwrap();
        let other = has_other.then(|| ends.udp.add_peer(UdpLink::to(addr)).unwrap());
        let bytes = vec![0x1A; size];
        // SAFETY: the frames live until the flush.
        unsafe {
            assert!(ends.udp.push(ends.peer, &bytes, &[]) && ends.udp.push(ends.peer, &bytes, &[]));
            if let Some(other) = other {
                assert!(ends.udp.push(other, b"\x1Bother", &[]));
            }
        }
        ends.udp.remove_peer(ends.peer);
        // Another peer may have the id.
        let [again, _] = sealed_link(9, PATHS);
        assert_eq!(ends.udp.add_peer(sealed_to(addr, again)).unwrap(), ends.peer);
        ends.udp.flush();
        let stats = ends.udp.stats();
        assert_eq!((stats.tx_dropped_no_peer, stats.tx_frames), (2, has_other.into()));
        if has_other {
            let mut buffer = [0; 100];
            let len = ends.socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"\x1Bother");
        }
        ends.socket.set_nonblocking(true).unwrap();
        assert!(ends.socket.recv(&mut [0; 100]).is_err(), "nothing is sent in clear");
    }
}

#[test]
fn take_ended__after_too_many_forgeries() {
    let mut ends = WithKeys::new(v4());
    let addr = ends.socket.local_addr().unwrap();
    let key = || Box::new(TestKey::new(5).with_forgeries_max(3));
    let keys = SealedLink { local_path: 3, remote_path: 4, send: key(), receive: key() };
    let weak = ends.udp.add_peer(sealed_to(addr, keys)).unwrap();
    let mut sender = seal::Sender::new(3, key(), Epochs::STANDARD);
    let mut sealed = || {
        let mut datagram = vec![0x10; 50];
        sender.seal(&mut datagram);
        datagram
    };
    assert_eq!(ends.receive(&sealed(), 100).len(), 1);
    for count in 1..=3 {
        assert_eq!(ends.udp.take_ended(), None);
        let mut forged = sealed();
        forged[20] ^= 1;
        assert!(ends.receive(&forged, 100).is_empty());
        assert_eq!(ends.drops(), [0, count, 0, 0, 0]);
    }
    assert!(ends.receive(&sealed(), 100).is_empty(), "nothing is opened any more");
    assert_eq!((ends.udp.take_ended(), ends.udp.take_ended()), (Some(weak), None));
    let other = ends.sealed(b"\x1Aother");
    assert_eq!(ends.receive_one(&other), [b"\x1Aother"], "the other link goes on");
    ends.udp.remove_peer(weak);
}

#[test]
fn take_ended__before_numbers_are_used_up() {
    let mut ends = WithKeys::new(v4());
    ends.udp.peers.sender_of(ends.peer).unwrap().skip_to(NUMBER_END - (1 << 20) - 1);
    assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, b"\x1Alast")]), 0);
    assert_eq!((ends.udp.stats().tx_frames, ends.udp.take_ended()), (1, None));
    for count in 1..=2 {
        assert_eq!(ends.udp.tx_burst(&[frame(ends.peer, b"\x1Anone")]), 0);
        assert_eq!((ends.udp.stats().tx_frames, ends.udp.stats().tx_dropped_no_peer), (1, count));
    }
    assert_eq!((ends.udp.take_ended(), ends.udp.take_ended()), (Some(ends.peer), None));
}

#[test]
fn add_peer__of_a_sealed_link_connects_an_only_address() {
    let mut ends = WithKeys::new(v4());
    let addr = ends.socket.local_addr().unwrap();
    assert!(ends.udp.association.is_with(addr));
    let plain = ends.udp.add_peer(UdpLink::to(addr)).unwrap();
    assert!(ends.udp.association.is_with(addr));
    let elsewhere = SocketAddr::from(([127, 0, 0, 1], 9));
    let other = ends.udp.add_peer(sealed_to(elsewhere, sealed_link(2, [1, 2]).into())).unwrap();
    assert!(!ends.udp.association.is_made());
    ends.udp.remove_peer(other);
    assert!(ends.udp.association.is_with(addr));
    ends.udp.accept_ports(ends.peer, &[9]).unwrap();
    assert!(!ends.udp.association.is_made());
    ends.udp.remove_peer(plain);
    assert!(!ends.udp.association.is_made(), "the further port is another address");
    ends.udp.remove_peer(ends.peer);
    assert!(!ends.udp.association.is_made());
}

impl From<[SealedLink; 2]> for SealedLink {
    fn from([first, _]: [SealedLink; 2]) -> Self {
        first
    }
}

#[test]
fn add_peer__checks_a_sealed_link() {
    let mut ends = WithKeys::new(v4());
    let addr = ends.socket.local_addr().unwrap();
    for (paths, why) in [
        ([PATHS[0], 1], "path 1193046 is that of another sealed link"),
        ([PATH_END, 1], "24 bits"),
        ([1, PATH_END], "24 bits"),
    ] {
        let refused = ends.udp.add_peer(sealed_to(addr, sealed_link(2, paths).into()));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        assert_eq!(ends.udp.peer_count(), 1);
    }
    let group = "239.1.2.3:9".parse().unwrap();
    for refused in
        [ends.udp.open_group(group, ends.peer, 1).map(drop), ends.udp.join_group(group, ends.peer)]
    {
        assert!(refused.unwrap_err().to_string().contains("a sealed link has no groups"));
    }
    // The least frame must have room beside head and tag.
    for (mtu, is_enough) in [(1280, false), (1307, false), (1308, true)] {
        let mut udp = Udp::bind(UdpConfig { mtu: Mtu::Fixed(mtu), ..v4() }).unwrap();
        let added = udp.add_peer(sealed_to(addr, sealed_link(2, [1, 2]).into()));
        assert_eq!(added.is_ok(), is_enough, "{mtu}");
    }
    ends.udp.remove_peer(ends.peer);
    let [again, _] = sealed_link(2, PATHS);
    assert!(ends.udp.add_peer(sealed_to(addr, again)).is_ok(), "the path is free again");
}
