//! Heads of Ethernet, IP and UDP around a datagram's payload (RFC 768, RFC 791, RFC 8200).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use petrel_planted::planted;

use super::sum::Sum;

/// Bytes of the head of a frame with IPv4, and with IPv6.
pub const HEAD_BYTES_V4: usize = ETHERNET_BYTES + V4_BYTES + UDP_BYTES;
/// See [`HEAD_BYTES_V4`].
pub const HEAD_BYTES_V6: usize = ETHERNET_BYTES + V6_BYTES + UDP_BYTES;

const ETHERNET_BYTES: usize = 14;
pub(crate) const V4_BYTES: usize = 20;
pub(crate) const V6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;

/// Types of frames (IEEE 802 numbers).
const TYPE_V4: [u8; 2] = [0x08, 0x00];
pub(crate) const TYPE_V6: [u8; 2] = [0x86, 0xdd];
const TYPE_TAGGED: [u8; 2] = [0x81, 0x00];

const UDP: u8 = libc::IPPROTO_UDP as u8;

/// The kernel's default, and that of most hosts.
const HOPS_MAX: u8 = 64;

/// Codepoints of ECN (RFC 3168 §5): the sender's, and a router's mark.
const ECT_0: u8 = 0b10;
const CE: u8 = 0b11;

/// "Don't fragment" (RFC 791 §3.1). The identification of such a packet may be zero (RFC 6864 §4.1).
const DF: u8 = 0x40;

/// An address of an Ethernet device.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The head of all frames to a peer, except lengths, source port, ECN and checksums.
#[derive(Clone, Debug)]
pub struct Template {
    head: [u8; HEAD_BYTES_V6],
    is_v6: bool,
    /// The sum of the IPv4 header, of which only the length and ECN are missing.
    ip_sum: Sum,
    /// The sum of the pseudo-header without the length.
    ends_sum: Sum,
    /// The same with the destination port.
    udp_sum: Sum,
}

impl Template {
    /// Makes the template of a peer. IPv4 addresses that are mapped to IPv6 become IPv4.
    ///
    /// # Panics
    /// If the addresses are of different families.
    pub fn new(from: IpAddr, to: SocketAddr, from_mac: MacAddr, to_mac: MacAddr) -> Self {
        let (from, to_ip) = (from.to_canonical(), to.ip().to_canonical());
        let mut head = [0; HEAD_BYTES_V6];
        head[..6].copy_from_slice(&to_mac.0);
        head[6..12].copy_from_slice(&from_mac.0);
        let (kind, ip) = head[12..].split_at_mut(2);
        match (from, to_ip) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                kind.copy_from_slice(&TYPE_V4);
                [ip[0], ip[6], ip[8], ip[9]] = [0x45, DF, HOPS_MAX, UDP];
                ip[12..16].copy_from_slice(&from.octets());
                ip[16..20].copy_from_slice(&to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                kind.copy_from_slice(&TYPE_V6);
                [ip[0], ip[6], ip[7]] = [0x60, UDP, HOPS_MAX];
                ip[8..24].copy_from_slice(&from.octets());
                ip[24..40].copy_from_slice(&to.octets());
            }
            _ => panic!("no packet goes from {from} to {to_ip}"),
        }
        let ip_sum = Sum::of(&ip[..V4_BYTES]);
        let is_v6 = to_ip.is_ipv6();
        let ip_bytes = if is_v6 { V6_BYTES } else { V4_BYTES };
        ip[ip_bytes + 2..ip_bytes + 4].copy_from_slice(&to.port().to_be_bytes());
        let ends_sum = Sum::of_ends(from, to_ip);
        Self { head, is_v6, ip_sum, ends_sum, udp_sum: ends_sum.plus_word(to.port()) }
    }

    /// Bytes in front of the payload.
    #[inline]
    pub fn head_bytes(&self) -> usize {
        if self.is_v6 { HEAD_BYTES_V6 } else { HEAD_BYTES_V4 }
    }

    /// Writes the head in front of a payload, which lies behind [`Template::head_bytes`] bytes of the frame. Returns the bytes of
    /// the frame. A short one has no padding, which is the device's part.
    ///
    /// # Panics
    /// If the frame is shorter, or the payload longer than a datagram can be.
    #[inline]
    pub fn write(
        &self,
        frame: &mut [u8],
        payload_bytes: usize,
        source_port: u16,
        is_ecn: bool,
    ) -> usize {
        self.write_summed::<true>(frame, payload_bytes, source_port, is_ecn)
    }

    /// Like [`Template::write`], with the sum of the pseudo-header as UDP checksum, which a device completes.
    ///
    /// # Panics
    /// As [`Template::write`].
    #[inline]
    pub fn write_partial(
        &self,
        frame: &mut [u8],
        payload_bytes: usize,
        source_port: u16,
        is_ecn: bool,
    ) -> usize {
        self.write_summed::<false>(frame, payload_bytes, source_port, is_ecn)
    }

    #[inline]
    fn write_summed<const WHOLE: bool>(
        &self,
        frame: &mut [u8],
        payload_bytes: usize,
        source_port: u16,
        is_ecn: bool,
    ) -> usize {
        let frame_bytes = self.head_bytes() + payload_bytes;
        let frame = &mut frame[..frame_bytes];
        let ecn = if is_ecn { ECT_0 } else { 0 };
        if self.is_v6 {
            let (head, payload) = frame.split_first_chunk_mut().expect("heads fit");
            *head = self.head;
            let udp = self.udp_head::<WHOLE>(payload, source_port);
            Self::write_v6(head, udp, source_port, ecn);
        } else {
            let (head, payload) = frame.split_first_chunk_mut().expect("heads fit");
            *head = *self.head.first_chunk().expect("the head of IPv4 is shorter");
            let udp = self.udp_head::<WHOLE>(payload, source_port);
            self.write_v4(head, udp, source_port, ecn);
        }
        frame_bytes
    }

    /// `udp` has the length and the checksum.
    #[inline]
    fn write_v4(&self, head: &mut [u8; HEAD_BYTES_V4], udp: [u8; 4], source_port: u16, ecn: u8) {
        let bytes = u16::from_be_bytes([udp[0], udp[1]]).checked_add(V4_BYTES as u16);
        let bytes = bytes.expect("one datagram");
        head[15] = ecn;
        head[16..18].copy_from_slice(&bytes.to_be_bytes());
        let ip_sum = self.ip_sum.plus_word(bytes).plus_word(ecn.into());
        head[24..26].copy_from_slice(&ip_sum.checksum());
        head[34..36].copy_from_slice(&source_port.to_be_bytes());
        head[38..42].copy_from_slice(&udp);
    }

    /// See [`Template::write_v4`].
    #[inline]
    fn write_v6(head: &mut [u8; HEAD_BYTES_V6], udp: [u8; 4], source_port: u16, ecn: u8) {
        head[15] = ecn << 4;
        head[18..20].copy_from_slice(&udp[..2]);
        head[54..56].copy_from_slice(&source_port.to_be_bytes());
        head[58..62].copy_from_slice(&udp);
    }

    /// Returns the length and the checksum, as they follow the ports.
    #[inline]
    fn udp_head<const WHOLE: bool>(&self, payload: &[u8], source_port: u16) -> [u8; 4] {
        let bytes = u16::try_from(UDP_BYTES + payload.len()).expect("one datagram");
        let [a, b] = bytes.to_be_bytes();
        if !WHOLE {
            let [c, d] = self.ends_sum.plus_word(bytes).folded().to_ne_bytes();
            return [a, b, c, d];
        }
        // The length is in the pseudo-header and in the header.
        let ends = self.udp_sum.plus_word(source_port).plus_word(bytes).plus_word(bytes);
        // Zero means "no checksum", and is sent as its other form (RFC 768).
        match ends.plus(Sum::of(payload)).checksum() {
            [0, 0] => [a, b, 0xff, 0xff],
            [c, d] => [a, b, c, d],
        }
    }
}

/// A datagram in a received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The sender's IP address.
    pub from_ip: IpAddr,
    /// The sender's port.
    pub from_port: u16,
    /// The receiver's IP address.
    pub to_ip: IpAddr,
    /// The receiver's port.
    pub to_port: u16,
    /// The place of the datagram's bytes in the frame; padding of a short frame is behind.
    pub payload: Range<usize>,
    /// Whether a router has marked the packet for congestion.
    pub is_marked: bool,
    /// The state of the UDP checksum.
    pub checksum: Checksum,
}

impl Parsed {
    /// The sender's socket address, without the scope of a link-local address: the caller knows the device.
    pub fn from(&self) -> SocketAddr {
        (self.from_ip, self.from_port).into()
    }
}

/// The UDP checksum of an accepted datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum is right.
    Right,
    /// The field has the sum of the pseudo-header, for a device to complete (`CHECKSUM_PARTIAL` of Linux): the packet has met no device, since
    /// its sender is on the same host. One right checksum in 65 536 equals this sum.
    Partial,
    /// The sender has sent none, as IPv4 permits.
    Absent,
}

/// The reason why a frame has no datagram for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another protocol than IP.
    NotIp,
    /// A tag of a VLAN. Tag 0, which carries a priority alone, is accepted.
    Vlan,
    /// Options of IPv4, or extension headers of IPv6.
    Options,
    /// A part of a packet.
    Fragment,
    /// Another protocol than UDP.
    NotUdp,
    /// Lengths that contradict each other.
    Length,
    /// The checksum of the IPv4 header is wrong.
    IpChecksum,
    /// The checksum of UDP is wrong.
    UdpChecksum,
    /// No checksum over IPv6, which demands one (RFC 8200 §8.1).
    NoChecksum,
}

/// Finds the datagram in a received frame, without its FCS.
///
/// The Ethernet addresses are not looked at.
///
/// # Errors
/// The first reason why the frame is refused.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Parsed, Refusal> {
    parse_with::<false>(frame)
}

/// Like [`parse`], for a frame whose UDP checksum a device has found right.
#[inline]
pub(crate) fn parse_summed(frame: &[u8]) -> Result<Parsed, Refusal> {
    parse_with::<true>(frame)
}

#[inline]
fn parse_with<const IS_SUMMED: bool>(frame: &[u8]) -> Result<Parsed, Refusal> {
    let (kind, begin) = network_layer(frame)?;
    let packet = &frame[begin..];
    match kind {
        TYPE_V4 => parse_v4::<IS_SUMMED>(packet, begin),
        TYPE_V6 => parse_v6::<IS_SUMMED>(packet, begin),
        _ => Err(Refusal::NotIp),
    }
}

/// Returns the receiver of the datagram in a frame, if the frame seems to hold one. [`parse`] looks closely.
#[inline]
pub(crate) fn target(frame: &[u8]) -> Option<(IpAddr, u16)> {
    let (kind, begin) = network_layer(frame).ok()?;
    let packet = &frame[begin..];
    let (ip, udp) = match kind {
        TYPE_V4 => {
            let (head, udp) = packet.split_first_chunk::<V4_BYTES>()?;
            let ip = Ipv4Addr::from([head[16], head[17], head[18], head[19]]);
            (IpAddr::from(ip), udp.first_chunk::<4>().filter(|_| head[0] == 0x45 && head[9] == UDP))
        }
        TYPE_V6 => {
            let (head, udp) = packet.split_first_chunk::<V6_BYTES>()?;
            let ip = <[u8; 16]>::try_from(&head[24..]).expect("an address has 16 bytes");
            (IpAddr::from(ip), udp.first_chunk::<4>().filter(|_| head[6] == UDP))
        }
        _ => return None,
    };
    udp.map(|udp| (ip, u16::from_be_bytes([udp[2], udp[3]])))
}

/// Returns the type of the packet in a frame, and the packet's begin.
#[inline]
fn network_layer(frame: &[u8]) -> Result<([u8; 2], usize), Refusal> {
    let kind_at = |at: usize| frame.get(at..at + 2).ok_or(Refusal::Length);
    let kind = kind_at(ETHERNET_BYTES - 2)?;
    if kind != TYPE_TAGGED {
        return Ok(([kind[0], kind[1]], ETHERNET_BYTES));
    }
    let tag = kind_at(ETHERNET_BYTES)?;
    if u16::from_be_bytes([tag[0], tag[1]]) & 0xfff != 0 {
        return Err(Refusal::Vlan);
    }
    let kind = kind_at(ETHERNET_BYTES + 2)?;
    Ok(([kind[0], kind[1]], ETHERNET_BYTES + 4))
}

#[inline]
fn parse_v4<const IS_SUMMED: bool>(packet: &[u8], begin: usize) -> Result<Parsed, Refusal> {
    let ip: &[u8; V4_BYTES] = packet.first_chunk().ok_or(Refusal::Length)?;
    match ip[0] {
        0x45 => (),
        0x46..=0x4f => return Err(Refusal::Options),
        0x40..=0x44 => return Err(Refusal::Length),
        _ => return Err(Refusal::NotIp),
    }
    if Sum::of(ip).folded() != 0xffff {
        return Err(Refusal::IpChecksum);
    }
    let more_and_offset = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
    if more_and_offset != 0 {
        return Err(Refusal::Fragment);
    }
    if ip[9] != UDP {
        return Err(Refusal::NotUdp);
    }
    let bytes = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let datagram = packet.get(V4_BYTES..bytes).ok_or(Refusal::Length)?;
    let ip_at = |at: usize| Ipv4Addr::from([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]).into();
    let ends = Ends { from_ip: ip_at(12), to_ip: ip_at(16), sum: Sum::of(&ip[12..]) };
    parse_udp::<IS_SUMMED>(datagram, &ends, begin + V4_BYTES, ip[1] & CE == CE)
}

#[inline]
fn parse_v6<const IS_SUMMED: bool>(packet: &[u8], begin: usize) -> Result<Parsed, Refusal> {
    let ip: &[u8; V6_BYTES] = packet.first_chunk().ok_or(Refusal::Length)?;
    if ip[0] >> 4 != 6 {
        return Err(Refusal::NotIp);
    }
    match i32::from(ip[6]) {
        libc::IPPROTO_UDP => (),
        libc::IPPROTO_FRAGMENT => return Err(Refusal::Fragment),
        libc::IPPROTO_HOPOPTS | libc::IPPROTO_ROUTING | libc::IPPROTO_DSTOPTS => {
            return Err(Refusal::Options);
        }
        _ => return Err(Refusal::NotUdp),
    }
    let bytes = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let datagram = packet.get(V6_BYTES..V6_BYTES + bytes).ok_or(Refusal::Length)?;
    let (ends, _) = ip[8..].as_chunks::<16>();
    let [from_ip, to_ip] = [ends[0], ends[1]].map(|ip| Ipv6Addr::from(ip).into());
    let ends = Ends { from_ip, to_ip, sum: Sum::of(&ip[8..]) };
    parse_udp::<IS_SUMMED>(datagram, &ends, begin + V6_BYTES, (ip[1] >> 4) & CE == CE)
}

/// The addresses of a packet, and their sum.
struct Ends {
    from_ip: IpAddr,
    to_ip: IpAddr,
    sum: Sum,
}

/// `datagram` is the whole payload of the IP packet, and begins at `begin` in the frame.
#[inline]
fn parse_udp<const IS_SUMMED: bool>(
    datagram: &[u8],
    ends: &Ends,
    begin: usize,
    is_marked: bool,
) -> Result<Parsed, Refusal> {
    let udp: &[u8; UDP_BYTES] = datagram.first_chunk().ok_or(Refusal::Length)?;
    let word_at = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    let bytes = word_at(4);
    if usize::from(bytes) != datagram.len() && !planted("ether_length_not_checked") {
        return Err(Refusal::Length);
    }
    let pseudo = ends.sum.plus_word(UDP.into()).plus_word(bytes);
    let checksum = match u16::from_ne_bytes([udp[6], udp[7]]) {
        0 if ends.to_ip.is_ipv6() => return Err(Refusal::NoChecksum),
        0 => Checksum::Absent,
        // Before the sum over the whole datagram, which then is not needed.
        sum if sum == pseudo.folded() && !planted("ether_partial_sum_refused") => Checksum::Partial,
        _ if IS_SUMMED => Checksum::Right,
        _ if pseudo.plus(Sum::of(datagram)).folded() == 0xffff => Checksum::Right,
        _ => return Err(Refusal::UdpChecksum),
    };
    Ok(Parsed {
        from_ip: ends.from_ip,
        from_port: word_at(0),
        to_ip: ends.to_ip,
        to_port: word_at(2),
        payload: begin + UDP_BYTES..begin + datagram.len(),
        is_marked,
        checksum,
    })
}
