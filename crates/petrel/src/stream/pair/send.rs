//! The side of a pair that sends: messages of the application, and batches of records.

use petrel_proto::{Execution, Status};

use super::{Control, EAGER_BYTES, NotSent, Pair, Queued, Role, Stream, UNDER_WAY_MAX};
use crate::error::Error;
use crate::local::Key;
use crate::stream::outgoing::Written;
use crate::stream::wire::{self, End, HEAD, Open, PIECE_BYTES_MAX, Writer};
use crate::values::Metadata;

/// Bytes from which on a batch takes no further record, apart from the largest record.
const BATCH_BYTES: usize = 64 << 10;

/// Memory for the largest batch, and for a batch of few records.
const ROOM_BYTES: usize = BATCH_BYTES + PIECE_BYTES_MAX + LEAST_ROOM_BYTES;
const LEAST_ROOM_BYTES: usize = 4 << 10;
const _: () = assert!(ROOM_BYTES <= wire::BATCH_BYTES_MAX);
const _: () = assert!(LEAST_ROOM_BYTES > wire::BATCH_HEAD + wire::OTHER_BYTES_MAX);

/// Bytes of a stream in a batch while others wait.
const SHARE_BYTES: usize = 16 << 10;

impl<T: Default> Pair<T> {
    /// Takes a message, which `encode` appends to the records of the stream.
    ///
    /// # Errors
    /// There is no room, the stream is over, or the encoder has panicked.
    #[inline]
    pub(in crate::stream) fn send(
        &mut self,
        key: Key,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), NotSent> {
        let window = self.config.window_bytes as usize;
        let stream = self.streams.get_mut(key).expect("a writer holds its stream");
        if stream.out.is_finished() {
            return Err(NotSent::Ended(ended(stream)));
        }
        if stream.out.waiting() >= window {
            stream.wants_room = true;
            return Err(NotSent::Full);
        }
        let bytes = stream.out.push(stream.number, encode).map_err(NotSent::Panicked)?;
        match stream.queued {
            Queued::Ready => self.ready_bytes += bytes,
            Queued::No => self.queue(key),
            Queued::Stalled => {}
        }
        Ok(())
    }

    /// Ends the direction of this side after its last message: for a client its messages, for a server the stream, with metadata.
    pub(in crate::stream) fn finish(
        &mut self,
        key: Key,
        outcome: Result<(), Error>,
        metadata: Metadata,
    ) {
        let is_server = self.role == Role::Server;
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.out.is_finished() {
            return;
        }
        stream.out.finish(End::of(&outcome, metadata));
        if stream.queued == Queued::No {
            self.queue(key);
        }
        if is_server {
            self.end(key, outcome);
        }
    }

    /// Puts a stream with something to send among the ready ones, or aside until the peer gives credit.
    pub(super) fn queue(&mut self, key: Key) {
        let stream = self.streams.get_mut(key).expect("a stream with records exists");
        assert_ne!(stream.queued, Queued::Ready, "a stream is queued once");
        if stream.out.is_stalled() {
            stream.queued = Queued::Stalled;
            return;
        }
        stream.queued = Queued::Ready;
        self.ready_bytes += stream.out.waiting();
        self.ready.push_back(key);
    }

    /// Takes a stream out of the ready ones; its place in the queue is skipped later.
    pub(super) fn unqueue(&mut self, key: Key) {
        let stream = self.streams.get_mut(key).expect("a stream that ends exists");
        if std::mem::replace(&mut stream.queued, Queued::No) == Queued::Ready {
            self.ready_bytes -= stream.out.waiting();
        }
    }

    /// Returns true if a batch is to be sent now.
    #[inline]
    pub(in crate::stream) fn wants_batch(&self) -> bool {
        let Some(oldest) = self.under_way.front() else {
            return self.failure.is_none() && self.has_records();
        };
        let is_allowed = self.sequence - oldest < UNDER_WAY_MAX;
        is_allowed && self.ready_bytes >= EAGER_BYTES && self.failure.is_none()
    }

    fn has_records(&self) -> bool {
        !(self.controls.is_empty() && self.credits.is_empty() && self.ready.is_empty())
    }

    /// Returns the bytes of memory for the next batch.
    pub(in crate::stream) fn room_bytes(&self) -> usize {
        let controls =
            (self.controls.len() + self.credits.len()).saturating_mul(HEAD + Open::BYTES);
        let ends = self.ready.len().saturating_mul(HEAD + 2);
        let wanted = self.ready_bytes.saturating_add(controls).saturating_add(ends);
        wanted.saturating_add(LEAST_ROOM_BYTES).min(ROOM_BYTES)
    }

    /// Writes the next batch into memory of [`room_bytes`](Self::room_bytes). Returns its length and number; `None` if there is
    /// nothing to send, although it seemed so.
    pub(in crate::stream) fn next_batch(
        &mut self,
        now_ns: u64,
        memory: &mut [u8],
    ) -> Option<(usize, u64)> {
        let mut batch = Writer::new(memory);
        self.write_controls(now_ns, &mut batch);
        self.write_credits(&mut batch);
        self.write_messages(&mut batch);
        if batch.is_empty() {
            return None;
        }
        let sequence = self.sequence;
        self.sequence += 1;
        self.under_way.push_back(sequence);
        Some((batch.finish(sequence), sequence))
    }

    fn write_controls(&mut self, now_ns: u64, batch: &mut Writer<'_>) {
        while let Some(control) = self.controls.front() {
            let len = match control {
                Control::Open(_, _, metadata) => Open::len(metadata),
                Control::Reset(_, end) => end.len(),
            };
            if batch.len() >= BATCH_BYTES || HEAD + len > batch.room() {
                return;
            }
            match self.controls.pop_front().expect("it is the first") {
                Control::Open(key, method, metadata) => {
                    let open = Open { method, left_ns: 0, metadata };
                    self.write_open(key, open, now_ns, batch);
                }
                Control::Reset(number, end) => batch.end(number, wire::RESET, &end),
            }
        }
    }

    /// Writes OPEN, unless the stream has ended meanwhile.
    fn write_open(&mut self, key: Key, mut open: Open, now_ns: u64, batch: &mut Writer<'_>) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if self.by_number.get(&stream.number) != Some(&key) {
            return;
        }
        stream.is_opened = true;
        if stream.end_ns != u64::MAX {
            open.left_ns = stream.end_ns.saturating_sub(now_ns).max(1);
        }
        batch.open(stream.number, &open);
    }

    fn write_credits(&mut self, batch: &mut Writer<'_>) {
        let window = u64::from(self.config.window_bytes);
        while batch.len() < BATCH_BYTES && batch.room() >= 2 * HEAD {
            let Some(key) = self.credits.pop_front() else { return };
            let Some(stream) = self.streams.get_mut(key) else { continue };
            let limit = stream.inc.grant(window);
            if self.by_number.contains_key(&stream.number) {
                batch.record(stream.number, wire::CREDIT, &[&limit.to_le_bytes()]);
            }
        }
    }

    /// Writes the messages of the ready streams, in turn.
    fn write_messages(&mut self, batch: &mut Writer<'_>) {
        let mut turns = self.ready.len();
        while batch.len() < BATCH_BYTES && turns > 0 {
            let Some(key) = self.ready.pop_front() else { break };
            let is_alone = self.ready.is_empty();
            let Some(stream) = self.streams.get_mut(key) else { continue };
            if stream.queued != Queued::Ready {
                continue;
            }
            let share = if is_alone { BATCH_BYTES } else { SHARE_BYTES };
            let before = stream.out.waiting();
            let written = stream.out.write(stream.number, batch, share);
            self.ready_bytes -= before - stream.out.waiting();
            let has_room = stream.out.waiting() < self.config.window_bytes as usize / 2;
            if has_room && std::mem::take(&mut stream.wants_room) {
                self.events.push_back(super::Event::Writable(key));
            }
            match written {
                Written::Share if stream.out.waiting() == before => {
                    // The batch has no room for the next record.
                    self.ready.push_front(key);
                    break;
                }
                Written::Share => self.ready.push_back(key),
                Written::Stalled => {
                    self.ready_bytes -= stream.out.waiting();
                    stream.queued = Queued::Stalled;
                }
                Written::All => self.drained(key),
            }
            turns = self.ready.len();
        }
    }

    /// Goes on after the last record of a stream: the end of a server's direction is that of the stream.
    fn drained(&mut self, key: Key) {
        let stream = self.streams.get_mut(key).expect("it was just written");
        stream.queued = Queued::No;
        if stream.out.is_finished() && self.role == Role::Server {
            self.leave(key);
        }
    }

    /// Notes that the peer has answered a batch.
    pub(in crate::stream) fn acknowledge(&mut self, sequence: u64) {
        self.under_way.retain(|other| *other != sequence);
    }
}

/// Returns the error of a message after the end of its stream or direction.
fn ended<T>(stream: &Stream<T>) -> Error {
    match &stream.over {
        Some(Err(error)) => error.clone(),
        Some(Ok(())) => {
            let text = "the stream has ended";
            Error::of(Status::FailedPrecondition, text, Execution::Answered)
        }
        None => Error::not_sent(Status::FailedPrecondition, "no message follows the last one"),
    }
}
