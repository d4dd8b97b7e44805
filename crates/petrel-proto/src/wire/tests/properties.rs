//! Arbitrary frames, and arbitrary bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const KINDS: [Kind; 9] = [
    Kind::Request,
    Kind::Response,
    Kind::RequestPart,
    Kind::ResponsePart,
    Kind::Credit,
    Kind::Pull,
    Kind::Cancel,
    Kind::Multicast,
    Kind::Announce,
];

/// Any header without an extension block. Tests add a block that fits the flag.
fn header() -> impl Strategy<Value = Header> {
    let flags = (0u8..16).prop_map(|bits| Flags(bits & !Flags::EXTENDED.0));
    let numbers = (0u32..1 << 20, any::<u32>(), any::<u16>(), 0u64..1 << 48);
    (prop::sample::select(&KINDS), flags, numbers).prop_map(
        |(kind, flags, (session, token, aux, request))| Header {
            kind,
            flags,
            session,
            token,
            aux,
            request,
        },
    )
}

fn bitmap() -> impl Strategy<Value = [u64; 4]> {
    let word = || prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
    [word(), word(), word(), word()].prop_map(|mut words| {
        words[0] &= !1;
        words
    })
}

/// The fields of a kind, from numbers.
fn fields(kind: Kind, numbers: [u32; 3], grant: u8, bitmap: [u64; 4]) -> Fields {
    let [first, second, third] = numbers;
    match kind {
        Kind::Request | Kind::Response | Kind::Cancel | Kind::Probe => Fields::None,
        Kind::RequestPart | Kind::ResponsePart | Kind::Multicast | Kind::Announce => {
            Fields::Part(Part { size: first, packet: second & 0xFF_FFFF, grant })
        }
        Kind::Credit => Fields::Credit(Credit { cumulative: first, echo: second, bitmap }),
        Kind::Pull => {
            let (cumulative, limit, resend_below) = (first, second, third);
            Fields::Pull(Pull { cumulative, limit, resend_below, bitmap })
        }
    }
}

/// A header with fields and payload.
fn frame() -> impl Strategy<Value = (Header, Fields, Vec<u8>)> {
    (header(), any::<[u32; 3]>(), any::<u8>(), bitmap(), vec(any::<u8>(), 0..40)).prop_map(
        |(header, numbers, grant, bitmap, mut payload)| {
            if matches!(header.kind, Kind::Credit | Kind::Pull | Kind::Cancel | Kind::Probe) {
                payload.clear();
            }
            (header, fields(header.kind, numbers, grant, bitmap), payload)
        },
    )
}

/// Bytes that mostly begin with version 1 and a known kind.
fn frame_like() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![6 => 0x10u8..0x18, 1 => any::<u8>()];
    let small = prop_oneof![3 => 0u8..6, 1 => any::<u8>()];
    (first, vec(any::<u8>(), 0..18), vec(small, 0..60))
        .prop_map(|(first, head, rest)| [&[first], &head[..], &rest].concat())
}

/// Reads an extension block literally as §3.4 says, with indices. Returns the length of the block, with the
/// length field, and the deadline; or `None` if the block is not valid.
fn naive_block(bytes: &[u8]) -> Option<(usize, Option<u32>)> {
    let length = *bytes.first()? as usize + 256 * *bytes.get(1)? as usize;
    let end = 2 + length;
    let (mut at, mut deadline) = (2, None);
    while at < end {
        let (kind, length) = (*bytes.get(at)?, *bytes.get(at + 1)? as usize);
        if kind >= 128 || at + 2 + length > end {
            return None;
        }
        if kind == 2 {
            let value = bytes.get(at + 2..at + 2 + length)?;
            deadline = Some(u32::from_le_bytes(value.try_into().ok()?));
        }
        at += 2 + length;
    }
    (end <= bytes.len()).then_some((end, deadline))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_024))]

    #[test]
    fn parse__gives_back_what_was_encoded(
        (mut header, fields, payload) in frame(),
        deadline_us in prop::option::of(any::<u32>()),
    ) {
        let mut extensions = Extensions::default();
        if matches!(header.kind, Kind::Request | Kind::RequestPart) {
            extensions.deadline_us = deadline_us;
            header.flags.0 |= if deadline_us.is_some() { Flags::EXTENDED.0 } else { 0 };
        }
        let frame = Frame { header, fields, extensions, payload: &payload };
        let bytes = encode(&frame);
        prop_assert_eq!(Frame::parse(&bytes), Ok(frame));
        prop_assert_eq!(Header::parse(&bytes).map(|(header, _)| header), Ok(header));
    }

    #[test]
    fn parse__any_bytes_without_harm(bytes in vec(any::<u8>(), 0..100)) {
        if let Ok(frame) = Frame::parse(&bytes) {
            prop_assert!(!frame.to_string().is_empty());
        }
    }

    #[test]
    fn parse__what_is_taken_is_in_the_bytes(bytes in frame_like()) {
        if let Ok(frame) = Frame::parse(&bytes) {
            prop_assert!(bytes.ends_with(frame.payload));
            prop_assert!(frame.to_string().starts_with(frame.header.kind.name()));
            let without_block = Flags(frame.header.flags.0 & !Flags::EXTENDED.0);
            let header = Header { flags: without_block, ..frame.header };
            let plain = Frame { header, extensions: Extensions::default(), ..frame };
            let again = encode(&plain);
            // Shorter where extensions or zero words of a bitmap are left out.
            prop_assert!(again.len() <= bytes.len());
            prop_assert_eq!(Frame::parse(&again), Ok(plain));
        }
    }

    #[test]
    fn parse__skips_sound_blocks_alone(
        (header, fields, payload) in frame(),
        block in prop_oneof![
            vec(prop_oneof![4 => 0u8..5, 1 => any::<u8>()], 0..20),
            vec(Just([2, 4, 7, 0, 9, 0]), 1..3).prop_map(|records| records.concat()),
        ],
        is_whole in any::<bool>(),
    ) {
        let flags = Flags(header.flags.0 | Flags::EXTENDED.0);
        let header = Header { flags, ..header };
        let extensions = Extensions::default();
        let mut frame = Frame { header, fields, extensions, payload: &payload };
        let mut bytes = encode(&frame);
        let fixed = match header.kind {
            Kind::Request | Kind::Response | Kind::Cancel | Kind::Probe => 16,
            Kind::RequestPart
            | Kind::ResponsePart
            | Kind::Credit
            | Kind::Multicast
            | Kind::Announce => 24,
            Kind::Pull => 32,
        };
        let length = (block.len() as u16).to_le_bytes();
        let inserted = if is_whole { [&length[..], &block].concat() } else { block };
        bytes.splice(fixed..fixed, inserted.iter().copied());
        match naive_block(&bytes[fixed..]) {
            None => prop_assert!(Frame::parse(&bytes).is_err()),
            Some((end, deadline_us)) if end == inserted.len() => {
                if !matches!(header.kind, Kind::Credit | Kind::Pull | Kind::Cancel | Kind::Probe) {
                    frame.extensions = Extensions { deadline_us };
                }
                prop_assert_eq!(Frame::parse(&bytes), Ok(frame));
            }
            // The block's length came from random bytes; payloads may have any length, bitmaps may not.
            Some((end, _)) => if let Ok(parsed) = Frame::parse(&bytes) {
                prop_assert!(fixed + end + parsed.payload.len() <= bytes.len());
            },
        }
    }
}
