//! The direction of a stream that this side sends: records that wait for credit, or for the next batch.

use super::wire::{DATA, END, End, FIRST_CREDIT, HEAD, Head, PART, PIECE_BYTES_MAX, Writer};
use crate::panics::{PanicPayload, catch};

/// Bytes at the begin of the buffer that were sent, from which on the rest moves to the front.
const SENT_BYTES_MAX: usize = 64 << 10;

/// Bytes that an empty buffer keeps: two windows, as a stream of short messages needs them. A long message leaves more.
const KEPT_BYTES_MAX: usize = 512 << 10;

/// The records that wait, and the credit.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Records of messages, in order. Those below `begin` were sent.
    records: Vec<u8>,
    begin: usize,
    /// Bytes of records that were sent, and that may be sent in all.
    sent: u64,
    limit: u64,
    /// The end that follows the last message.
    end: Option<Box<End>>,
    /// Whether there will be no further message.
    is_finished: bool,
}

/// How far the records of a stream came into a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// All records, and the end if there was one.
    All,
    /// The batch has the stream's share.
    Share,
    /// The next record needs more credit.
    Stalled,
}

impl Default for Outgoing {
    fn default() -> Self {
        let (records, end) = (Vec::new(), None);
        Self { records, begin: 0, sent: 0, limit: FIRST_CREDIT, end, is_finished: false }
    }
}

impl Outgoing {
    /// Bytes of records that wait.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.records.len() - self.begin
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Returns true if the next record needs more credit.
    #[inline]
    pub(super) fn is_stalled(&self) -> bool {
        let next = Head::read(&self.records[self.begin..]);
        next.is_some_and(|head| self.sent + head.record_len() as u64 > self.limit)
    }

    /// Appends a message that `encode` appends to the buffer. Returns the bytes of its records.
    ///
    /// # Errors
    /// The encoder has panicked: nothing of the message is kept.
    #[inline]
    pub(super) fn push(
        &mut self,
        stream: u32,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<usize, PanicPayload> {
        assert!(!self.is_finished, "no message follows the end");
        if self.begin > SENT_BYTES_MAX {
            self.records.drain(..self.begin);
            self.begin = 0;
        }
        let at = self.records.len();
        self.records.extend_from_slice(&[0; HEAD]);
        if let Err(payload) = catch(|| encode(&mut self.records)) {
            self.records.truncate(at);
            return Err(payload);
        }
        let len = self.records.len() - at - HEAD;
        if len > PIECE_BYTES_MAX {
            self.cut(stream, at);
        } else {
            let head = Head { stream, kind: DATA, len };
            self.records[at..at + HEAD].copy_from_slice(&head.to_bytes());
        }
        Ok(self.records.len() - at)
    }

    /// Cuts the message from `at` on into pieces.
    #[cold]
    fn cut(&mut self, stream: u32, at: usize) {
        let message = self.records.split_off(at);
        let mut pieces = message[HEAD..].chunks(PIECE_BYTES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            let kind = if pieces.peek().is_some() { PART } else { DATA };
            let head = Head { stream, kind, len: piece.len() };
            self.records.extend_from_slice(&head.to_bytes());
            self.records.extend_from_slice(piece);
        }
    }

    /// Lets the stream's direction end after the last message.
    pub(super) fn finish(&mut self, end: End) {
        assert!(!self.is_finished, "a direction ends once");
        (self.is_finished, self.end) = (true, Some(Box::new(end)));
    }

    /// Drops all that waits: the stream is over.
    pub(super) fn clear(&mut self) {
        (self.records, self.begin) = (Vec::new(), 0);
        (self.is_finished, self.end) = (true, None);
    }

    /// Notes the credit of the peer. Returns false if it is lower than before.
    pub(super) fn note_credit(&mut self, limit: u64) -> bool {
        let is_valid = limit >= self.limit;
        if is_valid {
            self.limit = limit;
        }
        is_valid
    }

    /// Writes records into a batch, as far as it has room and the peer has given credit: about `share` bytes, or a longer record.
    #[inline]
    pub(super) fn write(&mut self, stream: u32, batch: &mut Writer<'_>, share: usize) -> Written {
        let (waiting, room) = (self.waiting(), batch.room());
        let fits = waiting <= share.min(room) && self.sent + waiting as u64 <= self.limit;
        let (len, written) = if fits { (waiting, Written::All) } else { self.share(share, room) };
        batch.put(&self.records[self.begin..self.begin + len]);
        self.begin += len;
        self.sent += len as u64;
        assert!(self.sent <= self.limit, "records are sent within the credit");
        if self.begin == self.records.len() {
            self.records.clear();
            self.begin = 0;
            if self.records.capacity() > KEPT_BYTES_MAX {
                self.records = Vec::new();
            }
        }
        if written != Written::All {
            return written;
        }
        match self.end.take_if(|end| HEAD + end.len() <= batch.room()) {
            Some(end) => batch.end(stream, END, &end),
            None if self.end.is_some() => return Written::Share,
            None => {}
        }
        Written::All
    }

    /// Returns the bytes of the whole records that come into a batch now.
    fn share(&self, share: usize, room: usize) -> (usize, Written) {
        let mut len = 0;
        while let Some(head) = Head::read(&self.records[self.begin + len..]) {
            let next = len + head.record_len();
            if self.sent + next as u64 > self.limit {
                return (len, Written::Stalled);
            }
            if next > room || len > 0 && next > share {
                return (len, Written::Share);
            }
            len = next;
        }
        (len, Written::All)
    }
}
