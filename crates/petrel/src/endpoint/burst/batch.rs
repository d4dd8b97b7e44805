//! Requests of one method that came together, as a batched handler sees them.

use std::fmt;
use std::sync::Arc;

use petrel_proto::SessionId;

use super::lane::{Copies, Lane};
use crate::endpoint::context::Context;
use crate::endpoint::peer::Peer;
use crate::endpoint::request::{Handled, Payload, Request};
use crate::time::Time;

/// Requests of one method that one receive burst brought: see [`Endpoint::on_batch`](crate::Endpoint::on_batch).
///
/// The handler reads the [messages](Batch::messages) and answers every request by its number, in any order, by
/// [`reply`](Batch::reply), [`reply_with`](Batch::reply_with) or [`answer`](Batch::answer). A request that the handler
/// leaves is answered with INTERNAL.
pub struct Batch<'a> {
    method: u16,
    lanes: &'a [Lane],
    messages: Messages<'a>,
}

/// The messages of a batch.
pub(super) enum Messages<'a> {
    Copied(&'a Copies),
    /// The message of the only request, where it lies.
    Lent(&'a [u8]),
}

impl<'a> Batch<'a> {
    pub(super) fn new(method: u16, lanes: &'a [Lane], messages: Messages<'a>) -> Self {
        Self { method, lanes, messages }
    }

    /// Returns the number of requests: 1 to 32.
    #[inline]
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Returns false: a batch has a request.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Returns the called method.
    pub fn method(&self) -> u16 {
        self.method
    }

    /// Returns the message of a request.
    ///
    /// # Panics
    /// When the batch has fewer requests.
    #[inline]
    pub fn message(&self, index: usize) -> &[u8] {
        self.message_of(&self.lanes[index])
    }

    #[inline]
    fn message_of(&self, lane: &Lane) -> &[u8] {
        match self.messages {
            Messages::Copied(copies) => copies.of(lane),
            Messages::Lent(message) => message,
        }
    }

    /// Returns all messages, by the numbers of their requests.
    #[inline]
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.lanes.iter().map(|lane| self.message_of(lane))
    }

    /// Returns true if the handler has answered a request.
    #[inline]
    pub fn is_answered(&self, index: usize) -> bool {
        self.lanes[index].is_answered()
    }

    /// Returns the session of a request.
    pub fn session(&self, index: usize) -> SessionId {
        self.lanes[index].handle().session
    }

    /// Returns the identity of a request's caller. `None` if the session has ended meanwhile.
    pub fn peer<'c, S>(&self, cx: &'c Context<'_, S>, index: usize) -> Option<&'c Peer> {
        cx.local.sessions.peer_of(self.session(index)).map(Arc::as_ref)
    }

    /// Returns a request's deadline, if any, on the clock of [`Context::now`].
    pub fn deadline(&self, index: usize) -> Option<Time> {
        self.lanes[index].deadline_ns().map(Time::from_ns)
    }

    /// Answers a request with a message.
    ///
    /// # Panics
    /// As [`Batch::answer`].
    #[inline(always)]
    pub fn reply<S: 'static>(&self, cx: &mut Context<'_, S>, index: usize, message: &[u8]) {
        self.reply_with(cx, index, message.len(), |_, out| {
            out.copy_from_slice(message);
            message.len()
        });
    }

    /// Answers a request with a message of up to `capacity` bytes written by `fill`, which gets the request's message and
    /// the memory, and returns the response's length.
    ///
    /// # Panics
    /// As [`Batch::answer`].
    #[inline(always)]
    pub fn reply_with<S: 'static>(
        &self,
        cx: &mut Context<'_, S>,
        index: usize,
        capacity: usize,
        fill: impl FnOnce(&[u8], &mut [u8]) -> usize,
    ) {
        self.answer(cx, index, |cx, request| request.reply_with(cx, capacity, fill));
    }

    /// Runs a handler for one of the requests: it replies, fails, refuses or defers as the handler of
    /// [`Endpoint::on`](crate::Endpoint::on). The handler's calls inherit the request's deadline.
    ///
    /// # Panics
    /// When the batch has fewer requests, or the request was answered already.
    #[inline(always)]
    pub fn answer<S: 'static>(
        &self,
        cx: &mut Context<'_, S>,
        index: usize,
        handler: impl FnOnce(&mut Context<'_, S>, Request<'_>) -> Handled,
    ) {
        let lane = &self.lanes[index];
        let spare = lane.begin();
        let payload = Payload::Borrowed(self.message_of(lane));
        let request = Request::new(lane.handle(), self.method, payload, spare);
        let handled = match lane.deadline_ns() {
            None => handler(cx, request),
            deadline_ns => cx.under_deadline(deadline_ns, |cx| handler(cx, request)),
        };
        lane.finish(handled);
    }

    /// Runs a handler for each request without an answer, one after the other.
    pub fn answer_each<S: 'static>(
        &self,
        cx: &mut Context<'_, S>,
        mut handler: impl FnMut(&mut Context<'_, S>, Request<'_>) -> Handled,
    ) {
        for index in 0..self.len() {
            if !self.is_answered(index) {
                self.answer(cx, index, &mut handler);
            }
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch(method {}, {} requests)", self.method, self.len())
    }
}
