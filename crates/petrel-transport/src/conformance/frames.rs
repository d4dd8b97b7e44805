//! Frames with distinct contents, so mixed or damaged bytes show.

use std::collections::BTreeSet;

use super::Medium;

/// First byte of a frame with tag 0: protocol version 1 in the high half, so no frame looks like a
/// bundle or like another version.
const FIRST_BYTE: u8 = 0x10;

/// Frame number `sequence` of the sender or link `tag` (below 16), `len` bytes long.
pub(super) fn frame(tag: u8, sequence: u32, len: usize) -> Vec<u8> {
    assert!(tag < 16 && len > 0);
    let mut state = u64::from(tag) << 32 | u64::from(sequence);
    let mut bytes: Vec<u8> = vec![FIRST_BYTE | tag];
    bytes.extend(sequence.to_le_bytes());
    while bytes.len() < len {
        bytes.extend(next(&mut state).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The generator SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// A burst's worth of frames of sizes from 1 to `len_max`, `bytes_max` in all.
pub(super) fn mixed(tag: u8, round: u32, len_max: usize, bytes_max: usize) -> Vec<Vec<u8>> {
    let mut state = u64::from(round) << 8 | u64::from(tag);
    let mut left = bytes_max;
    (0..64u32)
        .map(|index| {
            let others = 63 - index as usize;
            // Every second frame is small, as in a stream of small calls with some large ones.
            let most = if index % 2 == 0 { len_max } else { len_max.min(100) };
            let len = 1 + next(&mut state) as usize % most.min(left.saturating_sub(others)).max(1);
            left = left.saturating_sub(len);
            frame(tag, round * 64 + index, len)
        })
        .collect()
}

/// Checks that all of `sent` arrived, in order if the medium keeps the order; if the medium may lose frames, that only sent frames
/// arrived.
pub(super) fn check_arrival(sent: &[Vec<u8>], arrived: &[Vec<u8>], medium: Medium) {
    if !medium.is_lossless {
        let is_known = |frame| sent.contains(frame);
        assert!(arrived.iter().all(is_known), "a frame arrived that was not sent");
        return;
    }
    if !medium.keeps_order {
        let sorted = |frames: &[Vec<u8>]| frames.iter().cloned().collect::<BTreeSet<_>>();
        assert_eq!(arrived.len(), sent.len(), "as many frames as were sent");
        assert!(
            sorted(arrived) == sorted(sent),
            "the frames that arrived are those that were sent"
        );
        return;
    }
    assert_eq!(arrived.len(), sent.len(), "as many frames as were sent");
    for (index, (got, expected)) in arrived.iter().zip(sent).enumerate() {
        assert_eq!(got.len(), expected.len(), "the length of frame {index}");
        assert!(got == expected, "frame {index} of {} bytes differs", got.len());
    }
}
