//! The layout of a segment.
//!
//! | offset | contents |
//! | --- | --- |
//! | 0 | magic, 8 bytes |
//! | 8 | layout version, `u32` |
//! | 12 | largest frame in bytes, `u32` |
//! | 16 | bytes of one ring, `u64` |
//! | 64 | whether the creator's side is in use, `u32` |
//! | 68 | whether the opener's side is in use, `u32` |
//! | 128 | control words of the ring from the creator to the opener |
//! | 384 | control words of the ring from the opener to the creator |
//! | 4096 | bytes of the ring from the creator to the opener |
//! | 4096 + ring | bytes of the ring from the opener to the creator |
//!
//! Numbers are little-endian, except the control words in the processor's byte order. The first 24
//! bytes are written once, before the descriptor is shared.

use super::config::Geometry;
use super::error::ShmError;
use super::ring::Control;

const MAGIC: [u8; 8] = *b"petrelsm";

/// Changes with the layout here, with the layout of the rings' control words and records, and with
/// the wake-up protocol of the sides.
const LAYOUT_VERSION: u32 = 3;

/// Bytes of the header proper.
pub(super) const HEADER_BYTES: usize = 24;

/// Offset of the two words that mark a side as in use.
pub(super) const CLAIMS_OFFSET: usize = 64;

const CONTROL_OFFSET: usize = 128;
const CONTROL_BYTES: usize = size_of::<Control>();
const DATA_OFFSET: usize = 4096;

// Records begin at cache lines; the second ring, behind a power of two, does too.
const _: () = assert!(DATA_OFFSET.is_multiple_of(super::ring::RECORD_ALIGN));

/// Size of the requested huge pages, and the most unneeded bytes of a segment.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

// Loom's atomics are larger than the words they model, and never live in a segment.
#[cfg(not(loom))]
const _: () = {
    assert!(CONTROL_BYTES == 256 && align_of::<Control>() == CONTROL_OFFSET);
    assert!(CONTROL_OFFSET + 2 * CONTROL_BYTES <= DATA_OFFSET);
};

/// Offset of a ring's control words; ring 0 goes from the creator to the opener.
pub(super) fn control_offset(ring: usize) -> usize {
    CONTROL_OFFSET + ring * CONTROL_BYTES
}

/// Offset of a ring's bytes.
pub(super) fn data_offset(ring: usize, geometry: Geometry) -> usize {
    DATA_OFFSET + ring * geometry.ring_bytes()
}

pub(super) fn segment_bytes(geometry: Geometry) -> usize {
    data_offset(2, geometry)
}

pub(super) fn encode_header(geometry: Geometry) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(geometry.max_frame_bytes() as u32).to_le_bytes());
    header[16..24].copy_from_slice(&(geometry.ring_bytes() as u64).to_le_bytes());
    header
}

/// Reads a header a peer wrote.
pub(super) fn decode_header(header: &[u8; HEADER_BYTES]) -> Result<Geometry, ShmError> {
    let [m0, m1, m2, m3, m4, m5, m6, m7, v0, v1, v2, v3, f0, f1, f2, f3, ring @ ..] = *header;
    if [m0, m1, m2, m3, m4, m5, m6, m7] != MAGIC {
        return Err(ShmError::NotASegment("it does not start with the magic number"));
    }
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    if version != LAYOUT_VERSION {
        return Err(ShmError::Version { theirs: version, ours: LAYOUT_VERSION });
    }
    let max_frame_bytes = u32::from_le_bytes([f0, f1, f2, f3]) as usize;
    usize::try_from(u64::from_le_bytes(ring))
        .ok()
        .and_then(|ring_bytes| Geometry::new(ring_bytes, max_frame_bytes).ok())
        .ok_or(ShmError::NotASegment("its header has impossible sizes"))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn decode_header__returns_what_was_encoded() {
        let geometry = Geometry::new(1 << 20, 9000).unwrap();
        assert_eq!(decode_header(&encode_header(geometry)).unwrap(), geometry);
    }

    #[test]
    fn decode_header__refuses_every_changed_byte_but_other_valid_sizes() {
        let geometry = Geometry::new(1 << 20, 9000).unwrap();
        for at in 0..HEADER_BYTES {
            let mut header = encode_header(geometry);
            header[at] ^= 0x80;
            match decode_header(&header) {
                Err(_) => {}
                Ok(other) => assert!((12..16).contains(&at), "byte {at} gave {other:?}"),
            }
        }
    }
}
