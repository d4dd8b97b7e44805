//! The end of a stream that receives messages.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use petrel_proto::{Execution, Status};

use super::client::AroundStream;
use super::pair::Taken;
use super::shared::{Held, register};
use super::wire::{HEAD, Head, PART};
use crate::error::Error;
use crate::panics::in_call;
use crate::values::Metadata;

/// Reads a message.
pub(crate) type Decode<T> = fn(&[u8]) -> Result<T, Error>;

/// Receives the messages of a stream, on any thread. A client that drops it cancels the stream, and the handler at the server is
/// dropped. A handler that drops it reads no more, and goes on.
pub struct Receiver<T> {
    stream: Held,
    /// Reads a message. Absent once no further message comes from here.
    decode: Option<Decode<T>>,
    /// In a box, for handlers keep a receiver in several places of their futures. Absent before the first message: an idle stream needs none.
    state: Option<Box<State>>,
}

/// The records of a receiver.
#[derive(Default)]
struct State {
    /// Records taken from the stream, and the place of the next.
    records: Vec<u8>,
    next: usize,
    /// The pieces of the last message that came in pieces, and whether its last piece has not come.
    pieces: Vec<u8>,
    is_within_message: bool,
    /// The interceptors of a client.
    watch: Option<Box<dyn AroundStream>>,
}

/// Bytes of memory that a receiver keeps for messages of several pieces.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// A message within the memory of a receiver.
enum Place {
    Record(usize, usize),
    Pieces,
}

impl<T> Receiver<T> {
    /// Returns a receiver: of a handler, or of a client whose stream runs between interceptors.
    pub(super) fn new(
        stream: Held,
        decode: Decode<T>,
        watch: Option<Box<dyn AroundStream>>,
    ) -> Self {
        let around = |watch| Box::new(State { watch: Some(watch), ..State::default() });
        Self { stream, decode: Some(decode), state: watch.map(around) }
    }

    /// Returns the metadata of a stream's end, which the handler has added by `cx.reply_metadata(…)`: for a client, after
    /// [`next`](Self::next) has returned `None` or an error. Empty before.
    pub fn metadata(&self) -> Metadata {
        let of_end = |held: &Held| held.with(|pair, key| pair.end_metadata(key));
        self.decode.is_none().then(|| of_end(&self.stream)).flatten().unwrap_or_default()
    }

    /// Returns the next message, after a wait if need be. `None` after the last message of a stream that has ended well.
    ///
    /// A stream that has failed returns the error once, behind the messages that came before: at a client the handler's error, too.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    #[inline]
    fn poll_message(&mut self, cx: &Context<'_>) -> Poll<Option<Result<T, Error>>> {
        let Some(place) = ready!(self.poll_place(cx)) else {
            return Poll::Ready(self.tell(None).err().map(Err));
        };
        let message = place.and_then(|place| {
            let decode = self.decode.expect("a message comes before the end");
            let decode = || decode(self.bytes(&place));
            in_call("the decoder of a message", Execution::MayHaveExecuted, decode).flatten()
        });
        Poll::Ready(Some(message.map_err(|error| self.end(error))))
    }

    fn bytes(&self, place: &Place) -> &[u8] {
        let state = self.state.as_deref().expect("a message has come");
        match *place {
            Place::Record(begin, end) => &state.records[begin..end],
            Place::Pieces => &state.pieces,
        }
    }

    /// Returns the place of the next message.
    #[inline]
    fn poll_place(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Place, Error>>> {
        while self.decode.is_some() {
            let next = self.state.as_deref_mut().and_then(|state| {
                Head::read(&state.records[state.next..]).map(|head| (state, head))
            });
            let Some((state, head)) = next else {
                match ready!(self.poll_records(cx)) {
                    Taken::Failed(error) => return Poll::Ready(Some(Err(error))),
                    Taken::Finished => self.decode = None,
                    Taken::Records | Taken::None => {}
                }
                continue;
            };
            let (begin, end) = (state.next + HEAD, state.next + head.record_len());
            state.next = end;
            if head.kind != PART && !state.is_within_message {
                return Poll::Ready(Some(Ok(Place::Record(begin, end))));
            }
            let limit = self.stream.shared().message_bytes_max();
            if let Err(error) = state.add_piece((begin, end), limit) {
                return Poll::Ready(Some(Err(error)));
            }
            state.is_within_message = head.kind == PART;
            if !state.is_within_message {
                return Poll::Ready(Some(Ok(Place::Pieces)));
            }
        }
        Poll::Ready(None)
    }

    /// Takes further records from the stream.
    fn poll_records(&mut self, cx: &Context<'_>) -> Poll<Taken> {
        let mut none = Vec::new();
        let records = match &mut self.state {
            Some(state) => {
                state.records.clear();
                state.next = 0;
                &mut state.records
            }
            None => &mut none,
        };
        let (taken, _former) = self.stream.with(|pair, key| {
            let taken = pair.take(key, records);
            let waiters = matches!(taken, Taken::None).then(|| pair.user(key)).flatten();
            (taken, waiters.and_then(|waiters| register(&mut waiters.reader, cx.waker())))
        });
        if !none.is_empty() {
            self.state = Some(Box::new(State { records: none, ..State::default() }));
        }
        match taken {
            Taken::None => Poll::Pending,
            taken => Poll::Ready(taken),
        }
    }

    /// Returns nothing more after an error, with which the stream ends unless it has ended. The error may be that of an interceptor.
    #[cold]
    fn end(&mut self, error: Error) -> Error {
        self.decode = None;
        self.stream.with(|pair, key| pair.reset(key, error.status, &error.message));
        self.tell(Some(&error)).err().unwrap_or(error)
    }

    /// Tells the interceptors of the end.
    fn tell(&mut self, error: Option<&Error>) -> Result<(), Error> {
        let watch = self.state.as_mut().and_then(|state| state.watch.take());
        watch.map_or(Ok(()), |mut watch| watch.end(error))
    }
}

impl State {
    /// Adds a piece to its message, of `limit` bytes at most.
    fn add_piece(&mut self, (begin, end): (usize, usize), limit: usize) -> Result<(), Error> {
        if !self.is_within_message {
            self.pieces.clear();
            self.pieces.shrink_to(KEPT_BYTES_MAX);
        }
        if self.pieces.len() + (end - begin) > limit {
            let text = format!("a message of the stream is larger than {limit} bytes");
            return Err(Error::of(Status::ResourceExhausted, text, Execution::MayHaveExecuted));
        }
        self.pieces.extend_from_slice(&self.records[begin..end]);
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// Returns a receiver of the messages behind those received, which are of another type.
    pub(crate) fn reading<U>(mut self, decode: Decode<U>) -> Receiver<U> {
        let (stream, state) = (self.stream.another(), self.state.take());
        Receiver { stream, decode: self.decode.take().map(|_| decode), state }
    }
}

impl Receiver<Vec<u8>> {
    /// Returns the bytes of the next message of a service with the codec [`Raw`](crate::service::Raw), like [`next`](Self::next), in
    /// the memory of the stream.
    pub async fn next_bytes(&mut self) -> Option<Result<&[u8], Error>> {
        match poll_fn(|cx| self.poll_place(cx)).await {
            Some(Ok(place)) => Some(Ok(self.bytes(&place))),
            Some(Err(error)) => Some(Err(self.end(error))),
            None => self.tell(None).err().map(Err),
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
        if self.decode.is_some() {
            self.stream.with(|pair, key| pair.leave_unread(key));
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

/// The reply of a method whose client sends a stream: a future. A drop cancels the stream.
#[must_use = "a drop cancels the stream"]
pub struct Reply<T> {
    receiver: Receiver<T>,
    /// The reply, until the stream has ended behind it.
    message: Option<T>,
}

impl<T> Reply<T> {
    pub(super) fn new(receiver: Receiver<T>) -> Self {
        Self { receiver, message: None }
    }

    /// Returns the metadata of the reply, or of an error, once a borrow of this was awaited: `(&mut reply).await`.
    pub fn metadata(&self) -> Metadata {
        self.receiver.metadata()
    }
}

// Nothing in a reply is pinned.
impl<T> Unpin for Reply<T> {}

impl<T> Future for Reply<T> {
    type Output = Result<T, Error>;

    /// # Panics
    /// When polled after it has returned the outcome.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(self.receiver.decode.is_some(), "the reply was taken");
        let text = loop {
            match ready!(self.receiver.poll_message(cx)) {
                Some(Ok(message)) if self.message.is_none() => self.message = Some(message),
                Some(Ok(_)) => break "the stream has a second reply",
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => match self.message.take() {
                    Some(message) => return Poll::Ready(Ok(message)),
                    None => break "the stream has ended without a reply",
                },
            }
        };
        let error = Error::of(Status::Internal, text, Execution::Answered);
        Poll::Ready(Err(self.receiver.end(error)))
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}
