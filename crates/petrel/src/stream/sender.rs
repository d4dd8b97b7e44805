//! The end of a stream that sends messages.

use std::borrow::Borrow;
use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use petrel_proto::Execution;

use super::pair::{NotSent, Pair};
use super::shared::{Held, register};
use crate::error::Error;
use crate::panics::{PanicPayload, panicked};

/// Appends a message to memory.
pub(crate) type Append<T> = fn(&T, &mut Vec<u8>);

/// Sends the messages of a stream, from any thread. Dropped by a client, it ends the client's messages; a server's messages end with
/// the handler.
///
/// Messages of several calls go together, and leave by themselves: there is no flush.
pub struct Sender<T> {
    stream: Held,
    append: Append<T>,
}

/// A message that a stream has not taken.
#[derive(Debug)]
pub enum TrySendError<V> {
    /// As many messages wait as may: the reader is slower.
    Full(V),
    /// The stream is over.
    Ended(V, Error),
}

impl<T> Sender<T> {
    pub(super) fn new(stream: Held, append: Append<T>) -> Self {
        Self { stream, append }
    }

    /// Sends a message, after a wait while as many messages wait as may.
    ///
    /// # Errors
    /// The stream is over: the error with which it ended. A message whose codec panics ends the stream with INTERNAL.
    pub async fn send(&mut self, message: impl Borrow<T>) -> Result<(), Error> {
        let append = self.append;
        self.send_with(|out| append(message.borrow(), out)).await
    }

    /// Sends a message if it need not wait.
    ///
    /// # Errors
    /// The message, if there is no room or the stream is over.
    #[inline]
    pub fn try_send<V: Borrow<T>>(&mut self, message: V) -> Result<(), TrySendError<V>> {
        let append = self.append;
        let sent =
            self.stream.with(|pair, key| pair.send(key, |out| append(message.borrow(), out)));
        sent.map_err(|why| match why {
            NotSent::Full => TrySendError::Full(message),
            NotSent::Ended(error) => TrySendError::Ended(message, error),
            NotSent::Panicked(payload) => TrySendError::Ended(message, self.panicked(payload)),
        })
    }

    /// Sends a message that `append` appends to the memory of the stream.
    async fn send_with(&mut self, append: impl Fn(&mut Vec<u8>)) -> Result<(), Error> {
        poll_fn(|cx| self.poll_send(cx, &append)).await
    }

    #[inline]
    fn poll_send(
        &self,
        cx: &Context<'_>,
        append: &impl Fn(&mut Vec<u8>),
    ) -> Poll<Result<(), Error>> {
        let (sent, _former) = self.stream.with(|pair, key| {
            let sent = pair.send(key, append);
            let waiters = matches!(sent, Err(NotSent::Full)).then(|| pair.user(key)).flatten();
            (sent, waiters.and_then(|waiters| register(&mut waiters.writer, cx.waker())))
        });
        match sent {
            Ok(()) => Poll::Ready(Ok(())),
            Err(NotSent::Full) => Poll::Pending,
            Err(NotSent::Ended(error)) => Poll::Ready(Err(error)),
            Err(NotSent::Panicked(payload)) => Poll::Ready(Err(self.panicked(payload))),
        }
    }

    /// Ends the stream of a message whose encoder has panicked.
    #[cold]
    fn panicked(&self, payload: PanicPayload) -> Error {
        let error = panicked("the encoder of a message", Execution::MayHaveExecuted, payload);
        self.stream.with(|pair, key| pair.reset(key, error.status, &error.message));
        error
    }

    /// Ends the stream at once and at both sides, with an error: messages that wait are dropped. For a handler whose client reads too
    /// slowly. Without effect on a stream that is over.
    pub fn reset(&mut self, error: &Error) {
        self.stream.with(|pair, key| pair.reset_with(key, error));
    }

    /// Ends the messages of a client, as a drop does. Without effect at a server, whose messages end with the handler.
    pub fn finish(self) {}
}

impl Sender<Vec<u8>> {
    /// Sends the bytes of a message of a service with the codec [`Raw`](crate::service::Raw), like [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_bytes(&mut self, message: &[u8]) -> Result<(), Error> {
        self.send_with(|out| out.extend_from_slice(message)).await
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.stream.with(Pair::leave_written);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<V> fmt::Display for TrySendError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("as many messages wait as may"),
            Self::Ended(_, error) => error.fmt(f),
        }
    }
}

impl<V: fmt::Debug> std::error::Error for TrySendError<V> {}
