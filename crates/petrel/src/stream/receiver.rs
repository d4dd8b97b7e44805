//! The end of a stream that receives messages.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use petrel_proto::{Execution, Status};

use super::pair::Taken;
use super::shared::{Held, register};
use super::wire::{HEAD, Head, PART};
use crate::error::Error;

/// Reads a message.
pub(crate) type Decode<T> = fn(&[u8]) -> Result<T, Error>;

/// Receives the messages of a stream, on any thread. A client that drops it cancels the stream, and the handler at the server is
/// dropped. A handler that drops it reads no more, and goes on.
pub struct Receiver<T> {
    stream: Held,
    decode: Decode<T>,
    /// In a box, for handlers keep a receiver in several places of their futures.
    state: Box<State>,
}

/// The records of a receiver.
#[derive(Debug)]
struct State {
    /// Records taken from the stream, and the place of the next.
    records: Vec<u8>,
    next: usize,
    /// The pieces of the last message that came in pieces, and whether its last piece has not come.
    pieces: Vec<u8>,
    is_within_message: bool,
    is_over: bool,
    on_drop: OnDrop,
}

/// The effect of a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDrop {
    /// The stream is cancelled: at a client.
    Cancel,
    /// The messages to come are dropped: at a server.
    Discard,
    /// None: another receiver reads on.
    Nothing,
}

/// Bytes of memory that a receiver keeps for messages of several pieces.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// A message within the memory of a receiver.
enum Place {
    Record(usize, usize),
    Pieces,
}

impl<T> Receiver<T> {
    pub(super) fn new(stream: Held, decode: Decode<T>, cancels: bool) -> Self {
        let state = State {
            records: Vec::new(),
            next: 0,
            pieces: Vec::new(),
            is_within_message: false,
            is_over: false,
            on_drop: if cancels { OnDrop::Cancel } else { OnDrop::Discard },
        };
        Self { stream, decode, state: Box::new(state) }
    }

    /// Returns the next message, after a wait if need be. `None` after the last message of a stream that has ended well.
    ///
    /// A stream that has failed returns the error once, behind the messages that came before: at a client the handler's error, too.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    #[inline]
    fn poll_message(&mut self, cx: &Context<'_>) -> Poll<Option<Result<T, Error>>> {
        let Some(place) = ready!(self.poll_place(cx)) else { return Poll::Ready(None) };
        let message = place.and_then(|place| (self.decode)(self.bytes(&place)));
        if let Err(error) = &message {
            self.end(error);
        }
        Poll::Ready(Some(message))
    }

    fn bytes(&self, place: &Place) -> &[u8] {
        match *place {
            Place::Record(begin, end) => &self.state.records[begin..end],
            Place::Pieces => &self.state.pieces,
        }
    }

    /// Returns the place of the next message.
    #[inline]
    fn poll_place(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Place, Error>>> {
        while !self.state.is_over {
            let Some(head) = Head::read(&self.state.records[self.state.next..]) else {
                match ready!(self.poll_records(cx)) {
                    Taken::Failed(error) => return Poll::Ready(Some(Err(error))),
                    Taken::Finished => self.state.is_over = true,
                    Taken::Records | Taken::None => {}
                }
                continue;
            };
            let (begin, end) = (self.state.next + HEAD, self.state.next + head.record_len());
            self.state.next = end;
            if head.kind != PART && !self.state.is_within_message {
                return Poll::Ready(Some(Ok(Place::Record(begin, end))));
            }
            if let Err(error) = self.add_piece(begin, end) {
                return Poll::Ready(Some(Err(error)));
            }
            self.state.is_within_message = head.kind == PART;
            if !self.state.is_within_message {
                return Poll::Ready(Some(Ok(Place::Pieces)));
            }
        }
        Poll::Ready(None)
    }

    /// Adds a piece to its message.
    fn add_piece(&mut self, begin: usize, end: usize) -> Result<(), Error> {
        if !self.state.is_within_message {
            self.state.pieces.clear();
            self.state.pieces.shrink_to(KEPT_BYTES_MAX);
        }
        let limit = self.stream.shared().message_bytes_max();
        if self.state.pieces.len() + (end - begin) > limit {
            let text = format!("a message of the stream is larger than {limit} bytes");
            return Err(Error::of(Status::ResourceExhausted, text, Execution::MayHaveExecuted));
        }
        self.state.pieces.extend_from_slice(&self.state.records[begin..end]);
        Ok(())
    }

    /// Takes further records from the stream.
    fn poll_records(&mut self, cx: &Context<'_>) -> Poll<Taken> {
        self.state.records.clear();
        self.state.next = 0;
        let records = &mut self.state.records;
        let (taken, _former) = self.stream.with(|pair, key| {
            let taken = pair.take(key, records);
            let waiters = matches!(taken, Taken::None).then(|| pair.user(key)).flatten();
            (taken, waiters.and_then(|waiters| register(&mut waiters.reader, cx.waker())))
        });
        match taken {
            Taken::None => Poll::Pending,
            taken => Poll::Ready(taken),
        }
    }

    /// Returns nothing more after an error, with which the stream ends unless it has ended.
    #[cold]
    fn end(&mut self, error: &Error) {
        self.state.is_over = true;
        self.stream.with(|pair, key| pair.reset(key, error.status, &error.message));
    }
}

impl<T> Receiver<T> {
    /// Returns a receiver of the messages behind those received, which are of another type.
    pub(crate) fn reading<U>(mut self, decode: Decode<U>) -> Receiver<U> {
        let on_drop = std::mem::replace(&mut self.state.on_drop, OnDrop::Nothing);
        let state = Box::new(State {
            records: std::mem::take(&mut self.state.records),
            next: self.state.next,
            pieces: std::mem::take(&mut self.state.pieces),
            is_within_message: self.state.is_within_message,
            is_over: self.state.is_over,
            on_drop,
        });
        Receiver { stream: self.stream.another(), decode, state }
    }
}

impl Receiver<Vec<u8>> {
    /// Returns the bytes of the next message of a service with the codec [`Raw`](crate::service::Raw), like [`next`](Self::next), in
    /// the memory of the stream.
    pub async fn next_bytes(&mut self) -> Option<Result<&[u8], Error>> {
        match poll_fn(|cx| self.poll_place(cx)).await? {
            Ok(place) => Some(Ok(self.bytes(&place))),
            Err(error) => {
                self.end(&error);
                Some(Err(error))
            }
        }
    }
}

impl<T> futures_util::Stream for Receiver<T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(cx)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.stream.with(|pair, key| match self.state.on_drop {
            OnDrop::Cancel => {
                pair.reset(key, Status::Cancelled, "the client has dropped the stream")
            }
            OnDrop::Discard => pair.discard(key),
            OnDrop::Nothing => {}
        });
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

/// The reply of a method whose client sends a stream: a future. A drop cancels the stream.
#[must_use = "a drop cancels the stream"]
#[derive(Debug)]
pub struct Reply<T>(Receiver<T>);

impl<T> Reply<T> {
    pub(super) fn new(receiver: Receiver<T>) -> Self {
        Self(receiver)
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T, Error>;

    /// # Panics
    /// When polled after it has returned the outcome.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.0.state.is_over, "the reply was taken");
        let reply = ready!(self.0.poll_message(cx));
        self.0.state.is_over = true;
        Poll::Ready(reply.unwrap_or_else(|| {
            let text = "the stream has ended without a reply";
            Err(Error::of(Status::Internal, text, Execution::Answered))
        }))
    }
}
