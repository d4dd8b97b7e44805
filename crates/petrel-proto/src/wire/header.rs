//! The 16 bytes at the start of every frame (`docs/wire-protocol.md` §3).

use super::Malformed;
use crate::limits::{HEADER_BYTES, SESSIONS_MAX};

/// The protocol version of this crate.
pub const VERSION: u8 = 1;

/// The kind of a frame (§3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A request of one packet.
    Request = 0,
    /// A response of one packet, or an error.
    Response = 1,
    /// A packet of a request.
    RequestPart = 2,
    /// A packet of a response.
    ResponsePart = 3,
    /// Acknowledges request packets.
    Credit = 4,
    /// Acknowledges response packets and allows further packets.
    Pull = 5,
    /// The client has given up a request.
    Cancel = 7,
    /// A packet of a request to a group; session and token name the group.
    Multicast = 12,
    /// Announces a request with packets sent by multicast.
    Announce = 13,
    /// Asks whether frames get through, or answers.
    Probe = 14,
}

impl Kind {
    #[inline]
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Kind::Request,
            1 => Kind::Response,
            2 => Kind::RequestPart,
            3 => Kind::ResponsePart,
            4 => Kind::Credit,
            5 => Kind::Pull,
            7 => Kind::Cancel,
            12 => Kind::Multicast,
            13 => Kind::Announce,
            14 => Kind::Probe,
            _ => return None,
        })
    }

    /// Returns the name in the specification.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Request => "REQUEST",
            Kind::Response => "RESPONSE",
            Kind::RequestPart => "REQUEST_PART",
            Kind::ResponsePart => "RESPONSE_PART",
            Kind::Credit => "CREDIT",
            Kind::Pull => "PULL",
            Kind::Cancel => "CANCEL",
            Kind::Multicast => "MULTICAST",
            Kind::Announce => "ANNOUNCE",
            Kind::Probe => "PROBE",
        }
    }
}

/// The four flag bits (§3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

/// Aux bit of a response: the answer did not follow at once on the complete request, so the round trip is no
/// measurement of the network (§3.3).
pub const ANSWERED_LATER: u16 = 1 << 8;

/// Aux bit of an error response: the request's handler was not called, and will not be (§3.3).
pub const REFUSED: u16 = 1 << 9;

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// E: a frame of this request came with the ECN mark *Congestion Experienced*.
    pub const CONGESTION: Flags = Flags(1 << 0);
    /// X: an extension block is present.
    pub const EXTENDED: Flags = Flags(1 << 1);
    /// R: the frame repeats an earlier one.
    pub const REPEATS: Flags = Flags(1 << 2);
    /// W, of a CREDIT: the request runs, and the first packet of the answer needs no credit.
    pub const WAITS: Flags = Flags(1 << 3);

    /// Returns the union of two sets of flags.
    #[inline]
    pub const fn with(self, others: Flags) -> Flags {
        Flags(self.0 | others.0)
    }

    /// Returns true if a frame came with the mark *Congestion Experienced*.
    #[inline]
    pub const fn congestion(self) -> bool {
        self.0 & Self::CONGESTION.0 != 0
    }

    /// Returns true if an extension block is present.
    #[inline]
    pub const fn extended(self) -> bool {
        self.0 & Self::EXTENDED.0 != 0
    }

    /// Returns true if the frame repeats an earlier frame.
    #[inline]
    pub const fn repeats(self) -> bool {
        self.0 & Self::REPEATS.0 != 0
    }

    /// Returns true if a CREDIT returns all credits of a running request.
    #[inline]
    pub const fn waits(self) -> bool {
        self.0 & Self::WAITS.0 != 0
    }
}

/// The common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The frame's kind.
    pub kind: Kind,
    /// Flag bits.
    pub flags: Flags,
    /// Index of the session at the receiver, 20 bits.
    pub session: u32,
    /// The receiver's token of the session.
    pub token: u32,
    /// Method or status.
    pub aux: u16,
    /// Request number, 48 bits.
    pub request: u64,
}

impl Header {
    /// Parses the header. Returns the header and the bytes behind.
    ///
    /// # Errors
    /// [`Malformed`] if the frame is too short or of an unknown version or kind.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Malformed("shorter than a header"));
        };
        let (first, second) = words(head);
        if (first >> 4) as u8 & 0xF != VERSION {
            return Err(Malformed("unknown version"));
        }
        let Some(kind) = Kind::from_bits(first as u8 & 0xF) else {
            return Err(Malformed("unknown kind"));
        };
        let header = Self {
            kind,
            flags: Flags((first >> 8) as u8 & 0xF),
            session: (first >> 12) as u32 & 0xF_FFFF,
            token: (first >> 32) as u32,
            aux: second as u16,
            request: second >> 16,
        };
        Ok((header, rest))
    }

    /// Returns the header as bytes.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        to_bytes(self.words())
    }

    /// Returns the header as two words, sent in little-endian order.
    #[inline]
    pub fn words(&self) -> [u64; 2] {
        let to = Destination::new(self.session, self.token);
        to.words(self.kind, self.flags, self.aux, self.request)
    }
}

/// The constant part of the headers of all frames to one end of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination(u64);

impl Destination {
    /// Makes the destination from the index and token that the receiving end chose.
    #[inline]
    pub const fn new(session: u32, token: u32) -> Self {
        assert!(session < SESSIONS_MAX, "the session field of a frame has 20 bits");
        Self((VERSION as u64) << 4 | (session as u64) << 12 | (token as u64) << 32)
    }

    /// Returns the header of a frame as two words, sent in little-endian order.
    #[inline]
    pub const fn words(self, kind: Kind, flags: Flags, aux: u16, request: u64) -> [u64; 2] {
        debug_assert!(request < 1 << 48);
        [self.0 | kind as u64 | (flags.0 as u64) << 8, aux as u64 | request << 16]
    }
}

/// Returns the lowest twelve bits of a frame of this kind without flags.
#[inline]
pub(crate) const fn first_bits(kind: Kind) -> u32 {
    kind as u32 | (VERSION as u32) << 4
}

/// Returns header words as the bytes of a frame.
#[inline]
pub(crate) fn to_bytes<const WORDS: usize, const BYTES: usize>(words: [u64; WORDS]) -> [u8; BYTES] {
    const { assert!(WORDS * 8 == BYTES) };
    let mut bytes = [0; BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[inline]
pub(crate) fn words(head: &[u8; HEADER_BYTES]) -> (u64, u64) {
    let (first, second) = head.split_at(8);
    let word = |half: &[u8]| half.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (word(first), word(second))
}
