//! The contents of an ANNOUNCE, which refers to packets sent by multicast (`docs/wire-protocol.md` §12.3).

use super::{Flags, Malformed, Part};
use crate::limits::{CONTROL_FRAME_BYTES_MAX, DEADLINE_BLOCK_BYTES, PART_HEADER_BYTES};

use super::control::ControlBytes;

const ANNOUNCEMENT_BYTES: usize = 12;

const _: () = assert!(
    PART_HEADER_BYTES + DEADLINE_BLOCK_BYTES + ANNOUNCEMENT_BYTES <= CONTROL_FRAME_BYTES_MAX
);

/// Identifies a request among a group's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The group's number: the session field of its frames.
    pub group: u32,
    /// The message's number in the group: the request field of its packets, 48 bits.
    pub sequence: u64,
}

impl Announcement {
    /// Reads the payload of an ANNOUNCE.
    ///
    /// # Errors
    /// [`Malformed`] if the length is wrong or a number is out of range.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let Ok(bytes) = <[u8; ANNOUNCEMENT_BYTES]>::try_from(payload) else {
            return Err(Malformed("ANNOUNCE of a wrong length"));
        };
        let word = u128::from_le_bytes(std::array::from_fn(|at| *bytes.get(at).unwrap_or(&0)));
        let (group, sequence) = (word as u32, (word >> 32) as u64);
        if group >= 1 << 20 || sequence >= 1 << 48 {
            return Err(Malformed("ANNOUNCE of a number out of range"));
        }
        Ok(Self { group, sequence })
    }

    /// Returns the whole frame: the common header, the fields of a part, the deadline if the header's flags
    /// announce one, and the announcement.
    pub fn encode(&self, header: [u64; 2], part: Part, deadline: Option<u64>) -> ControlBytes {
        assert!(
            self.group < 1 << 20 && self.sequence < 1 << 48,
            "a group's number has 20 bits, and a message's number 48"
        );
        assert_eq!(
            Flags((header[0] >> 8) as u8 & 0xF).extended(),
            deadline.is_some(),
            "a deadline is announced by flag X"
        );
        let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
        let mut len = 0;
        let mut put = |part: &[u8]| {
            bytes[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        };
        put(&part.encode(header));
        if let Some(word) = deadline {
            put(&word.to_le_bytes());
        }
        put(&self.group.to_le_bytes());
        put(&self.sequence.to_le_bytes());
        (bytes, len)
    }
}
