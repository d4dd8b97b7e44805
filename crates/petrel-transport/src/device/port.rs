//! The datagrams of one UDP port over a network device: heads in front of sent ones, and a look at the heads of received ones.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ops::Range;

use super::ether::frame::{Checksum, MacAddr, Parsed, Refusal, Template, parse, parse_summed};
use super::ether::ways::{Changes, Neighbour, NoWay, Way, Ways};
use super::{Judgement, Nic};
use crate::link::{PeerId, TransportStats};
use crate::transport::RX_BURST_MAX;

/// Bytes of a frame's head that are not part of the IP packet.
const ETHERNET_BYTES: usize = 14;

/// Finds the ways to peers: in the kernel's tables, or in those of a simulator.
pub(crate) trait FindWays {
    /// Returns the way over the device to a peer, or the reason why there is none.
    fn way_to(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Result<Way, NoWay>;

    /// Returns the changes since the last call.
    fn read_events(&mut self) -> Changes;

    /// Returns true if datagrams between loopback addresses may come by the device, which then joins processes of a host.
    fn carries_loopback(&self) -> bool {
        false
    }
}

impl FindWays for Ways {
    fn way_to(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Result<Way, NoWay> {
        Ways::way_to(self, from, to)
    }

    fn read_events(&mut self) -> Changes {
        Ways::read_events(self)
    }
}

/// The address of a peer to send to.
pub(crate) struct Destination {
    pub(crate) addr: SocketAddr,
    /// The address to send from, if it is not the kernel's choice.
    pub(crate) source: Option<IpAddr>,
}

/// Datagrams of one message.
pub(crate) struct Datagrams<I> {
    /// The bytes, cut anywhere.
    pub(crate) pieces: I,
    pub(crate) bytes: usize,
    /// Bytes of every datagram but the last, which may have fewer.
    pub(crate) segment_bytes: usize,
    pub(crate) source_port: u16,
    pub(crate) is_ecn: bool,
}

/// The exit of a peer's datagrams, and the state of the kernel's tables when they were asked.
struct Exit {
    generation: u32,
    /// `None`: no way leads over the device.
    head: Option<Box<Head>>,
}

/// The exit of a peer whose way is unknown.
const UNKNOWN: Exit = Exit { generation: 0, head: None };

/// Most questions about ways between two looks at the changes, some 10 ms: a question takes several µs.
const QUESTIONS_MAX: u32 = 64;

/// Peers whose ways are asked anew after a look, in turn: the kernel does not tell of a smaller MTU behind routers.
const REFRESHED: usize = 4;

/// A peer's way over the device.
struct Head {
    template: Template,
    /// The kernel sends larger datagrams, or refuses them.
    datagram_bytes_max: usize,
    next_hop: IpAddr,
    mac: MacAddr,
}

/// The oldest received datagram.
struct Current {
    from: SocketAddr,
    /// The place of the bytes in the frame.
    payload: Range<usize>,
    is_marked: bool,
}

/// See the [module](self).
pub(crate) struct Port<N, W> {
    nic: N,
    ways: W,
    local: SocketAddr,
    /// The device's number, which is the scope of link-local addresses.
    scope: u32,
    /// By [`PeerId`].
    exits: Vec<Exit>,
    /// The state of the kernel's tables; not 0.
    generation: u32,
    questions: u32,
    /// The next peer to refresh.
    refreshed: usize,
    /// The device has not taken all queued frames.
    has_unsent: bool,
    /// The device had no room for the last messages.
    is_full: bool,
    current: Option<Current>,
}

impl<N: Nic, W: FindWays> Port<N, W> {
    pub(crate) fn new(nic: N, ways: W, local: SocketAddr, scope: u32) -> Self {
        Self {
            nic,
            ways,
            local,
            scope,
            exits: Vec::new(),
            generation: 1,
            questions: QUESTIONS_MAX,
            refreshed: 0,
            has_unsent: false,
            is_full: false,
            current: None,
        }
    }

    pub(crate) fn nic(&self) -> &N {
        &self.nic
    }

    pub(crate) fn nic_mut(&mut self) -> &mut N {
        &mut self.nic
    }

    /// The largest packets that the device carries, in bytes of IP packet.
    pub(crate) fn packet_bytes_max(&self) -> usize {
        self.nic.frame_bytes_max() - ETHERNET_BYTES
    }

    /// Returns true if datagrams of `bytes` bytes to the peer go by the device. `address` is that of a peer, or `None`.
    #[inline]
    pub(crate) fn reaches(
        &mut self,
        peer: PeerId,
        bytes: usize,
        address: impl FnOnce() -> Option<Destination>,
    ) -> bool {
        match self.exits.get(peer.0 as usize) {
            Some(Exit { generation, head }) if *generation == self.generation => {
                head.as_ref().is_some_and(|head| bytes <= head.datagram_bytes_max)
            }
            _ => self.look_up(peer, bytes, address()),
        }
    }

    /// Asks for the way to a peer, if there were few questions lately. Otherwise the former way counts.
    #[cold]
    fn look_up(&mut self, peer: PeerId, bytes: usize, to: Option<Destination>) -> bool {
        // The number of no peer may be any.
        let Some(to) = to else { return false };
        let place = peer.0 as usize;
        if self.exits.len() <= place {
            self.exits.resize_with(place + 1, || UNKNOWN);
        }
        if self.questions > 0 {
            self.questions -= 1;
            let bound = Some(self.local.ip()).filter(|ip| !ip.is_unspecified());
            let way = self.ways.way_to(to.source.or(bound), to.addr);
            let head = way.ok().map(|way| Box::new(self.head_of(&way, to.addr)));
            self.exits[place] = Exit { generation: self.generation, head };
        }
        let head = &self.exits[place].head;
        head.as_ref().is_some_and(|head| bytes <= head.datagram_bytes_max)
    }

    fn head_of(&self, way: &Way, to: SocketAddr) -> Head {
        let template = Template::new(way.from_ip, to, way.from_mac, way.to_mac);
        let packet_bytes_max = self.packet_bytes_max().min(way.mtu_bytes);
        let datagram_bytes_max =
            packet_bytes_max.saturating_sub(template.head_bytes() - ETHERNET_BYTES);
        Head { template, datagram_bytes_max, next_hop: way.next_hop, mac: way.to_mac }
    }

    /// Forgets the way to a peer that was removed.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        if let Some(exit) = self.exits.get_mut(peer.0 as usize) {
            *exit = UNKNOWN;
        }
    }

    /// Reads the changes of the kernel's tables. The ways that they touch are asked anew, as are those of a few peers in turn.
    pub(crate) fn follow_changes(&mut self) -> Changes {
        let changes = self.ways.read_events();
        self.questions = QUESTIONS_MAX;
        if changes.must_ask_again {
            self.generation = self.generation.wrapping_add(1).max(1);
        }
        for exit in self.exits.iter_mut().filter(|_| !changes.neighbours.is_empty()) {
            let touches = |near: &Neighbour| match &exit.head {
                Some(head) => near.ip == head.next_hop && near.mac != Some(head.mac),
                // Perhaps the next hop is known now.
                None => true,
            };
            if changes.neighbours.iter().any(touches) {
                *exit = UNKNOWN;
            }
        }
        for _ in 0..REFRESHED.min(self.exits.len()) {
            self.refreshed = (self.refreshed + 1) % self.exits.len();
            self.exits[self.refreshed].generation = 0;
        }
        changes
    }

    /// Queues a message's datagrams for a peer that the device [reaches](Port::reaches). Returns false, with none of them queued, if there is no
    /// room for all.
    pub(crate) fn send<'a, I>(&mut self, to: PeerId, datagrams: Datagrams<I>) -> bool
    where
        I: Iterator<Item = &'a [u8]>,
    {
        let Datagrams { mut pieces, bytes, segment_bytes, source_port, is_ecn } = datagrams;
        let Some(Exit { head: Some(head), .. }) = self.exits.get(to.0 as usize) else {
            panic!("the device reaches the peer")
        };
        if !self.nic.has_room(bytes.div_ceil(segment_bytes)) {
            return false;
        }
        let completes_sums = self.nic.completes_sums();
        let (template, mut rest, mut piece) = (&head.template, bytes, &[][..]);
        while rest > 0 {
            let datagram_bytes = segment_bytes.min(rest);
            rest -= datagram_bytes;
            let frame = self.nic.begin().expect("there is room for all");
            let mut payload = &mut frame[template.head_bytes()..][..datagram_bytes];
            while !payload.is_empty() {
                if piece.is_empty() {
                    piece = pieces.next().expect("the pieces have the message's bytes");
                }
                let count = piece.len().min(payload.len());
                let (now, later) = payload.split_at_mut(count);
                now.copy_from_slice(&piece[..count]);
                (piece, payload) = (&piece[count..], later);
            }
            let frame_bytes = match completes_sums {
                true => template.write_partial(frame, datagram_bytes, source_port, is_ecn),
                false => template.write(frame, datagram_bytes, source_port, is_ecn),
            };
            self.nic.commit(frame_bytes);
        }
        true
    }

    /// Lets the device send what is queued. Returns the number of system calls.
    pub(crate) fn flush(&mut self) -> u64 {
        let calls = self.nic.flush();
        self.has_unsent = self.nic.has_unsent();
        calls
    }

    /// Returns true if the device has not taken all queued frames, and is to be [flushed](Port::flush) again.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.has_unsent
    }

    /// Returns true if messages wait for room in the device.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Notes whether messages wait for room in the device.
    #[inline]
    pub(crate) fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Looks for a received datagram, and drops frames that carry none for this port. Returns true if a datagram is there.
    #[inline]
    pub(crate) fn poll(&mut self, stats: &mut TransportStats) -> bool {
        // The frames of a flood that are dropped here are work, too.
        for _ in 0..RX_BURST_MAX {
            if self.current.is_some() {
                return true;
            }
            let Some((frame, judgement)) = self.nic.received_judged() else { return false };
            let parsed = match judgement {
                Judgement::Unknown => parse(frame),
                Judgement::Right => parse_summed(frame),
                Judgement::Wrong => Err(Refusal::UdpChecksum),
            };
            match parsed {
                Ok(parsed) if self.is_for_port(&parsed) => self.accept(parsed, stats),
                Err(Refusal::UdpChecksum | Refusal::IpChecksum | Refusal::NoChecksum) => {
                    self.nic.release();
                    stats.rx_dropped_checksum += 1;
                }
                _ => {
                    self.nic.release();
                    stats.rx_dropped_malformed += 1;
                }
            }
        }
        self.current.is_some()
    }

    /// Returns true for a datagram to this port from an address that may be a peer's: a kernel drops the others as martians.
    #[inline]
    fn is_for_port(&self, parsed: &Parsed) -> bool {
        let is_possible = match parsed.from_ip {
            IpAddr::V4(ip) => !(ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified()),
            IpAddr::V6(ip) => {
                !(ip.is_multicast() || ip.is_unspecified() || ip.to_ipv4_mapped().is_some())
            }
        };
        let is_possible =
            is_possible && (!parsed.from_ip.is_loopback() || self.ways.carries_loopback());
        parsed.to_port == self.local.port() && is_possible && parsed.from_ip != self.local.ip()
    }

    #[inline]
    fn accept(&mut self, parsed: Parsed, stats: &mut TransportStats) {
        stats.rx_device_datagrams += 1;
        stats.rx_partial_checksum += u64::from(parsed.checksum == Checksum::Partial);
        let from = match parsed.from() {
            SocketAddr::V4(v4) if self.local.is_ipv6() => {
                (v4.ip().to_ipv6_mapped(), v4.port()).into()
            }
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
                SocketAddrV6::new(*v6.ip(), v6.port(), 0, self.scope).into()
            }
            from => from,
        };
        let Parsed { payload, is_marked, .. } = parsed;
        self.current = Some(Current { from, payload, is_marked });
    }

    /// Returns true if a frame waits, with a datagram for this port or without.
    pub(crate) fn has_received(&mut self) -> bool {
        self.current.is_some() || self.nic.has_received()
    }

    /// The sender and the bytes of the oldest datagram.
    ///
    /// # Panics
    /// When no datagram is there.
    #[inline]
    pub(crate) fn current(&mut self) -> (SocketAddr, &mut [u8]) {
        let Current { from, payload, .. } = self.current.as_ref().expect("a datagram is there");
        let frame = self.nic.received().expect("the datagram's frame is not released");
        (*from, &mut frame[payload.clone()])
    }

    /// Returns true if the oldest datagram met congestion.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.is_marked)
    }

    /// Notes that the oldest datagram is delivered.
    #[inline]
    pub(crate) fn skip(&mut self) {
        assert!(self.current.take().is_some(), "a datagram is there");
        self.nic.release();
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulated::Simulated;
    use super::*;
    use crate::device::ether::ways::Link;

    const OWN: &str = "10.0.0.1:700";

    /// Answers every question, and counts the questions.
    struct Known {
        questions: u32,
        changes: Changes,
    }

    impl FindWays for Known {
        fn way_to(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Result<Way, NoWay> {
            self.questions += 1;
            let (mac, next_hop) = (MacAddr([2; 6]), to.ip());
            let from_ip = from.expect("the port has an address");
            Ok(Way { from_mac: mac, to_mac: mac, from_ip, next_hop, mtu_bytes: 1_500 })
        }

        fn read_events(&mut self) -> Changes {
            self.changes.clone()
        }
    }

    fn port() -> Port<Simulated, Known> {
        let changes = Changes { must_ask_again: false, neighbours: Vec::new(), link: Link::Up };
        let ways = Known { questions: 0, changes };
        Port::new(Simulated::new(1), ways, OWN.parse().unwrap(), 1)
    }

    fn to(number: u32) -> Option<Destination> {
        let ip = IpAddr::from(((10 << 24) + 2 + number).to_be_bytes());
        Some(Destination { addr: (ip, 9).into(), source: None })
    }

    #[test]
    fn reaches__peers_by_the_mtu_and_no_number_without_a_peer() {
        let mut port = port();
        assert!(port.reaches(PeerId(3), 1_472, || to(3)));
        assert!(!port.reaches(PeerId(3), 1_473, || to(3)));
        assert!(port.reaches(PeerId(3), 1, || panic!("the way is known")));
        for number in [4, u32::MAX - 1, u32::MAX] {
            assert!(!port.reaches(PeerId(number), 40, || None));
        }
        assert_eq!((port.exits.len(), port.ways.questions), (4, 1));
    }

    #[test]
    fn follow_changes__asks_few_questions_a_look_and_uses_former_ways_meanwhile() {
        let mut port = port();
        let all = 3 * QUESTIONS_MAX;
        for look in 1..=3 {
            (0..all).for_each(|peer| _ = port.reaches(PeerId(peer), 40, || to(peer)));
            assert_eq!(port.ways.questions, look * QUESTIONS_MAX);
            port.follow_changes();
        }
        // Refreshes took some of the questions.
        assert!((0..all).all(|peer| port.reaches(PeerId(peer), 40, || to(peer))));
        port.ways.changes.must_ask_again = true;
        port.follow_changes();
        port.ways.changes.must_ask_again = false;
        let before = port.ways.questions;
        assert!((0..all).all(|peer| port.reaches(PeerId(peer), 40, || to(peer))));
        assert_eq!(port.ways.questions - before, QUESTIONS_MAX);
    }

    #[test]
    fn follow_changes__forgets_the_way_by_a_neighbour_with_another_address() {
        let mut port = port();
        assert!(port.reaches(PeerId(0), 40, || to(0)));
        let near = |mac| Neighbour { ip: to(0).unwrap().addr.ip(), mac };
        for (mac, is_asked) in
            [(Some(MacAddr([2; 6])), false), (Some(MacAddr([4; 6])), true), (None, true)]
        {
            (port.ways.changes.neighbours, port.ways.questions) = (vec![near(mac)], 0);
            port.follow_changes();
            port.ways.changes.neighbours.clear();
            // A refresh in turn counts as another question.
            port.exits[0].generation =
                if is_asked { port.exits[0].generation } else { port.generation };
            assert!(port.reaches(PeerId(0), 40, || to(0)));
            assert_eq!(port.ways.questions, u32::from(is_asked), "{mac:?}");
        }
    }

    #[test]
    fn poll__takes_datagrams_for_the_port_from_possible_senders_and_counts_the_others() {
        let (mut port, mut stats) = (port(), TransportStats::default());
        let own: SocketAddr = OWN.parse().unwrap();
        let foreign = (own.ip(), 701).into();
        for (from, to) in [
            ("127.0.0.1:5", own),
            ("224.0.0.9:5", own),
            ("0.0.0.0:5", own),
            (OWN, own),
            ("10.0.0.2:5", foreign),
            ("10.0.0.2:5", own),
        ] {
            port.nic_mut().arrive(from.parse().unwrap(), to, b"datagram", false);
        }
        assert!(port.poll(&mut stats));
        let (from, bytes) = port.current();
        assert_eq!((from, &*bytes), ("10.0.0.2:5".parse().unwrap(), &b"datagram"[..]));
        port.skip();
        assert!(!port.poll(&mut stats));
        assert_eq!((stats.rx_dropped_malformed, stats.rx_device_datagrams), (5, 1));
    }
}
