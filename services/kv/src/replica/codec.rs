//! Raft messages as bytes.
//!
//! The core's own codec is protobuf, with tagged fields, and computes the sizes of a message twice. The layout here is
//! flat, because peers of a version exchange several hundred thousand messages a second.
//!
//! A frame: cluster `u64`, count `u16`, then the messages. A message: type `u8`, flags `u8`, from, term, log term,
//! index, commit, reject hint (`u64` each), then the parts that the flags announce: extras (commit term, request
//! snapshot, priority, 24 bytes), context (`u32` length), snapshot (`u32` length, protobuf), entries (`u32` count; each
//! type `u8`, term `u64`, lengths of data and context `u32`, data, context). All integers are little-endian. Entries
//! are numbered from the message's index on. `to` is left out, because a session belongs to one replica.

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

use crate::wire::{DecodeError, Reader};

const REJECT: u8 = 1;
const EXTRAS: u8 = 2;
const CONTEXT: u8 = 4;
const SNAPSHOT: u8 = 8;
const ENTRIES: u8 = 16;
const FLAGS: u8 = REJECT | EXTRAS | CONTEXT | SNAPSHOT | ENTRIES;

const FRAME_BYTES: usize = 10;
const MESSAGE_BYTES: usize = 50;
const EXTRAS_BYTES: usize = 24;
const ENTRY_BYTES: usize = 17;

/// The size of a frame with these messages, in bytes.
pub(super) fn frame_bytes(messages: &[Message]) -> usize {
    FRAME_BYTES + messages.iter().map(message_bytes).sum::<usize>()
}

/// Returns true if an answer refuses to follow the caller: a frame without messages. An empty answer is no rejection.
pub(super) fn is_rejection(answer: &[u8]) -> bool {
    answer.len() == FRAME_BYTES
}

pub(super) fn message_bytes(message: &Message) -> usize {
    let flags = flags_of(message);
    let mut bytes = MESSAGE_BYTES;
    if flags & EXTRAS != 0 {
        bytes += EXTRAS_BYTES;
    }
    if flags & CONTEXT != 0 {
        bytes += 4 + message.context.len();
    }
    if flags & SNAPSHOT != 0 {
        bytes += 4 + message.get_snapshot().compute_size() as usize;
    }
    if flags & ENTRIES != 0 {
        bytes += 4 + message.entries.iter().map(entry_bytes).sum::<usize>();
    }
    bytes
}

/// The size of an entry in a message, in bytes.
pub(super) fn entry_bytes(entry: &Entry) -> usize {
    ENTRY_BYTES + entry.data.len() + entry.context.len()
}

fn flags_of(message: &Message) -> u8 {
    let has_extras =
        message.commit_term != 0 || message.request_snapshot != 0 || message.priority != 0;
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    flag(message.reject, REJECT)
        | flag(has_extras, EXTRAS)
        | flag(!message.context.is_empty(), CONTEXT)
        | flag(message.has_snapshot(), SNAPSHOT)
        | flag(!message.entries.is_empty(), ENTRIES)
}

/// Writes a frame into memory of exactly [`frame_bytes`].
pub(super) fn write_frame(cluster: u64, messages: &[Message], out: &mut [u8]) {
    let mut out = Writer(out);
    out.bytes(&cluster.to_le_bytes());
    out.bytes(&(messages.len() as u16).to_le_bytes());
    for message in messages {
        write_message(message, &mut out);
    }
    assert!(out.0.is_empty(), "the size was computed for these messages");
}

fn write_message(message: &Message, out: &mut Writer<'_>) {
    let flags = flags_of(message);
    out.bytes(&[message.get_msg_type() as u8, flags]);
    for number in [
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.reject_hint,
    ] {
        out.u64(number);
    }
    if flags & EXTRAS != 0 {
        out.u64(message.commit_term);
        out.u64(message.request_snapshot);
        out.u64(message.priority as u64);
    }
    if flags & CONTEXT != 0 {
        out.long(&message.context);
    }
    if flags & SNAPSHOT != 0 {
        let snapshot = message.get_snapshot().write_to_bytes();
        out.long(&snapshot.expect("a description without required fields can be written"));
    }
    if flags & ENTRIES != 0 {
        out.u32(message.entries.len());
        for entry in &message.entries {
            write_entry(entry, out);
        }
    }
}

fn write_entry(entry: &Entry, out: &mut Writer<'_>) {
    out.bytes(&[entry.get_entry_type() as u8]);
    out.u64(entry.term);
    out.u32(entry.data.len());
    out.u32(entry.context.len());
    out.bytes(&entry.data);
    out.bytes(&entry.context);
}

/// Reads a frame: the cluster, and the messages, addressed to `to`.
pub(super) fn read_frame(frame: &[u8], to: u64) -> Result<(u64, Vec<Message>), DecodeError> {
    // Entries are kept for long: the entries of a frame share a copy of the bytes.
    let mut input = Input { fields: Reader::new(frame), frame, owned: None, at: 0 };
    let cluster = input.fields.u64("cluster")?;
    let count = input.fields.u16("count")?;
    let mut messages = Vec::with_capacity(usize::from(count).min(frame.len() / MESSAGE_BYTES));
    for _ in 0..count {
        messages.push(read_message(&mut input, to)?);
    }
    input.fields.end()?;
    Ok((cluster, messages))
}

fn read_message(input: &mut Input<'_>, to: u64) -> Result<Message, DecodeError> {
    let fields = &mut input.fields;
    let (kind, flags) = (fields.u8("type")?, fields.u8("flags")?);
    let unknown = |field, kind| DecodeError::UnknownKind { field, kind };
    let message_type = message_type(kind).ok_or(unknown("type", kind))?;
    if flags & !FLAGS != 0 {
        return Err(unknown("flags", flags));
    }
    let mut message = Message { to, reject: flags & REJECT != 0, ..Message::default() };
    message.set_msg_type(message_type);
    message.from = fields.u64("from")?;
    message.term = fields.u64("term")?;
    message.log_term = fields.u64("log term")?;
    message.index = fields.u64("index")?;
    message.commit = fields.u64("commit")?;
    message.reject_hint = fields.u64("reject hint")?;
    if flags & EXTRAS != 0 {
        message.commit_term = fields.u64("commit term")?;
        message.request_snapshot = fields.u64("request snapshot")?;
        message.priority = fields.u64("priority")? as i64;
    }
    if flags & CONTEXT != 0 {
        message.context = input.long()?;
    }
    if flags & SNAPSHOT != 0 {
        let mut snapshot = Snapshot::default();
        let merged = snapshot.merge_from_bytes(&input.long()?);
        merged.map_err(|_| DecodeError::OutOfRange("description of a snapshot"))?;
        message.set_snapshot(snapshot);
    }
    if flags & ENTRIES != 0 {
        message.entries = read_entries(input, message.index)?.into();
    }
    Ok(message)
}

fn read_entries(input: &mut Input<'_>, before: u64) -> Result<Vec<Entry>, DecodeError> {
    let count = input.fields.u32("entries")? as usize;
    let mut entries = Vec::with_capacity(count.min(input.fields.rest().len() / ENTRY_BYTES));
    for place in 1..=count as u64 {
        let entry_type = match input.fields.u8("entry")? {
            0 => EntryType::EntryNormal,
            1 => EntryType::EntryConfChange,
            2 => EntryType::EntryConfChangeV2,
            kind => return Err(DecodeError::UnknownKind { field: "entry", kind }),
        };
        let term = input.fields.u64("term")?;
        let (data, context) = (input.fields.u32("data")?, input.fields.u32("context")?);
        let index = before.wrapping_add(place);
        let (data, context) = (input.shared(data)?, input.shared(context)?);
        let mut entry = Entry { term, index, data, context, ..Entry::default() };
        entry.set_entry_type(entry_type);
        entries.push(entry);
    }
    Ok(entries)
}

/// The types of messages between replicas; further types are for the core's internal use.
fn message_type(code: u8) -> Option<MessageType> {
    use MessageType::*;
    [
        MsgAppend,
        MsgAppendResponse,
        MsgRequestVote,
        MsgRequestVoteResponse,
        MsgSnapshot,
        MsgHeartbeat,
        MsgHeartbeatResponse,
        MsgTimeoutNow,
        MsgReadIndex,
        MsgReadIndexResp,
        MsgRequestPreVote,
        MsgRequestPreVoteResponse,
        MsgTransferLeader,
    ]
    .into_iter()
    .find(|kind| *kind as u8 == code)
}

struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        let (head, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.0 = rest;
    }

    fn u32(&mut self, number: usize) {
        self.bytes(&(number as u32).to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn long(&mut self, bytes: &[u8]) {
        self.u32(bytes.len());
        self.bytes(bytes);
    }
}

/// The rest of a frame.
struct Input<'a> {
    fields: Reader<'a>,
    frame: &'a [u8],
    /// A copy of the frame from `at` on, once a part of it is kept.
    owned: Option<Bytes>,
    at: usize,
}

impl Input<'_> {
    fn long(&mut self) -> Result<Bytes, DecodeError> {
        let len = self.fields.u32("length")?;
        self.shared(len)
    }

    fn shared(&mut self, len: u32) -> Result<Bytes, DecodeError> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let begin = self.frame.len() - self.fields.rest().len();
        let end = begin + self.fields.take(len as usize, "bytes")?.len();
        let owned = self.owned.get_or_insert_with(|| {
            self.at = begin;
            Bytes::copy_from_slice(&self.frame[begin..])
        });
        Ok(owned.slice(begin - self.at..end - self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use raft::eraftpb::ConfState;

    fn arb_entries(index: u64) -> impl Strategy<Value = Vec<Entry>> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let one = (any::<u64>(), 0..3usize, bytes(), bytes());
        proptest::collection::vec(one, 0..5).prop_map(move |entries| {
            let numbered = entries.into_iter().zip(1..);
            numbered
                .map(|((term, kind, data, context), place)| {
                    let index = index.wrapping_add(place);
                    let mut entry = Entry { term, index, data, context, ..Entry::default() };
                    entry.set_entry_type(
                        [
                            EntryType::EntryNormal,
                            EntryType::EntryConfChange,
                            EntryType::EntryConfChangeV2,
                        ][kind],
                    );
                    entry
                })
                .collect()
        })
    }

    fn arb_message() -> impl Strategy<Value = Message> {
        let numbers = any::<[u64; 8]>();
        let rest = (0..19u8, any::<bool>(), proptest::option::of(any::<[u64; 3]>()), any::<u32>());
        (numbers, rest).prop_flat_map(|(numbers, (kind, reject, snapshot, context))| {
            arb_entries(numbers[3]).prop_map(move |entries| {
                let [from, term, log_term, index, commit, reject_hint, commit_term, priority] =
                    numbers;
                let mut message = Message {
                    to: 7,
                    from,
                    term,
                    log_term,
                    index,
                    commit,
                    reject_hint,
                    reject,
                    ..Message::default()
                };
                message.set_msg_type(message_type(kind).unwrap_or(MessageType::MsgAppend));
                message.entries = entries.into();
                if context % 2 == 1 {
                    message.context = Bytes::copy_from_slice(&context.to_le_bytes());
                    (message.commit_term, message.priority) = (commit_term, priority as i64);
                }
                if let Some([index, term, voter]) = snapshot {
                    let metadata = message.mut_snapshot().mut_metadata();
                    (metadata.index, metadata.term) = (index, term);
                    metadata.set_conf_state(ConfState::from((vec![voter], vec![3])));
                }
                message
            })
        })
    }

    proptest! {
        #[test]
        fn frame__round_trips(messages in proptest::collection::vec(arb_message(), 0..4)) {
            let mut frame = vec![0; frame_bytes(&messages)];
            write_frame(99, &messages, &mut frame);
            let (cluster, read) = read_frame(&frame, 7).unwrap();
            prop_assert_eq!(cluster, 99);
            prop_assert_eq!(read, messages);
        }

        #[test]
        fn frame__cut_anywhere_is_refused(message in arb_message(), cut in any::<prop::sample::Index>()) {
            let mut frame = vec![0; frame_bytes(std::slice::from_ref(&message))];
            write_frame(99, &[message], &mut frame);
            frame.truncate(cut.index(frame.len()));
            prop_assert!(matches!(read_frame(&frame, 7), Err(DecodeError::Truncated(_))));
        }

        #[test]
        fn frame__any_bytes_are_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_frame(&bytes, 7);
        }
    }

    #[test]
    fn frame__what_follows_is_refused() {
        let mut frame = vec![0; frame_bytes(&[])];
        write_frame(1, &[], &mut frame);
        frame.push(0);
        assert_eq!(read_frame(&frame, 7), Err(DecodeError::Trailing(1)));
    }
}
