//! Further source ports: from the plan to the handler of the other end.

use std::collections::HashMap;
use std::fs;

use super::ecn::{CE, configs, set_codepoint};
use super::*;
use crate::clock::Clock;
use crate::transport::{FrameHandler, NoReturn};

/// Received frames in order, with their source and their mark.
#[derive(Default)]
pub(super) struct Heard(pub(super) Vec<(u8, Vec<u8>, bool)>);

impl FrameHandler<NoReturn> for &mut Heard {
    fn handle(&mut self, _peer: PeerId, frame: &[u8], _back: Option<&mut NoReturn>) {
        self.0.push((0, frame.to_vec(), false));
    }

    fn handle_marked(&mut self, _peer: PeerId, frame: &[u8]) {
        self.0.push((0, frame.to_vec(), true));
    }

    fn handle_from(&mut self, _peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
        self.0.push((source, frame.to_vec(), is_marked));
    }
}

/// A transport that sends every frame from its first further source port.
pub(super) struct Sideways(Udp);

impl Transport for Sideways {
    type Link = UdpLink;
    type Return = NoReturn;

    fn now(&self) -> u64 {
        self.0.now()
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }

    fn add_peer(&mut self, link: UdpLink) -> Result<PeerId, LinkError> {
        self.0.add_peer(link)
    }

    fn remove_peer(&mut self, peer: PeerId) {
        self.0.remove_peer(peer);
    }

    fn source_of(&self, peer: PeerId) -> PeerId {
        self.0.source_of(peer)
    }

    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.0.max_frame_bytes(peer)
    }

    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: by the function's contract.
        unsafe { self.0.push_from(1, peer, head, body) }
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, handler: H) -> usize {
        self.0.rx_burst_to(budget, handler)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        self.0.wait(timeout_ns);
    }

    fn waker(&self) -> Waker {
        self.0.waker()
    }

    fn stats(&self) -> TransportStats {
        self.0.stats()
    }
}

/// The transports of another harness, which send from further ports.
pub(super) struct FromFurtherPorts<L>(pub(super) L);

impl<L: Harness<T = Udp>> Harness for FromFurtherPorts<L> {
    type T = Sideways;

    fn medium(&self) -> Medium {
        self.0.medium()
    }

    fn star(&mut self) -> Star<Sideways> {
        let Star { mut hub, peers, leaves } = self.0.star();
        let ports = hub.further_ports().to_vec();
        let mut both = leaves.into_iter().zip(peers).map(|(mut leaf, peer)| {
            let at_hub = hub.accept_ports(peer, leaf.transport.further_ports()).unwrap();
            let peer = leaf.transport.accept_ports(leaf.peer, &ports).unwrap();
            (End { transport: Sideways(leaf.transport), peer }, at_hub)
        });
        let [(one, at_one), (other, at_other)] = [both.next().unwrap(), both.next().unwrap()];
        Star { hub: Sideways(hub), peers: [at_one, at_other], leaves: [one, other] }
    }
}

pub(super) fn several(ip: &str, further_ports: u8) -> UdpConfig {
    UdpConfig { further_ports, ..bind_to(ip) }
}

#[test]
fn conformance__from_a_further_port() {
    for (config, ecn) in [
        (several("127.0.0.1", 1), [false; 2]),
        (several("::1", 2), [true; 2]),
        (UdpConfig { gso: false, gro: false, ..several("127.0.0.1", 1) }, [true, false]),
    ] {
        let mut harness = FromFurtherPorts(Loopback { config, ecn });
        conformance::run_all(&mut harness);
        conformance::run_threaded(&mut harness);
    }
}

/// Two transports with links to each other; the second accepts the ports of the first.
fn pair(config: &UdpConfig) -> [End<Udp>; 2] {
    let [mut first, mut second] = [(); 2].map(|()| Udp::bind(config.clone()).unwrap());
    let peers = [first.add_peer(link(&second)).unwrap(), second.add_peer(link(&first)).unwrap()];
    let accepted = second.accept_ports(peers[1], first.further_ports()).unwrap();
    [End { transport: first, peer: peers[0] }, End { transport: second, peer: accepted }]
}

/// Receives this number of frames.
fn hear(udp: &mut Udp, count: usize) -> Vec<(u8, Vec<u8>, bool)> {
    let mut heard = Heard::default();
    while heard.0.len() < count {
        udp.wait(Some(30_000_000_000));
        assert!(udp.rx_burst_to(64, &mut heard) > 0, "{} of {count} frames", heard.0.len());
    }
    heard.0
}

#[test]
fn push_from__frames_have_the_number_of_their_port_and_its_order() {
    for config in [
        several("127.0.0.1", 3),
        several("::1", 31),
        UdpConfig { gso: false, ..several("127.0.0.1", 3) },
    ] {
        let ports = usize::from(config.further_ports) + 1;
        let [mut from, mut to] = pair(&config);
        for len in [40, 3_000] {
            let frames: Vec<_> = (0..60u8).map(|number| vec![0x10 + number; len]).collect();
            for (number, frame) in frames.iter().enumerate() {
                let (source, (head, body)) = ((number * 7 % ports) as u8, frame.split_at(16));
                // SAFETY: the frames live until the flush.
                assert!(unsafe { from.transport.push_from(source, from.peer, head, body) });
            }
            from.transport.flush();
            let mut expected: HashMap<u8, Vec<Vec<u8>>> = HashMap::new();
            for (number, frame) in frames.iter().enumerate() {
                expected.entry((number * 7 % ports) as u8).or_default().push(frame.clone());
            }
            let mut got: HashMap<u8, Vec<Vec<u8>>> = HashMap::new();
            for (source, frame, is_marked) in hear(&mut to.transport, frames.len()) {
                assert!(!is_marked);
                got.entry(source).or_default().push(frame);
            }
            assert_eq!(got, expected);
        }
        let calls = from.transport.stats().tx_syscalls as usize;
        let per_burst = if config.gso { 1 } else { 2 };
        assert!(calls <= 2 * per_burst * ports, "{calls} calls for two bursts from {ports} ports");
        assert_eq!(to.transport.stats().rx_dropped_unknown_peer, 0);
    }
}

/// Sends a frame from the only further port, and returns true if it is delivered rather than dropped.
fn is_heard(from: &mut End<Udp>, to: &mut Udp) -> bool {
    let before = to.stats().rx_dropped_unknown_peer;
    // SAFETY: the frame is static.
    assert!(unsafe { from.transport.push_from(1, from.peer, b"\x1Ahello", &[]) });
    from.transport.flush();
    let mut heard = Heard::default();
    while heard.0.is_empty() && to.stats().rx_dropped_unknown_peer == before {
        to.wait(Some(30_000_000_000));
        to.rx_burst_to(64, &mut heard);
    }
    heard.0 == [(1, b"\x1Ahello".to_vec(), false)]
}

#[test]
fn accept_ports__a_list_counts_as_long_as_its_link() {
    let [mut from, mut to] = pair(&several("127.0.0.1", 1));
    let ports = from.transport.further_ports().to_vec();
    // Two other peers: a socket connected to an only peer hears no strangers.
    for port in [9, 10] {
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        to.transport.add_peer(UdpLink::to(addr)).unwrap();
    }
    assert!(is_heard(&mut from, &mut to.transport));
    assert_eq!(to.transport.accept_ports(to.peer, &ports).unwrap(), to.peer, "its own list");
    let other = to.transport.add_peer(link(&from.transport)).unwrap();
    let other = to.transport.accept_ports(other, &[9]).unwrap();
    assert_ne!(other, to.peer);
    assert!(is_heard(&mut from, &mut to.transport), "another list takes nothing away");
    let again = to.transport.add_peer(link(&from.transport)).unwrap();
    assert_eq!(to.transport.accept_ports(again, &ports).unwrap(), to.peer, "the same list");
    to.transport.remove_peer(to.peer);
    assert!(is_heard(&mut from, &mut to.transport), "a link is left");
    to.transport.remove_peer(to.peer);
    assert!(!is_heard(&mut from, &mut to.transport));
    to.transport.remove_peer(other);
    to.transport.add_peer(link(&from.transport)).unwrap();
    assert!(!is_heard(&mut from, &mut to.transport), "the new link announced none");
    let many = to.transport.accept_ports(to.peer, &[9; 32]).unwrap_err();
    assert!(many.to_string().contains("32 further source ports"), "{many}");
}

#[test]
fn accept_ports__a_port_of_several_addresses_is_heard_for_each() {
    let mut udp = Udp::bind(v4()).unwrap();
    let plain = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let addr = |nth: usize| plain[nth].local_addr().unwrap();
    let add = |udp: &mut Udp, nth| udp.add_peer(UdpLink::to(addr(nth))).unwrap();
    let (first, second) = (add(&mut udp, 0), add(&mut udp, 1));
    let shared = addr(2).port();
    let first = udp.accept_ports(first, &[shared]).unwrap();
    // A second link of the first address, with another order of the same port.
    let third = add(&mut udp, 0);
    udp.accept_ports(third, &[9, shared]).unwrap();
    udp.accept_ports(second, &[9, 10, shared, addr(0).port()]).unwrap();
    let hear_from = |udp: &mut Udp, nth: usize, count: usize| {
        plain[nth].send_to(b"\x1Ahello", udp.local_addr()).unwrap();
        hear(udp, count).into_iter().map(|(source, ..)| source).collect::<Vec<_>>()
    };
    assert_eq!(hear_from(&mut udp, 2, 2), [1, 3], "of one address, the first list counts");
    assert_eq!(hear_from(&mut udp, 0, 2), [4, 0], "as the port of its own address, too");
    udp.remove_peer(first);
    assert_eq!(hear_from(&mut udp, 2, 2), [2, 3], "the first list has gone, and nothing else");
}

/// All processes of an address may name a port: frames from there are not delivered without end.
#[test]
fn accept_ports__of_one_port_by_many_addresses() {
    let mut udp = Udp::bind(v4()).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    for number in 1..=40 {
        let addr = SocketAddr::from(([127, 0, 0, 1], number));
        let link = UdpLink::to(addr);
        let peer = udp.add_peer(link).unwrap();
        udp.accept_ports(peer, &[port]).unwrap();
    }
    socket.send_to(b"\x1Ahello", udp.local_addr()).unwrap();
    assert_eq!(hear(&mut udp, 1).len(), 16);
}

#[test]
fn rx_burst__tells_of_marks_on_frames_from_further_ports() {
    for config in configs() {
        let mut udp = Udp::bind(config.clone()).unwrap();
        let ip = config.bind.ip();
        let [own, further] = [(); 2].map(|()| UdpSocket::bind((ip, 0)).unwrap());
        let addr = own.local_addr().unwrap();
        let peer = udp.add_peer(UdpLink { ecn: true, ..UdpLink::to(addr) }).unwrap();
        udp.accept_ports(peer, &[further.local_addr().unwrap().port()]).unwrap();
        set_codepoint(&further, CE);
        // Of lone datagrams the mark of one in five is read.
        let marked = (0..10).filter(|_| {
            further.send_to(b"\x1Ahello", udp.local_addr()).unwrap();
            let heard = hear(&mut udp, 1).remove(0);
            assert_eq!((heard.0, &heard.1[..]), (1, &b"\x1Ahello"[..]));
            heard.2
        });
        assert!(marked.count() > 0);
        assert!(udp.stats().rx_marked > 0);
    }
}

#[test]
fn flush__keeps_frames_for_which_a_further_port_has_no_room() {
    let config = UdpConfig { gso: false, mtu: Mtu::Fixed(4000), ..several("127.0.0.1", 2) };
    let mut udp = Udp::bind(config).unwrap();
    let addr = "127.0.0.1:9".parse().unwrap();
    let peer = udp.add_peer(UdpLink::to(addr)).unwrap();
    let [near, far] = local_pair();
    udp.further.replace_socket(1, near);
    let mut sent: Vec<Vec<u8>> = Vec::new();
    while udp.stats().tx_kept == 0 {
        let mut frame = vec![0x10 + sent.len() as u8; 3000];
        sent.push(frame.clone());
        // SAFETY: the frame changes only after the flush.
        assert!(unsafe { udp.push_from(2, peer, &frame[..1], &frame[1..]) });
        udp.flush();
        frame.fill(0xEE);
    }
    // SAFETY: the frames are static.
    unsafe {
        assert!(!udp.push_from(2, peer, b"\x1Arefused", &[]), "behind a backlog");
        assert!(udp.push_from(1, peer, b"\x1Aother port", &[]) && udp.push(peer, b"\x1Aown", &[]));
    }
    udp.flush();
    let mut buffer = [0; 5000];
    let mut arrived: Vec<Vec<u8>> = Vec::new();
    let reader = far.try_clone().unwrap();
    let mut read = || {
        std::iter::from_fn(|| reader.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec()))
            .collect::<Vec<_>>()
    };
    arrived.extend(read());
    udp.wait(None);
    assert_eq!(udp.rx_burst(0, |_, _| {}), 0);
    arrived.extend(read());
    assert_eq!(arrived, sent);
    assert_eq!(udp.stats().tx_blocked, 1);
    // SAFETY: the frame is static.
    assert!(unsafe { udp.push_from(2, peer, b"\x1Aagain", &[]) });
    udp.flush();
    assert_eq!(read(), [b"\x1Aagain"]);
}

/// Returns the bytes that wait in the socket of an IPv4 port, by the kernel's table.
fn waiting_bytes(port: u16) -> u64 {
    let table = fs::read_to_string("/proc/net/udp").unwrap();
    let local = format!(":{port:04X}");
    let line = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = line.into_iter().find(|words| words.get(1).is_some_and(|at| at.ends_with(&local)));
    let queues = line.expect("the port has a socket")[4].split_once(':').unwrap();
    u64::from_str_radix(queues.1, 16).unwrap()
}

#[test]
fn further_ports__keep_no_datagrams_and_are_free_again_afterwards() {
    let udp = Udp::bind(several("127.0.0.1", 2)).unwrap();
    let ports = udp.further_ports().to_vec();
    assert!(ports.len() == 2 && !ports.contains(&udp.local_addr().port()));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for port in &ports {
        stranger.send_to(b"\x1Ahello", ("127.0.0.1", *port)).unwrap();
        assert_eq!(waiting_bytes(*port), 0);
    }
    stranger.send_to(b"\x1Ahello", udp.local_addr()).unwrap();
    assert!(waiting_bytes(udp.local_addr().port()) > 0);
    drop(udp);
    for port in ports {
        UdpSocket::bind(("127.0.0.1", port)).unwrap();
    }
}

#[test]
fn bind__refuses_more_ports_than_a_session_has_paths() {
    let many = Udp::bind(several("127.0.0.1", 32));
    assert!(matches!(many, Err(UdpError::TooManyPorts { configured: 32 })));
}

panics! {
    push_from__a_port_that_is_not_there: "index out of bounds" => {
        let [mut from, _to] = pair(&several("127.0.0.1", 1));
        // SAFETY: the frame is static.
        unsafe { from.transport.push_from(2, from.peer, b"\x1Ahello", &[]) };
    };
}
