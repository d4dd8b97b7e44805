//! Turns the bytes of a stream into messages.

use super::decode::decode_body;
use super::{
    BODY_BYTES_MAX, BODY_BYTES_MAX_BEFORE_HELLO, DecodeError, HEADER_BYTES, Kind, Message, PREFACE,
};

/// Memory that an idle decoder keeps for the next message; more is freed.
const KEPT_BYTES: usize = 1_024;

/// Decodes one direction of a control connection.
///
/// Callers pass bytes as they arrive, in pieces of any size:
///
/// ```
/// # use petrel_proto::control::{DecodeError, Decoder, Message};
/// fn on_bytes(decoder: &mut Decoder, mut bytes: &[u8]) -> Result<(), DecodeError> {
///     while let Some(message) = decoder.decode(&mut bytes)? {
///         println!("{message:?}");
///     }
///     assert!(bytes.is_empty());
///     Ok(())
/// }
/// # on_bytes(&mut Decoder::new(), b"PETREL\r\n").unwrap();
/// # on_bytes(&mut Decoder::new(), b"GET / HTTP/1.1").unwrap_err();
/// ```
///
/// A decoder holds at most one incomplete message, and memory only in proportion to the received bytes. A
/// foreign stream is refused at the first wrong byte. Errors are permanent.
#[derive(Debug)]
pub struct Decoder {
    stage: Stage,
    /// The received bytes of an incomplete header and body.
    partial: Vec<u8>,
    error: Option<DecodeError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// This number of bytes of the preface have arrived.
    Preface(usize),
    /// The next message must be HELLO, GOODBYE from a peer that refuses this connection, or STREAM_OPEN.
    Hello,
    /// Any message may come.
    Open,
    /// This number of bytes of a message of unknown type remain to be discarded.
    Skip(usize),
}

/// A message's first bytes, checked.
struct Header {
    /// `None` for an unknown type.
    kind: Option<Kind>,
    body_bytes: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// Makes a decoder for a new stream.
    pub const fn new() -> Self {
        Self { stage: Stage::Preface(0), partial: Vec::new(), error: None }
    }

    /// Consumes bytes of `input` until a message is complete, and returns the message. Returns `None` when
    /// all bytes are consumed.
    ///
    /// # Errors
    /// When the bytes violate §8. The connection cannot be used afterwards.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Message>, DecodeError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.advance(input).inspect_err(|error| {
            self.error = Some(*error);
            self.partial = Vec::new();
        })
    }

    /// Returns true if a message is incomplete. A peer that stays in this state for long is stuck or hostile.
    pub fn is_midway(&self) -> bool {
        !self.partial.is_empty() || matches!(self.stage, Stage::Preface(1..) | Stage::Skip(_))
    }

    /// Returns true if the peer's HELLO has arrived.
    pub fn has_greeted(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Skip(_))
    }

    /// Returns the bytes of memory held by the incomplete message.
    pub fn memory_bytes(&self) -> usize {
        self.partial.capacity()
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Message>, DecodeError> {
        while !input.is_empty() {
            match self.stage {
                Stage::Preface(seen) => self.take_preface(seen, input)?,
                Stage::Skip(left) => self.skip(left, input),
                Stage::Hello | Stage::Open => {
                    if let Some(message) = self.take_message(input)? {
                        return Ok(Some(message));
                    }
                }
            }
        }
        Ok(None)
    }

    fn take_preface(&mut self, seen: usize, input: &mut &[u8]) -> Result<(), DecodeError> {
        assert!(seen < PREFACE.len(), "a preface that has arrived whole ends its stage");
        let part = split_off(input, PREFACE.len() - seen);
        let seen_now = seen + part.len();
        if part != &PREFACE[seen..seen_now] {
            return Err(DecodeError::NotPetrel);
        }
        let complete = seen_now == PREFACE.len();
        self.stage = if complete { Stage::Hello } else { Stage::Preface(seen_now) };
        Ok(())
    }

    fn skip(&mut self, left: usize, input: &mut &[u8]) {
        assert!(self.partial.is_empty(), "bytes that are discarded are not kept");
        let left = left - split_off(input, left).len();
        self.stage = if left == 0 { Stage::Open } else { Stage::Skip(left) };
    }

    fn take_message(&mut self, input: &mut &[u8]) -> Result<Option<Message>, DecodeError> {
        if !self.fill(HEADER_BYTES, input) {
            return Ok(None);
        }
        let header = self.header()?;
        let Some(kind) = header.kind else {
            self.partial.clear();
            self.skip(header.body_bytes, input);
            return Ok(None);
        };
        if !self.fill(HEADER_BYTES + header.body_bytes, input) {
            return Ok(None);
        }
        assert_eq!(
            self.partial.len(),
            HEADER_BYTES + header.body_bytes,
            "a message ends where the next one begins"
        );
        let message = decode_body(kind, &self.partial[HEADER_BYTES..])?;
        self.forget_partial();
        if kind == Kind::Hello {
            self.stage = Stage::Open;
        }
        Ok(Some(message))
    }

    /// Extends `partial` to `length` bytes. Returns false if `input` has too few.
    fn fill(&mut self, length: usize, input: &mut &[u8]) -> bool {
        assert!(
            length <= HEADER_BYTES + BODY_BYTES_MAX,
            "a decoder keeps no more than the longest message"
        );
        let part = split_off(input, length.saturating_sub(self.partial.len()));
        self.reserve(self.partial.len() + part.len(), length);
        self.partial.extend_from_slice(part);
        self.partial.len() >= length
    }

    /// Makes room for `needed` bytes: doubled, for few copies, but never more than the message has.
    fn reserve(&mut self, needed: usize, message_bytes: usize) {
        if needed > self.partial.capacity() {
            let room = needed.max(2 * self.partial.capacity()).min(message_bytes.max(KEPT_BYTES));
            self.partial.reserve_exact(room - self.partial.len());
        }
    }

    /// Checks the header in `partial`.
    fn header(&self) -> Result<Header, DecodeError> {
        let [l0, l1, l2, l3, t0, t1, ..] = self.partial[..] else {
            unreachable!("the header was filled");
        };
        let (length, code) = (u32::from_le_bytes([l0, l1, l2, l3]), u16::from_le_bytes([t0, t1]));
        let kind = Kind::from_code(code);
        let is_open = self.stage == Stage::Open;
        match kind {
            Some(Kind::Hello) if is_open => return Err(DecodeError::HelloRepeated),
            Some(Kind::Hello | Kind::Goodbye | Kind::StreamOpen) => {}
            _ if is_open => {}
            _ => return Err(DecodeError::HelloExpected { code }),
        }
        let limit = if is_open { BODY_BYTES_MAX } else { BODY_BYTES_MAX_BEFORE_HELLO };
        let body_bytes = usize::try_from(length).ok().filter(|bytes| *bytes <= limit);
        let body_bytes = body_bytes.ok_or(DecodeError::TooLong { code, length, limit })?;
        Ok(Header { kind, body_bytes })
    }

    fn forget_partial(&mut self) {
        self.partial.clear();
        if self.partial.capacity() > KEPT_BYTES {
            self.partial = Vec::new();
        }
    }
}

/// Removes up to `count` bytes from the front of `input`.
fn split_off<'a>(input: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(count.min(input.len()));
    *input = rest;
    taken
}
