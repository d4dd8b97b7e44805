//! The head of a sealed datagram, in clear.

use super::{HEAD_BYTES, OVERHEAD_BYTES, PATH_END};

/// The first byte of a sealed datagram. Below the first bytes of frames, and next to the first byte of a bundle.
pub const SEALED_MARK: u8 = 0x0E;

#[inline]
pub(super) fn encode(path: u32, number: u64) -> [u8; HEAD_BYTES] {
    assert!(path < PATH_END, "a path has 24 bits");
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&(path << 8 | u32::from(SEALED_MARK)).to_le_bytes());
    head[4..].copy_from_slice(&number.to_le_bytes());
    head
}

/// A received datagram with the form of a sealed datagram. The contents are unknown until a receiver
/// opens the datagram.
pub(crate) struct SealedDatagram<'a> {
    pub(super) head: &'a [u8; HEAD_BYTES],
    /// The ciphertext of at least one byte, and the tag.
    pub(super) body: &'a mut [u8],
}

impl<'a> SealedDatagram<'a> {
    /// Returns `None` if the datagram has another first byte, or no room for head, tag and a byte between.
    #[inline]
    pub(crate) fn parse(datagram: &'a mut [u8]) -> Option<Self> {
        if datagram.first() != Some(&SEALED_MARK) || datagram.len() <= OVERHEAD_BYTES {
            return None;
        }
        let (head, body) = datagram.split_first_chunk_mut()?;
        Some(Self { head, body })
    }

    /// The receiver's number of the link.
    #[inline]
    pub(crate) fn path(&self) -> u32 {
        let [mark_and_path @ .., _, _, _, _, _, _, _, _] = *self.head;
        u32::from_le_bytes(mark_and_path) >> 8
    }

    #[inline]
    pub(super) fn number(&self) -> u64 {
        let [_, _, _, _, number @ ..] = *self.head;
        u64::from_le_bytes(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encode__of_a_known_head() {
        let head = encode(0x00AB_CDEF, 0x0123_4567_89AB_CDEF);
        assert_eq!(head, *b"\x0E\xEF\xCD\xAB\xEF\xCD\xAB\x89\x67\x45\x23\x01");
        let mut datagram = [&head[..], &[7; 17]].concat();
        let sealed = SealedDatagram::parse(&mut datagram).unwrap();
        assert_eq!((sealed.path(), sealed.number()), (0x00AB_CDEF, 0x0123_4567_89AB_CDEF));
        assert_eq!((*sealed.head, &sealed.body[..]), (head, &[7; 17][..]));
    }

    #[test]
    fn parse__of_the_extremes() {
        for (path, number) in [(0, 0), (PATH_END - 1, u64::MAX), (1, 1 << 63), (PATH_END - 1, 0)] {
            let mut datagram = [&encode(path, number)[..], &[0; 17]].concat();
            let sealed = SealedDatagram::parse(&mut datagram).unwrap();
            assert_eq!((sealed.path(), sealed.number()), (path, number));
        }
    }

    #[test]
    fn parse__refuses_short_datagrams_and_other_marks() {
        for len in 0..=OVERHEAD_BYTES {
            assert!(SealedDatagram::parse(&mut vec![SEALED_MARK; len]).is_none(), "{len} bytes");
        }
        assert!(SealedDatagram::parse(&mut [SEALED_MARK; OVERHEAD_BYTES + 1]).is_some());
        for first in (0..=u8::MAX).filter(|&first| first != SEALED_MARK) {
            let mut datagram = [SEALED_MARK; 100];
            datagram[0] = first;
            assert!(SealedDatagram::parse(&mut datagram).is_none(), "{first:#x}");
        }
    }

    panics! {
        encode__of_an_impossible_path: "24 bits" => encode(PATH_END, 0);
    }
}
