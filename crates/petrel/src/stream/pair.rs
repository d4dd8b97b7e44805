//! The streams between two endpoints, without I/O and clock: records go in, batches come out, and events tell of streams.

use std::collections::{BTreeSet, HashMap, VecDeque};

use petrel_proto::{Execution, Status};

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use crate::error::Error;
use crate::local::{Key, Slab};
use crate::panics::PanicPayload;
use crate::stream::wire::{End, UNDER_WAY_MAX};
use crate::values::{Metadata, StreamConfig};

mod receive;
mod send;
#[cfg(test)]
mod tests;

/// Bytes that wait for the next batch before a batch leaves beside others under way. A batch leaves at once if none is.
const EAGER_BYTES: usize = 16 << 10;

/// The side of a pair: the client opens the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// A stream of a pair, with values `T` of the application's side.
#[derive(Debug)]
struct Stream<T> {
    number: u32,
    user: T,
    out: Outgoing,
    inc: Incoming,
    /// How the stream ended, as this side sees it.
    over: Option<Result<(), Error>>,
    /// The metadata of the peer: at a server those of the beginning, at a client those of the end.
    metadata: Option<Box<Metadata>>,
    /// The deadline; [`u64::MAX`] without one.
    end_ns: u64,
    /// Whether the peer has been told of the stream.
    is_opened: bool,
    queued: Queued,
    /// Whether the application waits for room, and for records.
    wants_room: bool,
    wants_records: bool,
    /// The application's handles.
    holders: u32,
}

/// The place of a stream among those with records to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queued {
    /// Nothing waits.
    No,
    /// In the queue of the streams that go into the next batch.
    Ready,
    /// The records need more credit.
    Stalled,
}

/// A record besides messages, to be sent before them.
#[derive(Debug)]
enum Control {
    Open(Key, u16, Metadata),
    Reset(u32, End),
}

/// News of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The client has opened a stream of a method.
    Opened(Key, u16),
    /// There are records, or there will be none: the reader has waited.
    Readable(Key),
    /// There is room: the writer has waited.
    Writable(Key),
    /// The stream is over.
    Ended(Key),
}

/// The streams between two endpoints.
#[derive(Debug)]
pub(super) struct Pair<T> {
    role: Role,
    config: StreamConfig,
    streams: Slab<Stream<T>>,
    /// The streams that are not over for the peer.
    by_number: HashMap<u32, Key>,
    /// The number of the next stream: lower numbers are of streams that exist or are over.
    next_number: u32,
    controls: VecDeque<Control>,
    /// Streams whose peer is to get credit.
    credits: VecDeque<Key>,
    ready: VecDeque<Key>,
    /// Bytes of records of the streams that are ready.
    ready_bytes: usize,
    /// Bytes of received records that wait for their readers.
    held_bytes: usize,
    events: VecDeque<Event>,
    /// The values of streams that are gone.
    gone: Vec<T>,
    deadlines: BTreeSet<(u64, Key)>,
    /// The sequence number of the next batch, and those of unanswered ones.
    sequence: u64,
    under_way: VecDeque<u64>,
    /// The sequence number of the next batch from the peer, and batches that came before it.
    expected: u64,
    early: Vec<(u64, Box<[u8]>)>,
    failure: Option<Error>,
}

/// Why a message was not taken.
#[derive(Debug)]
pub(super) enum NotSent {
    /// There is no room now: an event will tell.
    Full,
    /// The stream is over, or the direction has ended.
    Ended(Error),
    /// The encoder has panicked.
    Panicked(PanicPayload),
}

/// The records for a reader.
#[derive(Debug)]
pub(super) enum Taken {
    Records,
    /// None now: an event will tell.
    None,
    /// All messages have come.
    Finished,
    Failed(Error),
}

impl<T: Default> Pair<T> {
    #[cfg(test)]
    pub(super) const STREAM_BYTES: usize = size_of::<Stream<T>>();

    pub(super) fn new(role: Role, config: StreamConfig) -> Self {
        Self {
            role,
            config,
            streams: Slab::default(),
            by_number: HashMap::new(),
            next_number: 0,
            controls: VecDeque::new(),
            credits: VecDeque::new(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            held_bytes: 0,
            events: VecDeque::new(),
            gone: Vec::new(),
            deadlines: BTreeSet::new(),
            sequence: 0,
            under_way: VecDeque::new(),
            expected: 0,
            early: Vec::new(),
            failure: None,
        }
    }

    /// Returns true if no stream is left.
    pub(super) fn is_empty(&self) -> bool {
        self.streams.len() == 0 && self.controls.is_empty()
    }

    /// Returns the bytes of received records that wait for their readers.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Opens a stream with metadata, which ends at `end_ns`. The caller holds it.
    ///
    /// # Errors
    /// The pair has ended, or has too many streams.
    pub(super) fn open(
        &mut self,
        method: u16,
        end_ns: u64,
        metadata: Metadata,
    ) -> Result<Key, Error> {
        assert_eq!(self.role, Role::Client, "the client opens streams");
        if let Some(failure) = &self.failure {
            return Err(failure.clone().with_execution(Execution::NotSent));
        }
        if self.by_number.len() >= self.config.streams_max as usize || self.next_number == u32::MAX
        {
            let text = format!("{} streams of the client are open", self.by_number.len());
            return Err(Error::not_sent(Status::ResourceExhausted, text));
        }
        let key = self.insert(self.next_number, end_ns);
        self.controls.push_back(Control::Open(key, method, metadata));
        Ok(key)
    }

    fn insert(&mut self, number: u32, end_ns: u64) -> Key {
        let key = self.streams.insert(Stream {
            number,
            user: T::default(),
            out: Outgoing::default(),
            inc: Incoming::default(),
            over: None,
            metadata: None,
            end_ns,
            is_opened: self.role == Role::Server,
            queued: Queued::No,
            wants_room: false,
            wants_records: false,
            holders: 1,
        });
        let before = self.by_number.insert(number, key);
        assert!(before.is_none(), "a number stands for one stream");
        self.next_number = number + 1;
        if end_ns != u64::MAX {
            self.deadlines.insert((end_ns, key));
        }
        key
    }

    /// Returns the value of the application's side.
    pub(super) fn user(&mut self, key: Key) -> Option<&mut T> {
        self.streams.get_mut(key).map(|stream| &mut stream.user)
    }

    /// Returns the place of the peer's metadata.
    pub(super) fn metadata(&mut self, key: Key) -> &mut Option<Box<Metadata>> {
        &mut self.stream(key).metadata
    }

    /// Returns the metadata of a stream's end, for a client.
    pub(super) fn end_metadata(&self, key: Key) -> Option<Metadata> {
        let stream = self.streams.get(key).filter(|_| self.role == Role::Client)?;
        stream.metadata.as_deref().cloned()
    }

    /// Returns when the next stream ends by its deadline; [`u64::MAX`] without one.
    pub(super) fn next_deadline_ns(&self) -> u64 {
        self.deadlines.first().map_or(u64::MAX, |(at_ns, _)| *at_ns)
    }

    /// Returns the deadline of a stream; [`u64::MAX`] without one.
    pub(super) fn deadline_ns(&self, key: Key) -> u64 {
        self.streams.get(key).map_or(u64::MAX, |stream| stream.end_ns)
    }

    /// Returns true if there are events, or values of streams that are gone.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        !(self.events.is_empty() && self.gone.is_empty())
    }

    /// Takes the values of streams that are gone, to be dropped by the caller.
    #[inline]
    pub(super) fn take_gone(&mut self) -> Vec<T> {
        std::mem::take(&mut self.gone)
    }

    pub(super) fn pop_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Counts a further handle of a stream.
    pub(super) fn hold(&mut self, key: Key) {
        self.stream(key).holders += 1;
    }

    /// Drops a handle of a stream. The last one takes the stream with it, which is over by then or ends now.
    pub(super) fn release(&mut self, key: Key) {
        let stream = self.stream(key);
        stream.holders -= 1;
        if stream.holders > 0 {
            return;
        }
        if stream.over.is_none() {
            self.reset(key, Status::Cancelled, "the stream was dropped");
        }
        self.remove_if_over(key);
    }

    /// Ends the streams whose deadline has passed.
    pub(super) fn expire(&mut self, now_ns: u64) {
        while let Some(&(at_ns, key)) = self.deadlines.first()
            && at_ns <= now_ns
        {
            self.reset(key, Status::DeadlineExceeded, "the deadline of the stream has passed");
        }
    }

    /// Ends all streams, and the pair.
    pub(super) fn fail(&mut self, error: &Error) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        let mut live: Vec<Key> = self.by_number.values().copied().collect();
        live.sort_unstable();
        for key in live {
            let is_opened = self.stream(key).is_opened;
            let not_sent = || error.clone().with_execution(Execution::NotSent);
            let own = if is_opened { error.clone() } else { not_sent() };
            self.end(key, Err(own));
            self.leave(key);
        }
        self.controls.clear();
        self.early = Vec::new();
        assert!(
            self.by_number.is_empty() && self.deadlines.is_empty(),
            "no stream outlives its pair"
        );
    }

    /// Ends a stream at both sides at once, whatever waits.
    pub(super) fn reset(&mut self, key: Key, status: Status, text: &str) {
        self.reset_by(key, End::new(status, text));
    }

    /// Ends a stream like [`reset`](Self::reset), with all of an error.
    pub(super) fn reset_with(&mut self, key: Key, error: &Error) {
        self.reset_by(key, End::of(&Err(error.clone()), Metadata::new()));
    }

    /// Lets the reader go: the stream of a client is cancelled, and a server drops the messages to come.
    pub(super) fn leave_unread(&mut self, key: Key) {
        match self.role {
            Role::Client => self.reset(key, Status::Cancelled, "the client has dropped the stream"),
            Role::Server => self.discard(key),
        }
    }

    /// Lets the writer go: the messages of a client end, and those of a server with its handler.
    pub(super) fn leave_written(&mut self, key: Key) {
        if self.role == Role::Client {
            self.finish(key, Ok(()), Metadata::new());
        }
    }

    /// Ends all streams at both sides; the pair goes on.
    pub(super) fn reset_all(&mut self, status: Status, text: &str) {
        let mut live: Vec<Key> = self.by_number.values().copied().collect();
        live.sort_unstable();
        live.into_iter().for_each(|key| self.reset(key, status, text));
    }

    /// Ends a stream whose handler has not run.
    pub(super) fn refuse(&mut self, key: Key, status: Status, text: &str) {
        self.reset_by(key, End::refusal(status, text));
    }

    fn reset_by(&mut self, key: Key, end: End) {
        let is_client = self.role == Role::Client;
        let Some(stream) = self.streams.get_mut(key) else { return };
        if !self.by_number.contains_key(&stream.number) {
            return;
        }
        let (number, is_opened) = (stream.number, stream.is_opened);
        let execution = match (is_client, is_opened) {
            (true, false) => Execution::NotSent,
            _ => Execution::MayHaveExecuted,
        };
        self.end(key, Err(end.error(execution)));
        self.leave(key);
        if is_opened {
            self.controls.push_back(Control::Reset(number, end));
        }
    }

    /// Returns true if a stream is over for this side.
    #[inline]
    pub(super) fn is_over(&self, key: Key) -> bool {
        self.streams.get(key).is_none_or(|stream| stream.over.is_some())
    }

    /// Records how a stream ended for this side, once.
    fn end(&mut self, key: Key, outcome: Result<(), Error>) {
        let stream = self.stream(key);
        if stream.over.is_none() {
            stream.over = Some(outcome);
            self.events.push_back(Event::Ended(key));
        }
    }

    /// Ends a stream for the peer: nothing more is sent, and records that come are ignored.
    fn leave(&mut self, key: Key) {
        self.unqueue(key);
        let stream = self.stream(key);
        stream.out.clear();
        let _ = stream.inc.finish();
        let (number, end_ns) = (stream.number, stream.end_ns);
        let left = self.by_number.remove(&number);
        assert_eq!(left, Some(key), "a stream ends for the peer once");
        self.deadlines.remove(&(end_ns, key));
        self.remove_if_over(key);
    }

    /// Removes a stream that is over at both sides, without a handle.
    fn remove_if_over(&mut self, key: Key) {
        let Some(stream) = self.streams.get(key) else { return };
        if stream.holders == 0
            && stream.over.is_some()
            && !self.by_number.contains_key(&stream.number)
        {
            let stream = self.streams.remove(key).expect("it was just there");
            self.held_bytes -= stream.inc.held();
            assert_eq!(stream.queued, Queued::No, "a stream that is over waits for no batch");
            self.gone.push(stream.user);
        }
    }

    /// Checks the bounds of memory.
    #[cfg(any(test, fuzzing))]
    pub(super) fn check_limits(&self) {
        assert!(self.by_number.len() <= self.config.streams_max as usize);
        assert!(self.held_bytes <= self.config.held_bytes_max as usize);
        assert!(self.early.len() < UNDER_WAY_MAX as usize);
        assert!(self.under_way.len() <= UNDER_WAY_MAX as usize);
        let waits =
            |key: &Key| self.streams.get(*key).is_some_and(|one| one.queued == Queued::Ready);
        assert!(self.ready_bytes == 0 || self.ready.iter().any(waits));
    }

    fn stream(&mut self, key: Key) -> &mut Stream<T> {
        self.streams.get_mut(key).expect("a stream stays while it has a handle or a number")
    }
}

/// The deadline of a stream that this side learns of now.
fn end_ns(left_ns: u64, now_ns: u64) -> u64 {
    match left_ns {
        0 => u64::MAX,
        left_ns => now_ns.saturating_add(left_ns),
    }
}
