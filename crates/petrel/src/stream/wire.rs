//! The format of batches (`docs/wire-protocol.md` §18.2): a sequence number, then records of streams.

use petrel_proto::limits::PACKET_BYTES_MIN;
use petrel_proto::{CallFailure, Execution, Status};

use crate::error::Error;
use crate::values::Metadata;
use crate::values::metadata::BLOCK_BYTES_MAX;

/// The method whose requests are batches.
pub(crate) const METHOD: u16 = 65_533;

/// Bytes of the sequence number at the begin of a batch.
pub(super) const BATCH_HEAD: usize = 8;

/// Bytes of the head of a record.
pub(super) const HEAD: usize = 8;

/// Bytes of the longest piece of a message: small messages of other streams go between the pieces of a large message.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;

/// Bytes of the largest batch that a side accepts.
pub(super) const BATCH_BYTES_MAX: usize = 256 << 10;

/// Batches that a side may have sent beyond the oldest unanswered batch, with this batch.
pub(super) const UNDER_WAY_MAX: u64 = 4;

/// The credit of both directions of a new stream, in bytes of records.
pub(super) const FIRST_CREDIT: u64 = 256 << 10;

/// Bytes of the longest text of an error without details, and of an error's text and details.
const TEXT_BYTES_MAX: usize = 1 << 10;
const BODY_BYTES_MAX: usize = PACKET_BYTES_MIN as usize;

/// Bytes of the longest record besides messages and their pieces.
pub(super) const OTHER_BYTES_MAX: usize = HEAD + 2 + BODY_BYTES_MAX + BLOCK_BYTES_MAX + 2;

/// The flags of END and RESET: the handler has not run; an envelope of metadata is behind the error.
const NOT_RUN: u8 = 1;
const HAS_METADATA: u8 = 2;

/// The kinds of records.
pub(super) const OPEN: u8 = 1;
pub(super) const DATA: u8 = 2;
pub(super) const PART: u8 = 3;
pub(super) const CREDIT: u8 = 4;
pub(super) const END: u8 = 5;
pub(super) const RESET: u8 = 6;

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) stream: u32,
    pub(super) kind: u8,
    /// Bytes behind the head.
    pub(super) len: usize,
}

impl Head {
    #[inline]
    pub(super) fn to_bytes(self) -> [u8; HEAD] {
        debug_assert!(self.len < 1 << 24, "a record has 24 bits for its length");
        let word = u64::from(self.stream) | u64::from(self.kind) << 32 | (self.len as u64) << 40;
        word.to_le_bytes()
    }

    /// Reads the head of a record, whose bytes follow.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let word = u64::from_le_bytes(*bytes.first_chunk::<HEAD>()?);
        Some(Self { stream: word as u32, kind: (word >> 32) as u8, len: (word >> 40) as usize })
    }

    /// Bytes of the whole record.
    #[inline]
    pub(super) fn record_len(self) -> usize {
        HEAD + self.len
    }

    /// Returns true for a message or a piece of a message.
    #[inline]
    pub(super) fn is_data(self) -> bool {
        self.kind == DATA || self.kind == PART
    }
}

/// The contents of OPEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) method: u16,
    /// The time until the deadline of the whole stream; 0 without a deadline.
    pub(super) left_ns: u64,
    pub(super) metadata: Metadata,
}

impl Open {
    /// Bytes without metadata.
    pub(super) const BYTES: usize = 10;

    /// Returns the bytes with this metadata.
    pub(super) fn len(metadata: &Metadata) -> usize {
        let block = metadata.block();
        Self::BYTES + if block.is_empty() { 0 } else { 2 + block.len() }
    }

    /// Reads the contents. Later versions may add bytes.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (method, rest) = bytes.split_first_chunk()?;
        let (left_ns, rest) = rest.split_first_chunk()?;
        let metadata = match rest.split_first_chunk() {
            None => rest.is_empty().then(Metadata::new)?,
            Some((len, rest)) => Metadata::of_block(rest.get(..u16::from_le_bytes(*len).into())?)?,
        };
        let method = u16::from_le_bytes(*method);
        Some(Self { method, left_ns: u64::from_le_bytes(*left_ns), metadata })
    }
}

/// The contents of END and RESET: a status, a text for people with details for programs, and metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) status: Status,
    /// Whether the handler has not run, and never will.
    is_refusal: bool,
    /// The text and the details, as in the answer of a call.
    body: Vec<u8>,
    pub(super) metadata: Metadata,
}

impl End {
    pub(super) fn new(status: Status, text: &str) -> Self {
        let body = text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_vec();
        Self { status, is_refusal: false, body, metadata: Metadata::new() }
    }

    /// The end of a stream whose handler has not run.
    pub(super) fn refusal(status: Status, text: &str) -> Self {
        Self { is_refusal: true, ..Self::new(status, text) }
    }

    /// The end by a handler.
    pub(super) fn of(outcome: &Result<(), Error>, metadata: Metadata) -> Self {
        let end = match outcome {
            Ok(()) => Self::new(Status::Ok, ""),
            Err(error) if error.details.is_empty() => Self::new(error.status, &error.message),
            Err(error) => Self { body: error.body().into_owned(), ..Self::new(error.status, "") },
        };
        Self { metadata, ..end }
    }

    /// Returns the error for this side.
    pub(super) fn error(&self, execution: Execution) -> Error {
        let execution = if self.is_refusal { Execution::Refused } else { execution };
        // No error says OK.
        let status = if self.status == Status::Ok { Status::Unknown } else { self.status };
        CallFailure::read(status, &self.body, execution).into()
    }

    /// Bytes of the contents.
    pub(super) fn len(&self) -> usize {
        let metadata = &self.metadata;
        2 + self.body.len() + if metadata.is_empty() { 0 } else { metadata.wire_len() }
    }

    /// Reads the contents. Bytes of a text that are no UTF-8 are replaced.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (&[status, flags], rest) = bytes.split_first_chunk::<2>()?;
        let (body, metadata) = match flags & HAS_METADATA {
            0 => (rest, Metadata::new()),
            _ => Metadata::split(rest)?,
        };
        let (status, is_refusal) = (Status::from_code(status), flags & NOT_RUN != 0);
        let body = (body.len() <= BODY_BYTES_MAX).then(|| body.to_vec())?;
        Some(Self { status, is_refusal, body, metadata })
    }
}

/// Writes records into the memory of a batch.
pub(super) struct Writer<'a> {
    memory: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Begins a batch, whose sequence number [`finish`](Self::finish) writes.
    pub(super) fn new(memory: &'a mut [u8]) -> Self {
        Self { memory, len: BATCH_HEAD }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == BATCH_HEAD
    }

    /// Bytes so far.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that the batch has room for.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.memory.len() - self.len
    }

    /// Appends whole records.
    #[inline]
    pub(super) fn put(&mut self, records: &[u8]) {
        let end = self.len + records.len();
        self.memory[self.len..end].copy_from_slice(records);
        self.len = end;
    }

    /// Appends a record whose contents are in parts.
    pub(super) fn record(&mut self, stream: u32, kind: u8, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        self.put(&Head { stream, kind, len }.to_bytes());
        parts.iter().for_each(|part| self.put(part));
    }

    /// Appends OPEN.
    pub(super) fn open(&mut self, stream: u32, open: &Open) {
        let (method, left_ns) = (open.method.to_le_bytes(), open.left_ns.to_le_bytes());
        let block = open.metadata.block();
        let len = (block.len() as u16).to_le_bytes();
        let len = if block.is_empty() { &[][..] } else { &len };
        self.record(stream, OPEN, &[&method, &left_ns, len, block]);
    }

    /// Appends END or RESET.
    pub(super) fn end(&mut self, stream: u32, kind: u8, end: &End) {
        let block = end.metadata.block();
        let len = (block.len() as u16).to_le_bytes();
        let (has, len) = if block.is_empty() { (0, &[][..]) } else { (HAS_METADATA, &len[..]) };
        let flags = has | if end.is_refusal { NOT_RUN } else { 0 };
        self.record(stream, kind, &[&[end.status.code(), flags], &end.body, block, len]);
    }

    /// Ends the batch. Returns its length.
    pub(super) fn finish(self, sequence: u64) -> usize {
        self.memory[..BATCH_HEAD].copy_from_slice(&sequence.to_le_bytes());
        self.len
    }
}

/// A peer that breaks the rules of batches: the pair ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Breach(pub(super) &'static str);

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/wire-vectors.md");

    /// Returns the records of a batch: stream, kind and contents.
    fn records(mut bytes: &[u8]) -> Option<Vec<(u32, u8, Vec<u8>)>> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let head = Head::read(bytes)?;
            let (record, rest) = bytes.split_at_checked(head.record_len())?;
            records.push((head.stream, head.kind, record[HEAD..].to_vec()));
            bytes = rest;
        }
        Some(records)
    }

    fn bytes(digits: &str) -> Vec<u8> {
        let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    #[test]
    fn batches__as_in_the_specification() {
        let blocks: Vec<&str> = PAGE.split("\n```batch-vector\n").skip(1).collect();
        assert!(blocks.len() >= 5);
        for block in blocks {
            let block = block.split("\n```").next().unwrap();
            let (name, rest) = block.split_once("\nhex:").unwrap();
            if let Some((digits, _)) = rest.split_once("\nbreach:") {
                assert_eq!(records(&bytes(digits)[BATCH_HEAD..]), None, "{name}");
                continue;
            }
            let (digits, expected) = rest.split_once("\nrecords:").unwrap();
            let batch = bytes(digits);
            let found = records(&batch[BATCH_HEAD..]).expect(name);
            let text: Vec<String> = found
                .iter()
                .map(|(stream, kind, bytes)| {
                    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    format!("{stream}:{kind}:{digits}")
                })
                .collect();
            assert_eq!(text.join(" "), expected.trim(), "{name}");
            let mut memory = vec![0; 4_096];
            let mut writer = Writer::new(&mut memory);
            found.iter().for_each(|(stream, kind, bytes)| writer.record(*stream, *kind, &[bytes]));
            let len = writer.finish(u64::from_le_bytes(*batch.first_chunk().unwrap()));
            assert_eq!(memory[..len], batch, "{name}");
        }
    }

    #[test]
    fn end__with_texts_that_are_long_or_no_text() {
        let long = End::new(Status::Internal, &"é".repeat(600));
        assert_eq!(long.body.len(), TEXT_BYTES_MAX);
        assert_eq!(End::new(Status::Internal, &format!("a{}", "é".repeat(600))).body.len(), 1_023);
        assert_eq!(End::read(&contents(|out| out.end(0, END, &long))), Some(long));
        assert_eq!(End::read(&[5]), None);
        assert_eq!(End::read(&[&[5, 0][..], &[b'x'; BODY_BYTES_MAX + 1]].concat()), None);
        let error = End::read(&[5, 1, 0xff]).unwrap().error(Execution::Answered);
        assert_eq!((error.execution, &*error.message), (Execution::Refused, "\u{fffd}"));
    }

    /// Returns the contents of a record.
    fn contents(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut memory = [0; 4_096];
        let mut writer = Writer::new(&mut memory);
        write(&mut writer);
        let len = writer.finish(0);
        records(&memory[BATCH_HEAD..len]).unwrap().remove(0).2
    }

    /// The largest metadata, and an error with as many details.
    #[test]
    fn open_and_end__with_metadata_and_details() {
        let mut metadata = Metadata::new();
        metadata.insert("key-bin", vec![7; BLOCK_BYTES_MAX - 10]).unwrap();
        let error = Error::new(Status::Aborted, "x".repeat(2_000));
        let outcome = Err(error.with_detail_bytes("n", &[0; 1_020]));
        let end = End::of(&outcome, metadata.clone());
        let bytes = contents(|out| out.end(0, END, &end));
        assert_eq!((bytes.len() + HEAD, end.len()), (OTHER_BYTES_MAX, bytes.len()));
        assert_eq!(End::read(&bytes), Some(end.clone()));
        assert_eq!(end.error(Execution::Answered).details().next().unwrap().value, [0; 1_020]);
        assert_eq!(End::read(&bytes[..bytes.len() - 1]), None);

        let open = Open { method: 7, left_ns: 9, metadata: metadata.clone() };
        let bytes = contents(|out| out.open(0, &open));
        assert_eq!(bytes.len(), Open::len(&metadata));
        assert_eq!(Open::read(&[&bytes[..], &[1]].concat()), Some(open), "later versions add");
        for len in [0, 9, 11, 12, bytes.len() - 1] {
            assert_eq!(Open::read(&bytes[..len]), None, "{len} bytes");
        }
        let plain = Open { method: 7, left_ns: 9, metadata: Metadata::new() };
        assert_eq!(contents(|out| out.open(0, &plain)).len(), Open::BYTES);
    }
}
