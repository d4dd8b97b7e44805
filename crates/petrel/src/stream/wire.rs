//! The format of batches (`docs/wire-protocol.md` §18.2): a sequence number, then records of streams.

use petrel_proto::Status;

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

/// Bytes of the longest text of an error.
pub(super) const TEXT_BYTES_MAX: usize = 1 << 10;

/// The bit of a reset stream whose handler has not run.
const NOT_RUN: u8 = 1;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) method: u16,
    /// The time until the deadline of the whole stream; 0 without a deadline.
    pub(super) left_ns: u64,
}

impl Open {
    pub(super) const BYTES: usize = 10;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&self.method.to_le_bytes());
        bytes[2..].copy_from_slice(&self.left_ns.to_le_bytes());
        bytes
    }

    /// Reads the contents. Later versions may add bytes.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (method, rest) = bytes.split_first_chunk::<2>()?;
        let left_ns = u64::from_le_bytes(*rest.first_chunk::<8>()?);
        Some(Self { method: u16::from_le_bytes(*method), left_ns })
    }
}

/// The contents of END and RESET: a status, and a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) status: Status,
    /// Whether the handler has not run, and never will.
    pub(super) is_refusal: bool,
    pub(super) text: String,
}

impl End {
    pub(super) fn new(status: Status, text: &str) -> Self {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self { status, is_refusal: false, text: text[..end].to_owned() }
    }

    /// The end of a stream whose handler has not run.
    pub(super) fn refusal(status: Status, text: &str) -> Self {
        Self { is_refusal: true, ..Self::new(status, text) }
    }

    pub(super) fn ok() -> Self {
        Self { status: Status::Ok, is_refusal: false, text: String::new() }
    }

    /// Bytes of the contents.
    pub(super) fn len(&self) -> usize {
        2 + self.text.len()
    }

    pub(super) fn head(&self) -> [u8; 2] {
        [self.status.code(), if self.is_refusal { NOT_RUN } else { 0 }]
    }

    /// Reads the contents. Bytes of a text that are no UTF-8 are replaced.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (&[status, flags], text) = bytes.split_first_chunk::<2>()?;
        let text = (text.len() <= TEXT_BYTES_MAX).then(|| String::from_utf8_lossy(text))?;
        let (status, is_refusal) = (Status::from_code(status), flags & NOT_RUN != 0);
        Some(Self { status, is_refusal, text: text.into_owned() })
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
    pub(super) fn record(&mut self, stream: u32, kind: u8, parts: [&[u8]; 2]) {
        let len = parts.iter().map(|part| part.len()).sum();
        self.put(&Head { stream, kind, len }.to_bytes());
        parts.into_iter().for_each(|part| self.put(part));
    }

    /// Appends END or RESET.
    pub(super) fn end(&mut self, stream: u32, kind: u8, end: &End) {
        self.record(stream, kind, [&end.head(), end.text.as_bytes()]);
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
            found
                .iter()
                .for_each(|(stream, kind, bytes)| writer.record(*stream, *kind, [bytes, &[]]));
            let len = writer.finish(u64::from_le_bytes(*batch.first_chunk().unwrap()));
            assert_eq!(memory[..len], batch, "{name}");
        }
    }

    #[test]
    fn end__with_texts_that_are_long_or_no_text() {
        let long = End::new(Status::Internal, &"é".repeat(600));
        assert_eq!(long.text.len(), TEXT_BYTES_MAX);
        assert_eq!(End::new(Status::Internal, &format!("a{}", "é".repeat(600))).text.len(), 1_023);
        assert_eq!(End::read(&[&long.head(), long.text.as_bytes()].concat()), Some(long));
        assert_eq!(End::read(&[5]), None);
        assert_eq!(End::read(&[&[5, 0][..], &[b'x'; 1_025]].concat()), None);
        let read = End::read(&[5, 1, 0xff]).unwrap();
        assert_eq!((read.is_refusal, &*read.text), (true, "\u{fffd}"));
        assert_eq!(Open::read(&[1; 9]), None);
        let open = Open { method: 7, left_ns: 9 };
        assert_eq!(Open::read(&[&open.to_bytes()[..], &[1]].concat()), Some(open));
    }
}
