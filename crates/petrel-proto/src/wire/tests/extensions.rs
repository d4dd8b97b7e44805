//! The extensions *marks* and *order*: the vectors of §14, arbitrary values, and a literal reading of blocks.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const PAGE: &str = include_str!("../../../../../docs/wire-vectors.md");

/// Bytes of a frame of the kind before its extension block.
fn fixed_bytes(kind: Kind) -> usize {
    match kind {
        Kind::Credit | Kind::RequestPart => 24,
        Kind::Pull => 32,
        _ => 16,
    }
}

/// Returns the extensions of a frame in the notation of the specification.
fn words(bytes: &[u8]) -> Result<String, Malformed> {
    let frame = Frame::parse(bytes)?;
    let Header { kind, flags, .. } = frame.header;
    let mut words = kind.name().to_owned();
    if kind == Kind::Credit {
        if let Some(marks) = Marks::read(flags, &bytes[16..])? {
            let packets: Vec<String> = marks.packets().map(|packet| packet.to_string()).collect();
            words += &format!(" marks={}", packets.join(","));
        }
    } else if let Some(order) = Order::read(flags, &bytes[fixed_bytes(kind)..])? {
        let Order { sequence, synchronises, ended } = order;
        words += &format!(" sequence={sequence} synchronises={synchronises} ended={ended}");
    }
    if let Some(left_us) = frame.extensions.deadline_us {
        words += &format!(" deadline={left_us}");
    }
    Ok(words)
}

/// The frame as bytes, with its extensions from the encoders.
fn encode_again(bytes: &[u8]) -> Vec<u8> {
    let frame = Frame::parse(bytes).unwrap();
    let Header { kind, flags, .. } = frame.header;
    if let Fields::Credit(credit) = frame.fields {
        let marks = Marks::read(flags, &bytes[16..]).unwrap().unwrap();
        return cut(marks.encode(&credit, frame.header.words()));
    }
    let fixed = fixed_bytes(kind);
    let order = Order::read(flags, &bytes[fixed..]).unwrap().unwrap();
    let block = cut(order.block(frame.extensions.deadline_us));
    let without = Frame { extensions: Extensions::default(), payload: &[], ..frame };
    let mut again = encode(&without);
    again.splice(fixed..fixed, block);
    again.extend_from_slice(frame.payload);
    again
}

/// Every ```` ```extension-vector ```` block: name, bytes and words.
fn vectors() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let blocks = PAGE.split("\n```extension-vector\nname: ").skip(1);
    let parse = |block: &'static str| {
        let (name, rest) = block.split("\n```").next()?.split_once("\nhex:\n")?;
        let (hex, words) = rest.rsplit_once('\n')?;
        let byte = |digits| u8::from_str_radix(digits, 16).ok();
        Some((name, hex.split_whitespace().map(byte).collect::<Option<Vec<u8>>>()?, words))
    };
    blocks.map(|block| parse(block).unwrap()).collect()
}

#[test]
fn read__matches_every_vector_and_encoders_give_it_back() {
    let vectors = vectors();
    assert!(vectors.len() >= 10, "{}", vectors.len());
    for (name, bytes, expected) in vectors {
        match expected.split_once(": ").unwrap() {
            ("frame", frame) => {
                assert_eq!(words(&bytes).as_deref(), Ok(frame), "{name}");
                assert_eq!(encode_again(&bytes), bytes, "{name}");
            }
            ("received", frame) => assert_eq!(words(&bytes).as_deref(), Ok(frame), "{name}"),
            ("malformed", rule) => {
                assert_eq!(words(&bytes).map_err(|error| error.0), Err(rule), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

fn bitmap() -> impl Strategy<Value = [u64; 4]> {
    let word = || prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
    [word(), word(), word(), word()]
}

fn credit() -> impl Strategy<Value = (Header, Credit)> {
    (any::<[u32; 3]>(), bitmap()).prop_map(|([cumulative, echo, token], mut bitmap)| {
        bitmap[0] &= !1;
        let flags = Flags::EXTENDED;
        let header = Header { kind: Kind::Credit, flags, session: 3, token, aux: 0, request: 70 };
        (header, Credit { cumulative, echo, bitmap })
    })
}

fn order() -> impl Strategy<Value = Order> {
    (0..1u32 << 31, 0..256u32, any::<bool>()).prop_map(|(ended, ahead, synchronises)| Order {
        sequence: (ended + ahead) & (u32::MAX >> 1),
        synchronises,
        ended,
    })
}

proptest! {
    #[test]
    fn marks__give_back_what_was_encoded(
        (header, credit) in credit(),
        from in any::<u32>(),
        mut words in bitmap(),
    ) {
        words[0] |= 1;
        let marks = Marks { from, words };
        let bytes = cut(marks.encode(&credit, header.words()));
        prop_assert_eq!(Marks::read(header.flags, &bytes[16..]), Ok(Some(marks)));
        // A receiver that does not know marks reads the same CREDIT.
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert_eq!((frame.header, frame.fields), (header, Fields::Credit(credit)));
        let naive: Vec<u32> = (0..256u32)
            .filter(|i| words[*i as usize / 64] & 1 << (i % 64) != 0)
            .filter_map(|i| from.checked_add(i))
            .collect();
        prop_assert_eq!(marks.packets().collect::<Vec<_>>(), naive);
    }

    #[test]
    fn order__gives_back_what_was_encoded(order in order(), deadline_us in any::<Option<u32>>()) {
        let block = cut(order.block(deadline_us));
        prop_assert_eq!(Order::read(Flags::EXTENDED, &block), Ok(Some(order)));
        let (extensions, rest) = read_extensions(Flags::EXTENDED, &block).unwrap();
        prop_assert_eq!((extensions.deadline_us, rest), (deadline_us, &[][..]));
    }

    #[test]
    fn order__is_possible_within_the_window(ended in 0..1u32 << 31, sequence in 0..1u32 << 31) {
        let ahead = (u64::from(sequence) + (1 << 31) - u64::from(ended)) % (1 << 31);
        let order = Order { sequence, synchronises: false, ended };
        prop_assert_eq!(order.is_possible(), ahead < 256);
    }

    #[test]
    fn read__any_block_without_harm(
        block in vec(prop_oneof![4 => 0u8..16, 1 => any::<u8>()], 0..80),
        extended in any::<bool>(),
    ) {
        let flags = if extended { Flags::EXTENDED } else { Flags(0) };
        let is_block = read_extensions(flags, &block).is_ok();
        let order = Order::read(flags, &block);
        let marks = Marks::read(flags, &[&[0; 8], &block[..]].concat());
        prop_assert!(is_block || (order.is_err() && marks.is_err()));
        if let Ok(Some(marks)) = marks {
            prop_assert_eq!(marks.packets().next(), Some(marks.from));
        }
        if let Ok(Some(order)) = order {
            prop_assert!(order.is_possible());
        }
        prop_assert!(extended || (order == Ok(None) && marks == Ok(None)));
    }
}

/// Records of every length behind every other record, and behind a record of the same type.
#[test]
fn read__the_last_record_counts_and_wrong_lengths_are_refused() {
    for length in 0..=60u8 {
        let value: Vec<u8> = (0..length).map(|at| u8::from(at % 4 == 0)).collect();
        let block = |kind: u8, before: &[u8]| {
            let records = [before, &[kind, length], &value].concat();
            [&[records.len() as u8, 0][..], &records].concat()
        };
        for before in [&[][..], &[0, 3, 1, 1, 1], &[9, 0]] {
            let order = Order::read(Flags::EXTENDED, &block(6, before));
            assert_eq!(order.is_ok(), length == 8, "{length}");
            let credit = [&[0; 8], &block(5, before)[..]].concat();
            let marks = Marks::read(Flags::EXTENDED, &credit);
            assert_eq!(marks.is_ok(), [12, 20, 28, 36].contains(&length), "{length}");
        }
    }
    let first = Order { sequence: 1, synchronises: false, ended: 1 };
    let last = Order { sequence: 9, synchronises: true, ended: 4 };
    let records = [&cut(first.block(None))[2..], &cut(last.block(None))[2..]].concat();
    let block = [&[records.len() as u8, 0][..], &records].concat();
    assert_eq!(Order::read(Flags::EXTENDED, &block), Ok(Some(last)));
}

panics! {
    encode__marks_without_their_first_packet: "the first packet of marks is marked" => {
        let credit = Credit { cumulative: 1, echo: 0, bitmap: [0; 4] };
        let header = Header::parse(&[0x14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap().0;
        Marks { from: 1, words: [2, 0, 0, 0] }.encode(&credit, header.words());
    };
    block__order_beyond_the_window: "within the window of unfinished calls" => {
        Order { sequence: 256, synchronises: true, ended: 0 }.block(None);
    };
}
