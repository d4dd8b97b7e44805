//! Neighbours on a port that the kernel has not: questions and answers by ARP (RFC 826) and Neighbour Discovery (RFC 4861).
//!
//! Messages are believed, as by the kernel: a sender of frames on the network can take any address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::ether::frame::MacAddr;
use super::super::ether::sum::Sum;

/// Time between two questions for an address.
const PAUSE_NS: u64 = 200_000_000;

/// Age of an answer from which on the address is asked for again.
const STALE_NS: u64 = 20_000_000_000;

/// Age of an answer that is used no more.
const LOST_NS: u64 = 60_000_000_000;

/// Most addresses that are known or asked for.
const NEIGHBOURS_MAX: usize = 4096;

const ETHERNET_BYTES: usize = 14;
const ARP_BYTES: usize = 28;
const V6_BYTES: usize = 40;
/// A solicitation or advertisement with the link-layer address as its only option.
const ND_BYTES: usize = 32;

const TYPE_ARP: [u8; 2] = [0x08, 0x06];
const TYPE_V6: [u8; 2] = [0x86, 0xdd];
/// Ethernet, IPv4, and the lengths of both addresses.
const ARP_HEAD: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ICMP_V6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Solicited, and to override older ones.
const ADVERTISED: u8 = 0x60;
/// Messages of Neighbour Discovery come from the same link.
const HOPS: u8 = 255;

/// A neighbour that was asked for.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    mac: Option<MacAddr>,
    heard_ns: u64,
    asked_ns: Option<u64>,
}

/// The result of [`Neighbours::find`].
#[derive(Debug)]
pub(super) struct Found {
    pub(super) mac: Option<MacAddr>,
    /// A question to send.
    pub(super) question: Option<Vec<u8>>,
}

/// The neighbours of a port.
#[derive(Debug)]
pub(super) struct Neighbours {
    mac: MacAddr,
    /// The addresses of this host on the port.
    own: Vec<IpAddr>,
    known: HashMap<IpAddr, Neighbour>,
    /// Counts the changes.
    version: u32,
}

/// A message from a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    is_question: bool,
    from_ip: IpAddr,
    from_mac: MacAddr,
    /// The address that is asked for, or the receiver's.
    target: IpAddr,
}

impl Neighbours {
    pub(super) fn new(mac: MacAddr) -> Self {
        Self { mac, own: Vec::new(), known: HashMap::new(), version: 0 }
    }

    /// Adds an address for which the port answers.
    pub(super) fn answer_for(&mut self, ip: IpAddr) {
        if !self.own.contains(&ip) {
            self.own.push(ip);
        }
    }

    /// Answers for these addresses alone. Other addresses of endpoints come back with their next question.
    pub(super) fn answer_for_these_alone(&mut self, own: Vec<IpAddr>) {
        self.own = own;
    }

    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// Returns the address of a neighbour, and perhaps a question from the own address `from`.
    pub(super) fn find(&mut self, from: IpAddr, to: IpAddr, now_ns: u64) -> Found {
        if self.known.len() >= NEIGHBOURS_MAX && !self.known.contains_key(&to) {
            self.known.retain(|_, near| now_ns < near.heard_ns + LOST_NS);
            if self.known.len() >= NEIGHBOURS_MAX {
                return Found { mac: None, question: None };
            }
        }
        let none = Neighbour { mac: None, heard_ns: now_ns, asked_ns: None };
        let near = self.known.entry(to).or_insert(none);
        let age_ns = now_ns.saturating_sub(near.heard_ns);
        if age_ns > LOST_NS {
            near.mac = None;
        }
        let is_wanted = near.mac.is_none() || age_ns > STALE_NS;
        let is_due = near.asked_ns.is_none_or(|asked| now_ns >= asked + PAUSE_NS);
        if !(is_wanted && is_due) {
            return Found { mac: near.mac, question: None };
        }
        near.asked_ns = Some(now_ns);
        let (mac, question) = (near.mac, self.message(true, from, MacAddr([0xff; 6]), to));
        Found { mac, question: Some(question) }
    }

    /// Takes a received frame that is no datagram. Returns the answer to a question for an own address.
    pub(super) fn hear(&mut self, frame: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        let Message { is_question, from_ip, from_mac, target } = Message::parse(frame)?;
        let is_for_own = self.own.contains(&target);
        let is_usable = from_mac.0[0] & 1 == 0 && !from_ip.is_unspecified();
        // The sender of a question gets an answer, and datagrams soon.
        let is_new = is_question && is_for_own && self.known.len() < NEIGHBOURS_MAX;
        if is_usable && (is_new || self.known.contains_key(&from_ip)) {
            let mac = Some(from_mac);
            let heard = Neighbour { mac, heard_ns: now_ns, asked_ns: None };
            let before = self.known.insert(from_ip, heard);
            let is_changed = before.is_none_or(|before| before.mac != mac);
            self.version = self.version.wrapping_add(is_changed.into());
        }
        (is_question && is_for_own && is_usable)
            .then(|| self.message(false, target, from_mac, from_ip))
    }

    /// Makes a frame: a question by `from` for `to`, or the answer of `from` to `to`.
    fn message(&self, is_question: bool, from: IpAddr, to_mac: MacAddr, to: IpAddr) -> Vec<u8> {
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.arp(is_question, from, to_mac, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.discovery(is_question, from, to_mac, to),
            _ => panic!("no message goes from {from} to {to}"),
        }
    }

    fn arp(&self, is_question: bool, from: Ipv4Addr, to_mac: MacAddr, to: Ipv4Addr) -> Vec<u8> {
        let mut frame = [&to_mac.0[..], &self.mac.0, &TYPE_ARP, &ARP_HEAD].concat();
        frame.extend([0, if is_question { REQUEST } else { REPLY }]);
        frame.extend(self.mac.0);
        frame.extend(from.octets());
        frame.extend(if is_question { [0; 6] } else { to_mac.0 });
        frame.extend(to.octets());
        frame
    }

    fn discovery(
        &self,
        is_question: bool,
        from: Ipv6Addr,
        to_mac: MacAddr,
        to: Ipv6Addr,
    ) -> Vec<u8> {
        let (kind, flags, target) =
            if is_question { (SOLICITATION, 0, to) } else { (ADVERTISEMENT, ADVERTISED, from) };
        // A question goes to the group of all addresses that end so (RFC 4291 §2.7.1).
        let [.., a, b, c] = to.octets();
        let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c];
        let (to, to_mac) = match is_question {
            true => (Ipv6Addr::from(group), MacAddr([0x33, 0x33, 0xff, a, b, c])),
            false => (to, to_mac),
        };
        let mut frame = [&to_mac.0[..], &self.mac.0, &TYPE_V6].concat();
        frame.extend([0x60, 0, 0, 0, 0, ND_BYTES as u8, ICMP_V6, HOPS]);
        frame.extend(from.octets());
        frame.extend(to.octets());
        let begin = frame.len();
        frame.extend([kind, 0, 0, 0, flags, 0, 0, 0]);
        frame.extend(target.octets());
        // The option with the sender's address (§4.6.1); that of the target has the number 2.
        frame.extend([if is_question { 1 } else { 2 }, 1]);
        frame.extend(self.mac.0);
        let checksum = icmp_sum(&frame[ETHERNET_BYTES..]).checksum();
        frame[begin + 2..begin + 4].copy_from_slice(&checksum);
        frame
    }
}

/// The sum of a packet's ICMPv6 message and pseudo-header (RFC 8200 §8.1).
fn icmp_sum(packet: &[u8]) -> Sum {
    let message = &packet[V6_BYTES..];
    Sum::of(&packet[8..V6_BYTES])
        .plus_word(message.len() as u16)
        .plus_word(ICMP_V6.into())
        .plus(Sum::of(message))
}

impl Message {
    fn parse(frame: &[u8]) -> Option<Self> {
        let (head, packet) = frame.split_at_checked(ETHERNET_BYTES)?;
        match [head[12], head[13]] {
            TYPE_ARP => Self::parse_arp(packet.first_chunk()?),
            TYPE_V6 => Self::parse_discovery(packet, head[6..12].try_into().ok()?),
            _ => None,
        }
    }

    fn parse_arp(arp: &[u8; ARP_BYTES]) -> Option<Self> {
        let ip_at = |at: usize| IpAddr::from([arp[at], arp[at + 1], arp[at + 2], arp[at + 3]]);
        let is_known = arp[..6] == ARP_HEAD && arp[6] == 0 && [REQUEST, REPLY].contains(&arp[7]);
        is_known.then(|| Self {
            is_question: arp[7] == REQUEST,
            from_ip: ip_at(14),
            from_mac: MacAddr(arp[8..14].try_into().expect("six bytes")),
            target: ip_at(24),
        })
    }

    /// The sender's address is that of the frame: the option says the same, and may be missing.
    fn parse_discovery(packet: &[u8], from_mac: [u8; 6]) -> Option<Self> {
        let ip: &[u8; V6_BYTES] = packet.first_chunk()?;
        let bytes = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        let packet = packet.get(..V6_BYTES + bytes)?;
        let message = &packet[V6_BYTES..];
        if ip[6] != ICMP_V6 || ip[7] != HOPS || message.len() < 24 || message[1] != 0 {
            return None;
        }
        if icmp_sum(packet).folded() != 0xffff {
            return None;
        }
        let ip_of = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
        let (from_ip, target, mac) = (ip_of(&ip[8..24])?, ip_of(&message[8..24])?, from_mac);
        let from_mac = MacAddr(mac);
        match message[0] {
            SOLICITATION => Some(Self { is_question: true, from_ip, from_mac, target }),
            // An answer speaks of its target, and goes to the asker.
            ADVERTISEMENT => {
                let asker = ip_of(&ip[24..40])?;
                Some(Self { is_question: false, from_ip: target, from_mac, target: asker })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ends() -> [(IpAddr, IpAddr); 2] {
        [(ip("10.0.0.1"), ip("10.0.0.2")), (ip("fd00::1"), ip("fd00::a:2"))]
    }

    #[test]
    fn hear__an_answer_for_an_own_address_tells_both_the_other_ones() {
        for (here, there) in ends() {
            let [mut a, mut b] = [A, B].map(Neighbours::new);
            a.answer_for(here);
            b.answer_for(there);
            let found = a.find(here, there, 5);
            assert_eq!(found.mac, None);
            let question = found.question.unwrap();
            // Neither is the own question an answer, nor does a host answer for another one.
            assert_eq!((a.hear(&question, 5), a.version()), (None, 0));
            let answer = b.hear(&question, 5).unwrap();
            assert_eq!(answer[..12], [A.0, B.0].concat());
            assert_eq!(a.hear(&answer, 6), None);
            let [to_b, to_a] = [a.find(here, there, 7), b.find(there, here, 7)];
            assert_eq!((to_b.mac, to_a.mac), (Some(B), Some(A)));
            assert!(to_b.question.is_none() && to_a.question.is_none());
            assert_eq!((a.version(), b.version()), (1, 1));
        }
    }

    #[test]
    fn find__asks_with_pauses_and_again_for_a_stale_address() {
        let (here, there) = ends()[0];
        let mut a = Neighbours::new(A);
        let mut b = Neighbours::new(B);
        b.answer_for(there);
        let is_asked = |a: &mut Neighbours, now| a.find(here, there, now).question.is_some();
        assert!(is_asked(&mut a, 0) && !is_asked(&mut a, PAUSE_NS - 1));
        let question = a.find(here, there, PAUSE_NS).question.unwrap();
        a.hear(&b.hear(&question, 0).unwrap(), PAUSE_NS);
        assert!(!is_asked(&mut a, PAUSE_NS + STALE_NS));
        let stale = a.find(here, there, PAUSE_NS + STALE_NS + 1);
        assert!(stale.mac == Some(B) && stale.question.is_some());
        assert_eq!(a.find(here, there, PAUSE_NS + LOST_NS + 1).mac, None);
    }

    #[test]
    fn hear__messages_that_are_wrong_or_of_strangers_change_nothing() {
        let (here, there) = ends()[1];
        let mut b = Neighbours::new(B);
        b.answer_for(there);
        let question = Neighbours::new(A).find(here, there, 0).question.unwrap();
        for at in 14..question.len() {
            let mut wrong = question.clone();
            wrong[at] ^= 0x10;
            let traffic_class_or_label = (14..18).contains(&at);
            assert_eq!(b.hear(&wrong, 0).is_some(), traffic_class_or_label, "byte {at}");
            assert_eq!(b.hear(&question[..at], 0), None);
        }
        let mut c = Neighbours::new(A);
        assert_eq!((c.hear(&question, 0), c.version()), (None, 0));
        let unasked = Neighbours::new(B).message(false, there, A, here);
        assert_eq!((c.hear(&unasked, 0), c.version()), (None, 0));
    }
}
