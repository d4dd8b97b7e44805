//! The datagram layer of the wire protocol: one frame alone, or several in a bundle.
//!
//! ```text
//! datagram = frame                                  first byte is not 0x0F
//!          | 0x0F (u16 length, length bytes)+       little-endian, length >= 1
//! ```
//!
//! The records of a bundle fill the datagram exactly. A frame carries the protocol version in the
//! high half of its first byte, so 0x0F (version 0, kind 15) begins no frame. A frame alone costs
//! no byte of framing.

/// The first byte of a bundle.
pub const BUNDLE_MARK: u8 = 0x0F;

/// Size of the mark at the start of a bundle.
pub const MARK_BYTES: usize = 1;

/// Size of the length before each frame of a bundle.
pub const LENGTH_BYTES: usize = 2;

/// Returns the frames of a datagram in order, or `None` if malformed: empty, or a bundle with
/// lengths that do not fill the datagram exactly. The function checks the whole bundle before the
/// first frame, hence a damaged datagram has no effect at all.
#[inline]
pub fn frames(datagram: &[u8]) -> Option<Frames<'_>> {
    match datagram {
        [] => None,
        [BUNDLE_MARK, records @ ..] => {
            records_fill_exactly(records).then_some(Frames { rest: records, is_bundle: true })
        }
        frame => Some(Frames { rest: frame, is_bundle: false }),
    }
}

fn records_fill_exactly(mut records: &[u8]) -> bool {
    if records.is_empty() {
        return false;
    }
    while !records.is_empty() {
        match split_record(records) {
            Some((_, rest)) => records = rest,
            None => return false,
        }
    }
    true
}

/// Splits a list of records into its first frame and the rest.
#[inline]
fn split_record(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = records.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::from(u16::from_le_bytes(*length));
    if length == 0 { None } else { rest.split_at_checked(length) }
}

/// Iterates over the frames of a well-formed datagram; made by [`frames`].
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
    is_bundle: bool,
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.is_bundle {
            let (frame, rest) = split_record(self.rest)?;
            self.rest = rest;
            return Some(frame);
        }
        let frame = std::mem::take(&mut self.rest);
        (!frame.is_empty()).then_some(frame)
    }
}

/// The bytes a frame of `frame_bytes` adds to a bundle.
#[inline]
pub const fn record_bytes(frame_bytes: usize) -> usize {
    LENGTH_BYTES + frame_bytes
}

#[inline]
pub(crate) const fn framing_bytes(frame_count: usize) -> usize {
    MARK_BYTES + frame_count * LENGTH_BYTES
}

/// Begins a bundle at the start of `buffer` and returns the bundle's length.
///
/// # Panics
/// When the buffer is empty.
#[inline]
pub fn begin(buffer: &mut [u8]) -> usize {
    buffer[0] = BUNDLE_MARK;
    MARK_BYTES
}

/// Adds the frame `head` + `body` behind the `used` bytes of a bundle and returns its new length.
///
/// # Panics
/// When the frame does not fit into the buffer, is empty, or is longer than 65,535 bytes.
#[inline]
pub fn append(buffer: &mut [u8], used: usize, head: &[u8], body: &[u8]) -> usize {
    let frame_bytes = head.len() + body.len();
    assert!((1..=usize::from(u16::MAX)).contains(&frame_bytes), "frame of {frame_bytes} bytes");
    let record = &mut buffer[used..used + record_bytes(frame_bytes)];
    record[..LENGTH_BYTES].copy_from_slice(&(frame_bytes as u16).to_le_bytes());
    let (to_head, to_body) = record[LENGTH_BYTES..].split_at_mut(head.len());
    to_head.copy_from_slice(head);
    to_body.copy_from_slice(body);
    used + record_bytes(frame_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The specification read literally, with indices.
    fn naive_frames(datagram: &[u8]) -> Option<Vec<Vec<u8>>> {
        if datagram.is_empty() {
            return None;
        }
        if datagram[0] != 0x0F {
            return Some(vec![datagram.to_vec()]);
        }
        let mut found = Vec::new();
        let mut at = 1;
        while at < datagram.len() {
            if at + 2 > datagram.len() {
                return None;
            }
            let length = datagram[at] as usize + 256 * datagram[at + 1] as usize;
            if length == 0 || at + 2 + length > datagram.len() {
                return None;
            }
            found.push(datagram[at + 2..at + 2 + length].to_vec());
            at += 2 + length;
        }
        (!found.is_empty()).then_some(found)
    }

    fn parsed(datagram: &[u8]) -> Option<Vec<Vec<u8>>> {
        frames(datagram).map(|frames| frames.map(<[u8]>::to_vec).collect())
    }

    fn bundle_of(list: &[Vec<u8>]) -> Vec<u8> {
        let mut buffer = vec![0; 1 + list.iter().map(|f| record_bytes(f.len())).sum::<usize>()];
        let used = list.iter().fold(begin(&mut buffer), |used, frame| {
            let (head, body) = frame.split_at(frame.len() / 2);
            append(&mut buffer, used, head, body)
        });
        assert_eq!(used, buffer.len());
        buffer
    }

    #[test]
    fn frames__of_known_datagrams() {
        assert_eq!(parsed(&[]), None);
        assert_eq!(parsed(&[0x10]), Some(vec![vec![0x10]]));
        assert_eq!(parsed(&[0x0F]), None);
        assert_eq!(parsed(&[0x0F, 1]), None);
        assert_eq!(parsed(&[0x0F, 0, 0]), None);
        assert_eq!(parsed(&[0x0F, 1, 0]), None);
        assert_eq!(parsed(&[0x0F, 1, 0, 7]), Some(vec![vec![7]]));
        assert_eq!(parsed(&[0x0F, 1, 0, 7, 9]), None);
        assert_eq!(parsed(&[0x0F, 1, 0, 7, 2, 0, 8, 9]), Some(vec![vec![7], vec![8, 9]]));
        assert_eq!(parsed(&[0x0F, 0, 1, 7]), None);
    }

    /// All datagrams of up to eight bytes from a set of five: the lengths 0, 1 and 2, the mark, and
    /// lengths beyond the end.
    #[test]
    fn frames__of_all_short_datagrams_match_the_naive_parser() {
        const BYTES: [u8; 5] = [0, 1, 2, BUNDLE_MARK, 0xFF];
        const LEN_MAX: u32 = if cfg!(miri) { 4 } else { 8 };
        for len in 0..=LEN_MAX {
            let mut datagram = vec![0; len as usize];
            for choice in 0..BYTES.len().pow(len) {
                let mut rest = choice;
                for byte in &mut datagram {
                    *byte = BYTES[rest % BYTES.len()];
                    rest /= BYTES.len();
                }
                let found = parsed(&datagram);
                assert_eq!(found, naive_frames(&datagram), "{datagram:?}");
                if let Some(list) = found.filter(|_| datagram[0] == BUNDLE_MARK) {
                    assert_eq!(bundle_of(&list), datagram);
                }
            }
        }
    }

    /// A record of every length, alone and behind another: exact, one byte short, one byte over.
    #[test]
    fn frames__of_every_length() {
        let mut datagram = vec![0x10; 4 + 2 + usize::from(u16::MAX) + 1];
        for length in 0..=u16::MAX {
            let whole = length > 0;
            for first in [1, 4] {
                datagram[..4].copy_from_slice(&[BUNDLE_MARK, 1, 0, 0x10]);
                datagram[first..first + 2].copy_from_slice(&length.to_le_bytes());
                let end = first + 2 + usize::from(length);
                let taken = |end: usize| -> Option<(usize, usize)> {
                    let mut list = frames(&datagram[..end])?;
                    let last = list.by_ref().last()?;
                    Some((last.len(), last.as_ptr().addr() - datagram.as_ptr().addr()))
                };
                let expected = whole.then_some((usize::from(length), first + 2));
                assert_eq!(taken(end), expected, "{length}");
                // A record with a byte more or less than its length is malformed.
                assert_eq!(taken(end + 1), None, "{length}");
                assert_eq!(taken(end - 1), None, "{length}");
            }
        }
    }

    #[test]
    fn append__takes_every_length_that_a_record_can_have() {
        let frame = vec![0x10; usize::from(u16::MAX) + 1];
        let mut buffer = vec![0; MARK_BYTES + record_bytes(frame.len())];
        for length in (1..=300).chain(65_200..=usize::from(u16::MAX)) {
            let used = begin(&mut buffer);
            let end = append(&mut buffer, used, &frame[..length / 3], &frame[length / 3..length]);
            let mut found = frames(&buffer[..end]).unwrap();
            assert_eq!((found.next(), found.next()), (Some(&frame[..length]), None));
        }
        for impossible in [0, frame.len()] {
            let mut buffer = buffer.clone();
            let appended = std::panic::catch_unwind(move || {
                append(&mut buffer, 1, &[], &frame_of(impossible))
            });
            assert!(appended.is_err(), "{impossible}");
        }
    }

    fn frame_of(length: usize) -> Vec<u8> {
        vec![0x10; length]
    }

    /// Generates datagrams that resemble bundles often enough to reach every branch.
    fn bundle_like() -> impl Strategy<Value = Vec<u8>> {
        let small = prop_oneof![4 => 0..6u8, 1 => any::<u8>()];
        (any::<bool>(), vec(small, 0..60)).prop_map(|(marked, mut bytes)| {
            if marked {
                bytes.insert(0, BUNDLE_MARK);
            }
            bytes
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

        #[test]
        fn frames__match_the_naive_parser(datagram in bundle_like()) {
            prop_assert_eq!(parsed(&datagram), naive_frames(&datagram));
        }

        #[test]
        fn frames__give_back_what_was_appended(list in vec(vec(any::<u8>(), 1..300), 1..20)) {
            prop_assert_eq!(parsed(&bundle_of(&list)), Some(list));
        }

        #[test]
        fn frames__of_a_cut_bundle_are_none_or_whole(
            list in vec(vec(any::<u8>(), 1..9), 1..9),
            cut in any::<prop::sample::Index>(),
        ) {
            let bundle = bundle_of(&list);
            let cut = &bundle[..cut.index(bundle.len())];
            if let Some(found) = parsed(cut) {
                prop_assert_eq!(&found[..], &list[..found.len()]);
            }
            prop_assert_eq!(parsed(cut), naive_frames(cut));
        }
    }
}
