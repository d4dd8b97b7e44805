//! All values of the bits that direct the decoders, compared with a literal reading of the specification.
//!
//! | subject | exhaustive in |
//! | --- | --- |
//! | header | the first two bytes (kind, version, flags), every length below a header, every bit |
//! | frames | kind, flags, every length up to three words beyond the longest, words of the bitmap at their ends |
//! | extension blocks | all of up to six bytes out of nine significant values, behind every kind |
//! | announcements | every length, every bit of both numbers |

use super::*;

/// The longest frame without an extension block and without a payload: PULL with a whole bitmap.
const LONGEST: usize = 32 + 32;

/// The kinds of §3.1, as numbers.
const KINDS: [u8; 10] = [0, 1, 2, 3, 4, 5, 7, 12, 13, 14];
const CREDIT: u8 = 4;
const PULL: u8 = 5;
const CANCEL: u8 = 7;
const PROBE: u8 = 14;

/// Returns the number of bytes between the header and the extension block (§3.1).
fn fixed_bytes(kind: u8) -> usize {
    match kind {
        0 | 1 | CANCEL | PROBE => 0,
        PULL => 16,
        _ => 8,
    }
}

/// Returns the end of a valid extension block (§3.4).
fn block_end(bytes: &[u8], start: usize) -> Option<usize> {
    let length = usize::from(*bytes.get(start)?) + 256 * usize::from(*bytes.get(start + 1)?);
    let (mut at, end) = (start + 2, start + 2 + length);
    if end > bytes.len() {
        return None;
    }
    while at < end {
        let (kind, length) = (bytes[at], usize::from(*bytes[..end].get(at + 1)?));
        if kind >= 128 || (kind == 2 && length != 4) || at + 2 + length > end {
            return None;
        }
        at += 2 + length;
    }
    Some(end)
}

/// Returns true if §3 accepts the bytes as a frame.
fn is_frame(bytes: &[u8]) -> bool {
    let [first, second, ..] = *bytes else { return false };
    let kind = first & 0xF;
    let fixed_end = 16 + fixed_bytes(kind);
    if first >> 4 != 1 || !KINDS.contains(&kind) || bytes.len() < fixed_end {
        return false;
    }
    let has_block = second & 2 != 0;
    let block = if has_block { block_end(bytes, fixed_end) } else { Some(fixed_end) };
    let Some(rest) = block.map(|end| &bytes[end..]) else { return false };
    match kind {
        CREDIT | PULL => {
            rest.len().is_multiple_of(8)
                && rest.len() <= 32
                && rest.first().is_none_or(|first| first & 1 == 0)
        }
        CANCEL | PROBE => rest.is_empty(),
        _ => true,
    }
}

/// Parses, and compares with the specification. Encodes accepted frames again where version 1 would send the
/// same bytes.
fn check(bytes: &[u8]) {
    let parsed = Frame::parse(bytes);
    assert_eq!(parsed.is_ok(), is_frame(bytes), "{bytes:?}");
    let Ok(frame) = parsed else { return };
    assert!(bytes.ends_with(frame.payload));
    if frame.header.flags.extended() {
        return;
    }
    let again = encode(&frame);
    let (same, left_out) = bytes.split_at(again.len());
    // Missing words of a bitmap are zero; the last word of a PULL's fields is reserved.
    let reserved = if matches!(frame.fields, Fields::Pull(_)) { 28..32 } else { 0..0 };
    assert!(again[reserved.clone()].iter().all(|byte| *byte == 0));
    assert_eq!(again[..reserved.start], same[..reserved.start]);
    assert_eq!(again[reserved.end..], same[reserved.end..]);
    assert!(left_out.iter().all(|byte| *byte == 0), "{bytes:?}");
}

#[test]
fn header__of_every_kind_version_and_flags() {
    let mut bytes: [u8; 16] = std::array::from_fn(|at| at as u8 | 0xA0);
    for first in 0..=u8::MAX {
        for second in 0..=u8::MAX {
            (bytes[0], bytes[1]) = (first, second);
            let is_sound = first >> 4 == 1 && KINDS.contains(&(first & 0xF));
            let parsed = Header::parse(&bytes);
            assert_eq!(parsed.is_ok(), is_sound, "{first:#x} {second:#x}");
            if let Ok((header, rest)) = parsed {
                assert_eq!(header.encode(), bytes);
                assert_eq!((header.kind as u8, header.flags.0), (first & 0xF, second & 0xF));
                assert!(rest.is_empty());
            }
            // A shorter slice is no header.
            assert!((0..16).all(|len| Header::parse(&bytes[..len]).is_err()));
        }
    }
}

/// Every one of the 128 bits belongs to one field, at a fixed place.
#[test]
fn header__every_bit_is_in_its_field() {
    for kind in KINDS {
        for bit in 8..128 {
            let word = u128::from(kind) | 0x10 | 1 << bit;
            let bytes = word.to_le_bytes();
            let (header, _) = Header::parse(&bytes).unwrap();
            let found = [
                (8, u64::from(header.flags.0)),
                (12, header.session.into()),
                (32, header.token.into()),
                (64, header.aux.into()),
                (80, header.request),
            ];
            let together = found.iter().map(|(at, value)| u128::from(*value) << at);
            assert_eq!(together.sum::<u128>(), 1 << bit);
            assert_eq!(header.encode(), bytes);
        }
    }
}

#[test]
fn frame__of_every_kind_flags_and_length() {
    // Bit patterns for the ends of a word: none, all, the first, all but the first.
    let fills: [(u8, u8); 4] = [(0, 0), (0xFF, 0xFF), (1, 0), (0xFE, 0xFF)];
    for kind in 0..16u8 {
        for flags in 0..16 {
            for len in 0..LONGEST + 24 {
                for (first, rest) in fills {
                    let mut bytes = vec![rest; len];
                    // The first bytes behind the header, and behind the fixed fields.
                    for at in [16, 24, 32].into_iter().filter(|at| *at < len) {
                        bytes[at] = first;
                    }
                    for (byte, value) in bytes.iter_mut().zip([0x10 | kind, flags]) {
                        *byte = value;
                    }
                    check(&bytes);
                }
            }
        }
    }
}

#[test]
fn bitmap__of_all_words_at_their_ends() {
    let ends = [0, 1, 2, 1 << 63, u64::MAX - 1, u64::MAX];
    for kind in [CREDIT, PULL] {
        for words in 0..=5usize {
            for choice in 0..ends.len().pow(words as u32) {
                let mut bytes = vec![0; 16 + fixed_bytes(kind)];
                bytes[0] = 0x10 | kind;
                for place in 0..words as u32 {
                    let word = ends[choice / ends.len().pow(place) % ends.len()];
                    bytes.extend_from_slice(&word.to_le_bytes());
                }
                check(&bytes);
            }
        }
    }
}

#[test]
fn extensions__all_short_blocks_of_bytes_that_matter() {
    const BYTES: [u8; 9] = [0, 1, 2, 3, 4, 5, 127, 128, 255];
    const LEN_MAX: u32 = 6;
    for kind in [0, CREDIT, CANCEL] {
        let head = 16 + fixed_bytes(kind);
        for len in 0..=LEN_MAX {
            let mut bytes = vec![0; head + len as usize];
            (bytes[0], bytes[1]) = (0x10 | kind, 2);
            for choice in 0..BYTES.len().pow(len) {
                let mut rest = choice;
                for byte in &mut bytes[head..] {
                    *byte = BYTES[rest % BYTES.len()];
                    rest /= BYTES.len();
                }
                check(&bytes);
            }
        }
    }
}

/// A deadline behind every kind, as the last record and with records of every length before.
#[test]
fn extensions__the_last_deadline_counts_behind_every_kind() {
    for kind in KINDS {
        for padding in 0..=u8::MAX {
            let head = 16 + fixed_bytes(kind);
            let mut bytes = vec![0; head];
            (bytes[0], bytes[1]) = (0x10 | kind, 2);
            let records = 2 + usize::from(padding) + 2 * 6;
            bytes.extend_from_slice(&(records as u16).to_le_bytes());
            bytes.extend([0, padding]);
            bytes.extend(std::iter::repeat_n(0xFF, padding.into()));
            bytes.extend([2, 4, 9, 9, 9, 9, 2, 4, 1, 2, 3, 4]);
            check(&bytes);
            let found = Frame::parse(&bytes).unwrap().extensions.deadline_us;
            let heeded = (!matches!(kind, CREDIT | PULL | CANCEL | PROBE)).then_some(0x0403_0201);
            assert_eq!(found, heeded);
            // A block cut at any place is not valid.
            for len in head..bytes.len() {
                check(&bytes[..len]);
                assert!(Frame::parse(&bytes[..len]).is_err());
            }
        }
    }
}

#[test]
fn deadline_word__is_a_block_for_every_bit() {
    for left_us in (0..32).map(|bit| 1 << bit).chain([0, u32::MAX, u32::MAX - 1]) {
        let block = deadline_word(left_us).to_le_bytes();
        let (extensions, rest) = read_extensions(Flags::EXTENDED, &block).unwrap();
        assert_eq!((extensions.deadline_us, rest), (Some(left_us), &[][..]));
        assert_eq!(word_left_us(deadline_word(left_us)), Some(left_us));
    }
    // A different first half makes a different block.
    for bit in 0..32 {
        assert_eq!(word_left_us(deadline_word(7) ^ 1 << bit), None);
    }
}

panics! {
    announcement__with_a_deadline_that_the_header_hides: "a deadline is announced by flag X" => {
        let head = Header::parse(&[0x1D, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap().0;
        let part = Part { size: 1, packet: 0, grant: 1 };
        Announcement { group: 1, sequence: 1 }.encode(head.words(), part, Some(deadline_word(5)));
    };
}

#[test]
fn announcement__of_every_length_and_bit() {
    let head = Header::parse(&[0x1D, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap().0;
    let part = Part { size: 1, packet: 0, grant: 1 };
    for len in (0..40).filter(|len| *len != 12) {
        assert!(Announcement::parse(&vec![0; len]).is_err(), "{len}");
    }
    for bit in 0..96 {
        let payload = &(1u128 << bit).to_le_bytes()[..12];
        let parsed = Announcement::parse(payload);
        let is_possible = bit < 20 || (32..80).contains(&bit);
        assert_eq!(parsed.is_ok(), is_possible, "bit {bit}");
        let Ok(announcement) = parsed else { continue };
        for deadline in [None, Some(deadline_word(5))] {
            let flags = if deadline.is_some() { Flags::EXTENDED } else { Flags::NONE };
            let words = Header { flags, ..head }.words();
            let frame = cut(announcement.encode(words, part, deadline));
            assert!(
                frame.ends_with(payload) && frame.len() == 36 + 8 * usize::from(deadline.is_some())
            );
        }
    }
}
