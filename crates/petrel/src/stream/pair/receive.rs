//! The side of a pair that receives: batches of the peer, and records for readers.

use petrel_planted::planted;
use petrel_proto::{Execution, Status};

use super::{Control, Event, Pair, Queued, Role, Taken, UNDER_WAY_MAX, end_ns};
use crate::local::Key;
use crate::stream::wire::{self, Breach, End, HEAD, Head, Open, PIECE_BYTES_MAX};
use crate::values::Metadata;

/// Records besides messages that wait until the peer answers batches, beyond those of its streams.
const CONTROLS_MAX: usize = 1 << 10;

/// Bytes of pieces and messages behind each other, of one stream.
struct Run {
    len: usize,
    is_within_message: bool,
    /// Why the record behind the run breaks the rules of its stream.
    breach: Option<&'static str>,
}

impl<T: Default> Pair<T> {
    /// Handles a batch, or keeps it until the batches before it have come.
    ///
    /// # Errors
    /// The peer breaks the rules of batches: the pair is to be [failed](Pair::fail).
    pub(in crate::stream) fn handle_batch(
        &mut self,
        now_ns: u64,
        batch: &[u8],
    ) -> Result<(), Breach> {
        let Some((sequence, records)) = batch.split_first_chunk() else {
            return Err(Breach("a batch without a sequence number"));
        };
        let sequence = u64::from_le_bytes(*sequence);
        if batch.len() > wire::BATCH_BYTES_MAX {
            return Err(Breach("a batch that is too large"));
        }
        if self.failure.is_some() {
            return Ok(());
        }
        let is_known = self.early.iter().any(|(other, _)| *other == sequence);
        if sequence < self.expected || is_known {
            return Err(Breach("a batch twice"));
        }
        if sequence - self.expected >= UNDER_WAY_MAX {
            return Err(Breach("a batch beyond those that may be under way"));
        }
        if sequence > self.expected {
            if planted("stream_batch_runs_early") {
                self.handle_records(now_ns, records)?;
                self.early.push((sequence, Box::default()));
                return Ok(());
            }
            self.early.push((sequence, records.into()));
            return Ok(());
        }
        self.handle_records(now_ns, records)?;
        self.expected += 1;
        while let Some(at) = self.early.iter().position(|(other, _)| *other == self.expected) {
            let (_, records) = self.early.swap_remove(at);
            self.handle_records(now_ns, &records)?;
            self.expected += 1;
        }
        Ok(())
    }

    fn handle_records(&mut self, now_ns: u64, mut records: &[u8]) -> Result<(), Breach> {
        while !records.is_empty() {
            let head = Head::read(records).ok_or(Breach("a record without its head"))?;
            let (record, rest) = records
                .split_at_checked(head.record_len())
                .ok_or(Breach("a record without its end"))?;
            if head.kind == wire::OPEN {
                self.handle_open(now_ns, head.stream, &record[HEAD..])?;
                records = rest;
                continue;
            }
            if head.stream >= self.next_number {
                return Err(Breach("a record of a stream that was not opened"));
            }
            let Some(&key) = self.by_number.get(&head.stream) else {
                // The stream is over here, and the peer does not know yet.
                records = rest;
                continue;
            };
            records = match head.is_data() {
                true => self.handle_messages(key, records),
                false => {
                    self.handle_other(key, head.kind, &record[HEAD..]);
                    rest
                }
            };
            if self.controls.len() > CONTROLS_MAX + 2 * self.config.streams_max as usize {
                return Err(Breach("batches that are not answered"));
            }
        }
        Ok(())
    }

    fn handle_open(&mut self, now_ns: u64, number: u32, bytes: &[u8]) -> Result<(), Breach> {
        if self.role == Role::Client {
            return Err(Breach("a stream opened by the server"));
        }
        if number < self.next_number || number == u32::MAX {
            return Err(Breach("a stream whose number is not above all before"));
        }
        let refused = |status, text: &str| Control::Reset(number, End::refusal(status, text));
        let Some(open) = Open::read(bytes) else {
            self.next_number = number + 1;
            self.controls.push_back(refused(Status::InvalidArgument, "OPEN is malformed"));
            return Ok(());
        };
        if self.by_number.len() >= self.config.streams_max as usize {
            self.next_number = number + 1;
            let text = "the server has no room for another stream of the client";
            self.controls.push_back(refused(Status::ResourceExhausted, text));
            return Ok(());
        }
        let key = self.insert(number, end_ns(open.left_ns, now_ns));
        *self.metadata(key) = some(open.metadata);
        self.events.push_back(Event::Opened(key, open.method));
        Ok(())
    }

    /// Handles the messages of a stream at the begin of `records`. Returns the records behind them.
    fn handle_messages<'a>(&mut self, key: Key, records: &'a [u8]) -> &'a [u8] {
        let room = (self.config.held_bytes_max as usize).saturating_sub(self.held_bytes);
        let stream = self.streams.get_mut(key).expect("a stream with a number exists");
        let limit = usize::try_from(stream.inc.credit()).unwrap_or(usize::MAX);
        let run = run(records, stream.number, limit);
        let (data, rest) = records.split_at(run.len);
        if let Some(text) = run.breach {
            self.break_stream(key, text);
            // The record that breaks the rules is whole, and is skipped with the stream.
            return rest;
        }
        if stream.inc.is_finished() {
            self.break_stream(key, "a message behind the last one");
            return rest;
        }
        if data.len() > room {
            let text = "the streams' unread messages need too much memory";
            self.reset(key, Status::ResourceExhausted, text);
            return rest;
        }
        let held = stream.inc.accept(data, run.is_within_message);
        self.held_bytes += held;
        if held == 0 {
            self.credit_if_due(key);
            return rest;
        }
        if std::mem::take(&mut stream.wants_records) {
            self.events.push_back(Event::Readable(key));
        }
        rest
    }

    fn handle_other(&mut self, key: Key, kind: u8, bytes: &[u8]) {
        match kind {
            wire::CREDIT => self.handle_credit(key, bytes),
            wire::END => match End::read(bytes) {
                Some(end) => self.handle_end(key, end),
                None => self.break_stream(key, "END is malformed"),
            },
            wire::RESET => match End::read(bytes) {
                Some(end) => {
                    self.end(key, Err(end.error(Execution::MayHaveExecuted)));
                    self.leave(key);
                }
                None => self.break_stream(key, "RESET is malformed"),
            },
            // Of a later version.
            _ => {}
        }
    }

    fn handle_credit(&mut self, key: Key, bytes: &[u8]) {
        let limit = <[u8; 8]>::try_from(bytes).map(u64::from_le_bytes);
        let stream = self.streams.get_mut(key).expect("a stream with a number exists");
        if !limit.is_ok_and(|limit| stream.out.note_credit(limit)) {
            return self.break_stream(key, "the credit is malformed, or lower than before");
        }
        if stream.queued == Queued::Stalled {
            self.queue(key);
        }
    }

    fn handle_end(&mut self, key: Key, end: End) {
        let stream = self.streams.get_mut(key).expect("a stream with a number exists");
        let is_whole = stream.inc.finish();
        if !is_whole && (end.status == Status::Ok || self.role == Role::Server) {
            return self.break_stream(key, "an end within a message, or a second one");
        }
        match self.role {
            Role::Client => {
                let outcome = match end.status {
                    Status::Ok => Ok(()),
                    _ => Err(end.error(Execution::Answered)),
                };
                stream.metadata = some(end.metadata);
                self.end(key, outcome);
                self.leave(key);
            }
            Role::Server => {
                if std::mem::take(&mut stream.wants_records) {
                    self.events.push_back(Event::Readable(key));
                }
            }
        }
    }

    /// Ends a stream whose peer breaks its rules.
    fn break_stream(&mut self, key: Key, text: &str) {
        self.reset(key, Status::Internal, &format!("the peer breaks the rules of streams: {text}"));
    }

    /// Exchanges the received records of a stream with the reader's empty memory.
    #[inline]
    pub(in crate::stream) fn take(&mut self, key: Key, into: &mut Vec<u8>) -> Taken {
        let stream = self.streams.get_mut(key).expect("a reader holds its stream");
        let len = stream.inc.take(into);
        if len > 0 {
            self.held_bytes -= len;
            self.credit_if_due(key);
            return Taken::Records;
        }
        match &stream.over {
            Some(Err(error)) => Taken::Failed(error.clone()),
            Some(Ok(())) => Taken::Finished,
            None if stream.inc.is_finished() => Taken::Finished,
            None => {
                stream.wants_records = true;
                Taken::None
            }
        }
    }

    /// Drops the messages of a stream, those here and those to come: the reader is gone.
    pub(in crate::stream) fn discard(&mut self, key: Key) {
        let stream = self.streams.get_mut(key).expect("a reader holds its stream");
        self.held_bytes -= stream.inc.discard();
        self.credit_if_due(key);
    }

    fn credit_if_due(&mut self, key: Key) {
        let window = u64::from(self.config.window_bytes);
        let stream = self.streams.get_mut(key).expect("a stream with records exists");
        if stream.inc.becomes_due(window) {
            self.credits.push_back(key);
        }
    }
}

/// Returns the messages and pieces of a stream at the begin of `records`, within `limit` bytes.
#[inline]
fn run(records: &[u8], stream: u32, limit: usize) -> Run {
    let mut run = Run { len: 0, is_within_message: false, breach: None };
    while let Some(head) = Head::read(&records[run.len..]) {
        let end = run.len + head.record_len();
        if head.stream != stream || !head.is_data() || end > records.len() {
            break;
        }
        let is_empty_piece = head.kind == wire::PART && head.len == 0;
        if end > limit {
            run.breach = Some("a message beyond the credit");
        } else if head.len > PIECE_BYTES_MAX || is_empty_piece {
            run.breach = Some("a piece of a message that is empty or too long");
        }
        (run.len, run.is_within_message) = (end, head.kind == wire::PART);
        if run.breach.is_some() {
            break;
        }
    }
    run
}

/// Most streams have no metadata: a stream has a box for them.
fn some(metadata: Metadata) -> Option<Box<Metadata>> {
    (!metadata.is_empty()).then(|| Box::new(metadata))
}
