//! The fuzz target `ether_frame` (`fuzz/README.md`): the parser of received frames beside a naive one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::frame::{Checksum, parse, target};

/// Parses a frame as it is, and with checksums put right: by chance hardly any is.
pub fn check(data: &[u8]) {
    compare(data);
    let mut frame = data.to_vec();
    let kind = frame.pop().unwrap_or_default();
    repair(&mut frame, kind);
    compare(&frame);
}

/// A datagram: sender, receiver, payload, mark, and checksum.
type Datagram<'a> = (SocketAddr, SocketAddr, &'a [u8], bool, Checksum);

fn compare(frame: &[u8]) {
    let parsed = parse(frame).ok().map(|parsed| {
        let to = SocketAddr::from((parsed.to_ip, parsed.to_port));
        let payload = &frame[parsed.payload.clone()];
        (parsed.from(), to, payload, parsed.is_marked, parsed.checksum)
    });
    assert_eq!(parsed, naive(frame), "{frame:02x?}");
    if let Some((_, to, ..)) = parsed {
        assert_eq!(target(frame), Some((to.ip(), to.port())), "{frame:02x?}");
    }
}

/// The sum of words in the order of the network, with a zero byte behind an odd number (RFC 1071 §4.1).
pub(super) fn naive_sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The specification, rule by rule. The result is `None` for every refused frame.
fn naive(frame: &[u8]) -> Option<Datagram<'_>> {
    let word =
        |bytes: &[u8], at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let is_tagged = word(frame, 12)? == 0x8100;
    if is_tagged && word(frame, 14)? & 0x0fff != 0 {
        return None;
    }
    let begin = if is_tagged { 18 } else { 14 };
    let packet = frame.get(begin..)?;
    let (from, to, class, datagram): (IpAddr, IpAddr, u8, &[u8]) = match word(frame, begin - 2)? {
        0x0800 => {
            let header = packet.get(..20)?;
            let length = usize::from(word(packet, 2)?);
            let is_whole = word(packet, 6)? & 0x2000 == 0 && word(packet, 6)? & 0x1fff == 0;
            if header[0] != 0x45
                || header[9] != 17
                || !is_whole
                || length < 20
                || naive_sum(&[header]) != 0xffff
            {
                return None;
            }
            let ip = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
            (ip(12).into(), ip(16).into(), header[1], packet.get(20..length)?)
        }
        0x86dd => {
            let header = packet.get(..40)?;
            if header[0] & 0xf0 != 0x60 || header[6] != 17 {
                return None;
            }
            let ip =
                |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).unwrap());
            let class = header[0] << 4 | header[1] >> 4;
            (
                ip(8).into(),
                ip(24).into(),
                class,
                packet.get(40..40 + usize::from(word(packet, 4)?))?,
            )
        }
        _ => return None,
    };
    let length = word(datagram, 4)?;
    if datagram.len() < 8 || usize::from(length) != datagram.len() {
        return None;
    }
    let pseudo = [&octets(from)[..], &octets(to), &[0, 17], &length.to_be_bytes()].concat();
    let checksum = match word(datagram, 6)? {
        0 if from.is_ipv4() => Checksum::Absent,
        0 => return None,
        field if field == naive_sum(&[&pseudo]) => Checksum::Partial,
        _ if naive_sum(&[&pseudo, datagram]) == 0xffff => Checksum::Right,
        _ => return None,
    };
    let ends = [(from, 0), (to, 2)].map(|(ip, at)| Some(SocketAddr::new(ip, word(datagram, at)?)));
    Some((ends[0]?, ends[1]?, &datagram[8..], class & 3 == 3, checksum))
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

/// Puts checksums right where the frame has their fields. The two lowest bits of `kind` choose UDP's: right, partial, absent, or left alone; the
/// third makes UDP's length right, too.
fn repair(frame: &mut [u8], kind: u8) {
    let begin = if frame.get(12..14) == Some(&[0x81, 0x00]) { 18 } else { 14 };
    let Some(packet) = frame.get_mut(begin..) else { return };
    let (ends, udp) = match packet.first() {
        Some(0x40..=0x4f) => (12..20, 20),
        Some(0x60..=0x6f) => (8..40, 40),
        _ => return,
    };
    let Some((header, datagram)) = packet.split_at_mut_checked(udp) else { return };
    if udp == 20 {
        header[10..12].fill(0);
        let sum = !naive_sum(&[header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    if datagram.len() < 8 || kind & 3 == 3 {
        return;
    }
    if kind & 4 != 0 {
        let length = datagram.len() as u16;
        datagram[4..6].copy_from_slice(&length.to_be_bytes());
    }
    datagram[6..8].fill(0);
    let length = usize::from(u16::from_be_bytes([datagram[4], datagram[5]])).min(datagram.len());
    let pseudo = [&header[ends], &[0, 17], &datagram[4..6]].concat();
    let field = match kind & 3 {
        0 => !naive_sum(&[&pseudo, &datagram[..length]]),
        1 => naive_sum(&[&pseudo]),
        _ => 0,
    };
    datagram[6..8].copy_from_slice(&field.to_be_bytes());
}
