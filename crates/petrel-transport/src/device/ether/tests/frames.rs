//! Templates and the parser.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use crate::device::ether::frame::{
    Checksum, HEAD_BYTES_V4, HEAD_BYTES_V6, MacAddr, Refusal, Template, parse, parse_summed,
};
use crate::device::ether::fuzzing::{self, naive_sum};

const FROM_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const TO_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

const V4: (&str, &str) = ("10.1.2.3", "10.1.2.4:700");
const V6: (&str, &str) = ("fd00::1", "[fd00::2]:700");

/// A frame with a payload, whose source port is 900.
fn frame(ends: (&str, &str), payload: &[u8]) -> Vec<u8> {
    frame_of(ends.0.parse().unwrap(), ends.1.parse().unwrap(), payload, 900, false)
}

fn frame_of(from: IpAddr, to: SocketAddr, payload: &[u8], port: u16, is_ecn: bool) -> Vec<u8> {
    let template = Template::new(from, to, FROM_MAC, TO_MAC);
    // Old bytes must not show.
    let mut frame = vec![0xaa; template.head_bytes()];
    frame.extend(payload);
    let bytes = template.write(&mut frame, payload.len(), port, is_ecn);
    assert_eq!(bytes, frame.len());
    frame
}

/// The frame, field by field.
fn naive_frame(from: IpAddr, to: SocketAddr, payload: &[u8], port: u16, is_ecn: bool) -> Vec<u8> {
    let bytes = (8 + payload.len()) as u16;
    let class = if is_ecn { 2 } else { 0 };
    let mut udp =
        [&port.to_be_bytes()[..], &to.port().to_be_bytes(), &bytes.to_be_bytes()].concat();
    let (kind, header, ends) = match (from, to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = (bytes + 20).to_be_bytes();
            let ends = [from.octets(), to.octets()].concat();
            let mut header = vec![0x45, class, length[0], length[1], 0, 0, 0x40, 0, 64, 17];
            let sum = !naive_sum(&[&header, &ends]);
            header.extend(sum.to_be_bytes());
            header.extend(&ends);
            (0x0800_u16, header, ends)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = bytes.to_be_bytes();
            let ends = [from.octets(), to.octets()].concat();
            let mut header = vec![0x60, class << 4, 0, 0, length[0], length[1], 17, 64];
            header.extend(&ends);
            (0x86dd, header, ends)
        }
        _ => unreachable!("both are of a family"),
    };
    let sum = !naive_sum(&[&ends, &[0, 17], &bytes.to_be_bytes(), &udp, payload]);
    udp.extend((if sum == 0 { 0xffff } else { sum }).to_be_bytes());
    [&TO_MAC.0[..], &FROM_MAC.0, &kind.to_be_bytes(), &header, &udp, payload].concat()
}

/// Puts the checksum of an IPv4 header right.
fn mend(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = !naive_sum(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &tag.to_be_bytes(), &frame[12..]].concat()
}

fn ends() -> impl Strategy<Value = (IpAddr, SocketAddr)> {
    let v4 =
        any::<([u8; 4], [u8; 4])>().prop_map(|(from, to)| (IpAddr::from(from), IpAddr::from(to)));
    // The first byte keeps IPv4 addresses out, which may be mapped to IPv6.
    let v6 = any::<([u8; 16], [u8; 16])>().prop_map(|(mut from, mut to)| {
        [from[0], to[0]] = [0xfd; 2];
        (IpAddr::from(from), IpAddr::from(to))
    });
    (prop_oneof![v4, v6], any::<u16>()).prop_map(|((from, to), port)| (from, (to, port).into()))
}

#[test]
fn write_partial__leaves_the_sum_to_a_device() {
    for ends in [V4, V6] {
        let payload = [7; 31];
        let whole = frame(ends, &payload);
        let to: SocketAddr = ends.1.parse().unwrap();
        let template = Template::new(ends.0.parse().unwrap(), to, FROM_MAC, TO_MAC);
        let mut partial = whole.clone();
        template.write_partial(&mut partial, payload.len(), 900, false);
        let at = template.head_bytes() - 2;
        assert_eq!((&partial[..at], &partial[at + 2..]), (&whole[..at], &whole[at + 2..]));
        assert_eq!(parse(&partial).unwrap().checksum, Checksum::Partial);
        // The device adds the bytes from the head of UDP on, the field included (RFC 1071).
        let sum = !naive_sum(&[&partial[at - 6..]]);
        partial[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(partial, whole);
    }
}

#[test]
fn parse_summed__believes_the_device_about_the_sum_alone() {
    for ends in [V4, V6] {
        let mut frame = frame(ends, b"datagram");
        *frame.last_mut().unwrap() ^= 1;
        assert_eq!(parse(&frame).unwrap_err(), Refusal::UdpChecksum);
        assert_eq!(parse_summed(&frame).unwrap().checksum, Checksum::Right);
        frame.pop();
        assert_eq!(parse_summed(&frame).unwrap_err(), Refusal::Length);
    }
}

proptest! {
    #[test]
    fn write__equals_a_naive_frame_which_is_parsed_again(
        (from, to) in ends(),
        payload in prop::collection::vec(any::<u8>(), 0..200),
        port in any::<u16>(),
        is_ecn in any::<bool>(),
        padding in 0..50_usize,
    ) {
        let mut frame = frame_of(from, to, &payload, port, is_ecn);
        prop_assert_eq!(&frame, &naive_frame(from, to, &payload, port, is_ecn));
        let bytes = frame.len();
        frame.resize(bytes + padding, 0x55);
        let parsed = parse(&frame).unwrap();
        prop_assert_eq!(parsed.from(), (from, port).into());
        prop_assert_eq!((parsed.to_ip, parsed.to_port), (to.ip(), to.port()));
        prop_assert_eq!(&frame[parsed.payload], &payload);
        prop_assert!(!parsed.is_marked);
        prop_assert_ne!(parsed.checksum, Checksum::Absent);
    }
}

#[test]
fn new__takes_mapped_addresses_as_ipv4() {
    let mapped = ("::ffff:10.1.2.3", "[::ffff:10.1.2.4]:700");
    assert_eq!(frame(mapped, b"payload"), frame(V4, b"payload"));
}

#[test]
fn write__never_sends_the_checksum_zero() {
    for ends in [V4, V6] {
        let zero = (0..=u16::MAX).map(|word| frame(ends, &word.to_be_bytes())).find(|frame| {
            let field = frame.len() - 4;
            assert_ne!(frame[field..field + 2], [0, 0]);
            frame[field..field + 2] == [0xff, 0xff]
        });
        assert_eq!(parse(&zero.unwrap()).unwrap().checksum, Checksum::Right);
    }
}

#[test]
fn parse__of_a_short_datagram_cuts_the_padding() {
    for ends in [V4, V6] {
        let mut frame = frame(ends, b"x");
        frame.resize(frame.len().max(60), 0xee);
        assert_eq!(frame[parse(&frame).unwrap().payload], *b"x");
        // A length of UDP that includes the padding contradicts the length of IP.
        let head = if ends == V4 { HEAD_BYTES_V4 } else { HEAD_BYTES_V6 };
        frame[head - 3] += 5;
        assert_eq!(parse(&frame), Err(Refusal::Length));
    }
}

#[test]
fn parse__of_a_part_of_a_frame_finds_its_length_wrong() {
    for ends in [V4, V6] {
        for frame in [frame(ends, b"payload"), tagged(&frame(ends, b"payload"), 0)] {
            for length in 0..frame.len() {
                assert_eq!(parse(&frame[..length]), Err(Refusal::Length), "{length} bytes");
            }
            assert!(parse(&frame).is_ok());
        }
    }
}

#[test]
fn parse__accepts_sums_that_a_device_would_complete() {
    for ends in [V4, V6] {
        let mut frame = frame(ends, b"payload");
        let udp = frame.len() - 7 - 8;
        let ips = if ends == V4 { 26..34 } else { 22..54 };
        let sum = naive_sum(&[&frame[ips], &[0, 17], &[0, 15]]);
        frame[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
        let parsed = parse(&frame).unwrap();
        assert_eq!((parsed.checksum, &frame[parsed.payload]), (Checksum::Partial, &b"payload"[..]));
        frame[udp + 7] ^= 1;
        assert_eq!(parse(&frame), Err(Refusal::UdpChecksum));
    }
}

#[test]
fn parse__demands_a_checksum_over_ipv6_alone() {
    for (ends, expected) in [(V4, Ok(Checksum::Absent)), (V6, Err(Refusal::NoChecksum))] {
        let mut frame = frame(ends, b"payload");
        let field = frame.len() - 9;
        frame[field..field + 2].fill(0);
        assert_eq!(parse(&frame).map(|parsed| parsed.checksum), expected);
    }
}

#[test]
fn parse__knows_the_mark_of_congestion() {
    for codepoint in 0..4_u8 {
        let mut v4 = frame(V4, b"payload");
        v4[15] = 0x28 | codepoint;
        mend(&mut v4);
        let mut v6 = frame(V6, b"payload");
        [v6[14], v6[15]] = [0x62, 0x8f | codepoint << 4];
        for frame in [v4, v6] {
            assert_eq!(parse(&frame).unwrap().is_marked, codepoint == 3);
        }
    }
}

#[test]
fn parse__accepts_priorities_and_refuses_vlans() {
    for ends in [V4, V6] {
        let plain = frame(ends, b"payload");
        let frame = tagged(&plain, 0xf000);
        assert_eq!(frame[parse(&frame).unwrap().payload], *b"payload");
        assert_eq!(parse(&tagged(&plain, 0x0001)), Err(Refusal::Vlan));
        assert_eq!(parse(&tagged(&frame, 0)), Err(Refusal::NotIp));
    }
}

#[test]
fn parse__says_why_it_refuses_a_frame() {
    let cases: [(_, usize, &[u8], _); 18] = [
        (V4, 12, &[0x08, 0x06], Refusal::NotIp),
        (V4, 12, &[0x05, 0xdc], Refusal::NotIp),
        (V6, 12, &[0x08, 0x00], Refusal::NotIp),
        (V4, 14, &[0x46], Refusal::Options),
        (V4, 14, &[0x44], Refusal::Length),
        (V4, 20, &[0x20, 0x00], Refusal::Fragment),
        (V4, 20, &[0x00, 0x01], Refusal::Fragment),
        (V4, 23, &[6], Refusal::NotUdp),
        (V4, 16, &[0, 19], Refusal::Length),
        (V4, 16, &[0, 27], Refusal::Length),
        (V4, 16, &[0, 36], Refusal::Length),
        (V4, 16, &[255, 255], Refusal::Length),
        (V4, 38, &[0, 14], Refusal::Length),
        (V6, 18, &[0, 0], Refusal::Length),
        (V6, 18, &[255, 255], Refusal::Length),
        (V6, 20, &[44], Refusal::Fragment),
        (V6, 20, &[60], Refusal::Options),
        (V6, 20, &[6], Refusal::NotUdp),
    ];
    for (ends, at, bytes, refusal) in cases {
        let mut frame = frame(ends, b"payload");
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        if ends == V4 {
            mend(&mut frame);
        }
        assert_eq!(parse(&frame), Err(refusal), "{bytes:x?} at {at}");
    }
    for at in 14..34 {
        let mut frame = frame(V4, b"payload");
        frame[at] ^= if at == 14 { 0 } else { 0x10 };
        frame[24] ^= u8::from(at == 14);
        assert_eq!(parse(&frame), Err(Refusal::IpChecksum), "bit at {at}");
    }
    for (ends, begin) in [(V4, 34), (V6, 22)] {
        let good = frame(ends, b"payload");
        let not_lengths = |at: &usize| {
            ends == V4 && !(38..40).contains(at) || ends == V6 && !(58..60).contains(at)
        };
        for at in (begin..good.len()).filter(not_lengths) {
            let mut frame = good.clone();
            frame[at] ^= 0x10;
            assert_eq!(parse(&frame), Err(Refusal::UdpChecksum), "bit at {at}");
        }
    }
}

/// Random changes of frames, of which many are still accepted since their checksums are put right again.
#[test]
fn parse__of_random_and_changed_frames_equals_a_naive_parser() {
    let mut word = 1_u64;
    let mut random = |limit: usize| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (word >> 33) as usize % limit
    };
    let frames = [frame(V4, b"payload"), frame(V6, b"payload"), tagged(&frame(V4, b""), 0)];
    let mut accepted = 0;
    for _ in 0..200_000 {
        let mut frame = frames[random(frames.len())].clone();
        for _ in 0..random(4) {
            let at = random(frame.len());
            frame[at] = if random(2) == 0 { frame[at] ^ 1 << random(8) } else { random(256) as u8 };
        }
        match random(8) {
            0 => frame.truncate(random(frame.len())),
            1 => frame.resize(frame.len() + random(20), 0),
            2 => frame.iter_mut().skip(12 + random(60)).for_each(|byte| *byte = random(256) as u8),
            _ => (),
        }
        frame.push(random(256) as u8);
        fuzzing::check(&frame);
        accepted += usize::from(parse(&frame).is_ok());
    }
    assert!(accepted > 20_000, "only {accepted} frames were good");
}

#[test]
fn parse__of_the_corpus_equals_a_naive_parser() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/ether_frame");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        fuzzing::check(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count >= 20, "{count} inputs in {folder}");
}
