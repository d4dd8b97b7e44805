//! Requests as handlers see them, and the right to answer.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use petrel_proto::{RequestHandle, SessionId, Status};

use super::context::Context;
use super::late_answers::LateAnswers;
use super::peer::Peer;
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::time::Time;

/// A request to be answered.
///
/// A handler consumes it: it answers at once by [`Request::reply`] or [`Request::fail`], or takes a [`Responder`] to
/// answer later. All of these return the [`Handled`] that a handler must return, and no request can be forgotten:
///
/// ```compile_fail
/// # use petrel::endpoint::Handled;
/// # use petrel::{Context, Request};
/// fn forgetful(_cx: &mut Context<'_>, request: Request<'_>) -> Handled {
///     let _ = request.data().len();
///     // error: expected `Handled`, found `()`
/// }
/// ```
///
/// ```compile_fail
/// # use petrel::endpoint::Handled;
/// # use petrel::{Context, Request};
/// fn twice(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
///     let _ = request.reply(cx, b"one");
///     request.reply(cx, b"two") // error: use of moved value
/// }
/// ```
///
/// A request of one packet lies in a private receive buffer of the endpoint, and cannot be kept beyond the handler
/// without a copy:
///
/// ```compile_fail
/// # use petrel::endpoint::Handled;
/// # use petrel::{Context, Request};
/// fn keeps(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
///     std::thread_local!(static KEPT: std::cell::Cell<&'static [u8]> = const { std::cell::Cell::new(&[]) });
///     KEPT.set(request.data()); // error: borrowed data escapes
///     request.reply(cx, b"")
/// }
/// ```
#[derive(Debug)]
pub struct Request<'a> {
    /// Borrowed, to make requests smaller: they move through memory.
    handle: &'a RequestHandle,
    method: u16,
    payload: Payload<'a>,
    /// A buffer that saves an allocation if the response fits.
    spare: Option<MsgBuf>,
}

#[derive(Debug)]
pub(super) enum Payload<'a> {
    Borrowed(&'a [u8]),
    Owned(MsgBuf),
}

impl Payload<'_> {
    #[inline(always)]
    pub(super) fn data(&self) -> &[u8] {
        match self {
            Payload::Borrowed(data) => data,
            Payload::Owned(message) => message,
        }
    }
}

/// Proof of an answer, or of the existence of a [`Responder`]: the response is sent when the handler returns this
/// proof.
#[derive(Debug)]
#[must_use = "a handler returns it"]
pub struct Handled(Option<MsgBuf>);

impl Handled {
    /// Returns the proof for a request that is answered, or has a responder.
    pub(super) fn later() -> Self {
        Self(None)
    }

    /// The response is this message.
    pub(super) fn now(message: MsgBuf) -> Self {
        Self(Some(message))
    }

    /// Returns the response to be sent.
    #[inline(always)]
    pub(super) fn into_message(self) -> Option<MsgBuf> {
        self.0
    }
}

impl<'a> Request<'a> {
    #[inline(always)]
    pub(super) fn new(
        handle: &'a RequestHandle,
        method: u16,
        payload: Payload<'a>,
        spare: Option<MsgBuf>,
    ) -> Self {
        Self { handle, method, payload, spare }
    }

    /// Returns the request's name.
    #[inline]
    pub(super) fn handle(&self) -> RequestHandle {
        *self.handle
    }

    /// Takes the buffer of the slot's former response.
    #[inline]
    pub(super) fn take_spare(&mut self) -> Option<MsgBuf> {
        self.spare.take()
    }

    /// Returns the message and the spare buffer, without the duty to answer.
    pub(super) fn into_payload(self) -> (Payload<'a>, Option<MsgBuf>) {
        (self.payload, self.spare)
    }

    /// Returns the request of a method with an envelope, by the number of the method itself.
    pub(super) fn of_method(self, method: u16) -> Self {
        Self { method, ..self }
    }

    /// Returns the request's name and message, without the duty to answer.
    pub(super) fn into_parts(self) -> (RequestHandle, u16, Payload<'a>) {
        (*self.handle, self.method, self.payload)
    }
}

impl Request<'_> {
    /// Returns the message.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.payload.data()
    }

    /// Returns the called method.
    pub fn method(&self) -> u16 {
        self.method
    }

    /// Returns the session of the request.
    pub fn session(&self) -> SessionId {
        self.handle.session
    }

    /// Returns the caller's identity. `None` if the session has ended meanwhile.
    pub fn peer<'c, S>(&self, cx: &'c Context<'_, S>) -> Option<&'c Peer> {
        cx.local.sessions.peer_of(self.handle.session).map(Arc::as_ref)
    }

    /// Returns the caller's identity, to be kept beyond the handler.
    pub(crate) fn shared_peer<S>(&self, cx: &Context<'_, S>) -> Option<Arc<Peer>> {
        cx.local.sessions.peer_of(self.handle.session).cloned()
    }

    /// Returns the largest response that the client accepts, in bytes; 0 if the client no longer waits.
    pub(crate) fn response_bytes_max(&self, cx: &mut Context<'_>) -> u64 {
        cx.local.core.response_bytes_max(*self.handle).map_or(0, u64::from)
    }

    /// Returns the request's deadline, if any, on the clock of [`Context::now`]. Calls made
    /// by the handler end no later.
    pub fn deadline<S: 'static>(&self, cx: &Context<'_, S>) -> Option<Time> {
        cx.deadline()
    }

    /// Returns the time left until the request's deadline, if any.
    pub fn time_left<S: 'static>(&self, cx: &Context<'_, S>) -> Option<Duration> {
        self.deadline(cx).map(|end| end.since(cx.clock_now()))
    }

    /// Answers with a message.
    #[inline]
    pub fn reply<S: 'static>(self, cx: &mut Context<'_, S>, message: &[u8]) -> Handled {
        self.reply_with(cx, message.len(), |_, out| {
            out.copy_from_slice(message);
            message.len()
        })
    }

    /// Answers with a message of up to `capacity` bytes written by `fill`, which gets the request and the memory, and
    /// returns the message's length.
    #[inline(always)]
    pub fn reply_with<S: 'static>(
        self,
        cx: &mut Context<'_, S>,
        capacity: usize,
        fill: impl FnOnce(&[u8], &mut [u8]) -> usize,
    ) -> Handled {
        // The request is taken apart: the compiler would copy a whole one to memory.
        let Request { handle, method, payload, spare } = self;
        match (payload, spare) {
            // The usual case has nothing to free afterwards.
            (Payload::Borrowed(request), Some(mut message)) if message.capacity() >= capacity => {
                let len = fill(request, &mut message.storage_mut()[..capacity]);
                message.set_len(len);
                Handled(Some(message))
            }
            (payload, spare) => {
                let request = Request { handle, method, payload, spare };
                reply_otherwise(cx.untyped(), request, capacity, fill)
            }
        }
    }

    /// Answers with the buffer of the slot's former response, which `fill` gives its message. Returns `None` if the slot has no
    /// such buffer, the request came in several packets, or `fill` returns `None`: the caller then answers otherwise.
    #[inline(always)]
    pub(crate) fn try_reply(
        &mut self,
        fill: impl FnOnce(&[u8], &mut MsgBuf) -> Option<()>,
    ) -> Option<Handled> {
        // The request stays whole, unlike in `reply_with`: few registers are needed until the answer.
        let Payload::Borrowed(request) = self.payload else { return None };
        fill(request, self.spare.as_mut()?)?;
        Some(Handled(self.spare.take()))
    }

    /// Answers with a buffer filled by the handler.
    #[inline]
    pub fn reply_buffer<S>(self, _cx: &mut Context<'_, S>, message: MsgBuf) -> Handled {
        Handled(Some(message))
    }

    /// Answers with an error and a message for people.
    ///
    /// # Panics
    /// When the status is OK.
    pub fn fail<S: 'static>(
        self,
        cx: &mut Context<'_, S>,
        status: Status,
        message: &str,
    ) -> Handled {
        assert!(status != Status::Ok, "a failure has a status other than OK");
        cx.respond_error(*self.handle, status, message);
        Handled(None)
    }

    /// Answers with an error, with its [details](Error::details).
    ///
    /// # Panics
    /// When the status is OK.
    pub fn fail_with<S: 'static>(self, cx: &mut Context<'_, S>, error: &Error) -> Handled {
        assert!(error.status != Status::Ok, "a failure has a status other than OK");
        cx.respond_error(*self.handle, error.status, error.body());
        Handled(None)
    }

    /// Answers that the request was not and will not be executed, and why: the client may repeat the call, whatever its
    /// method ([`Execution::Refused`](crate::Execution::Refused)).
    pub fn refuse<S: 'static>(
        self,
        cx: &mut Context<'_, S>,
        status: Status,
        message: &'static str,
    ) -> Handled {
        cx.refuse(*self.handle, status, message);
        Handled(None)
    }

    /// Defers the answer, beyond the handler if needed: for a handler that first makes calls of its own. Read
    /// [`Request::data`] before, or take the message by [`Request::defer_message`].
    pub fn defer<S: 'static>(self, cx: &mut Context<'_, S>) -> (Responder, Handled) {
        let late = Rc::clone(cx.local.late_answers());
        (Responder { handle: Some(*self.handle), late }, Handled(None))
    }

    /// Defers the answer and keeps the message: in place if it came in several packets, else as a copy. `None` without
    /// memory for the copy; the request is then answered with RESOURCE_EXHAUSTED.
    pub fn defer_message<S: 'static>(
        self,
        cx: &mut Context<'_, S>,
    ) -> (Option<(Responder, MsgBuf)>, Handled) {
        let Request { handle, method, payload, .. } = self;
        let message = match payload {
            Payload::Owned(message) => Ok(message),
            Payload::Borrowed(data) => cx.alloc_message(data),
        };
        let request = Request { handle, method, payload: Payload::Borrowed(&[]), spare: None };
        match message {
            Ok(message) => {
                let (responder, handled) = request.defer(cx);
                (Some((responder, message)), handled)
            }
            Err(_) => {
                let text = "the server has no memory left";
                (None, request.fail(cx, Status::ResourceExhausted, text))
            }
        }
    }
}

/// Answers like [`Request::reply_with`], for a request of several packets, or without a suitable buffer of the slot.
#[inline(never)]
fn reply_otherwise(
    cx: &mut Context<'_>,
    request: Request<'_>,
    capacity: usize,
    fill: impl FnOnce(&[u8], &mut [u8]) -> usize,
) -> Handled {
    let Request { handle, payload, spare, .. } = request;
    let room = match spare.filter(|spare| spare.capacity() >= capacity) {
        Some(spare) => Ok(spare),
        None => match cx.alloc(capacity) {
            Err(_) if cx.make_room_for_answer(capacity) => cx.alloc(capacity),
            allocated => allocated,
        },
    };
    let Ok(mut message) = room else {
        cx.respond_error(*handle, Status::ResourceExhausted, "the server has no memory left");
        return Handled(None);
    };
    let len = fill(payload.data(), &mut message.storage_mut()[..capacity]);
    message.set_len(len);
    Handled(Some(message))
}

/// The right and duty to answer a request later. Dropping it without an answer answers the request with INTERNAL.
///
/// ```
/// use petrel::endpoint::Responder;
/// use petrel::{Client, Server};
///
/// const WAIT: u16 = 1;
/// const RELEASE: u16 = 2;
///
/// let server = Server::bind("127.0.0.1:0").serve(|_| Vec::<Responder>::new(), |endpoint| {
///     endpoint.on(WAIT, |waiting: &mut Vec<Responder>, cx, request| {
///         let (responder, handled) = request.defer(cx);
///         waiting.push(responder);
///         handled
///     });
///     endpoint.on(RELEASE, |waiting, cx, request| {
///         let count = waiting.len() as u8;
///         waiting.drain(..).for_each(|responder| responder.reply(cx, b"released"));
///         request.reply(cx, &[count])
///     });
/// });
/// let server = server.start()?;
/// let client = Client::connect_wait(server.local_addr())?;
/// let waits = client.call(WAIT, "").started();
/// while client.call(RELEASE, "").wait()? != [1] {}
/// assert_eq!(waits.wait()?, b"released");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Responder {
    handle: Option<RequestHandle>,
    late: Rc<LateAnswers>,
}

impl Responder {
    /// Returns the request's name, until it is answered.
    pub(crate) fn handle(&self) -> Option<RequestHandle> {
        self.handle
    }

    /// Answers with a message. If the client has given up meanwhile, the answer is discarded and counted.
    pub fn reply<S: 'static>(self, cx: &mut Context<'_, S>, message: &[u8]) {
        match cx.alloc_message(message) {
            Ok(message) => self.reply_buffer(cx, message),
            Err(_) => self.fail(cx, Status::ResourceExhausted, "the server has no memory left"),
        }
    }

    /// Answers with a buffer, for example the response of a nested call.
    pub fn reply_buffer<S: 'static>(mut self, cx: &mut Context<'_, S>, message: MsgBuf) {
        if let Some(handle) = self.handle.take() {
            cx.respond(handle, Status::Ok, message);
        }
    }

    /// Answers with an error and a message for people.
    ///
    /// # Panics
    /// When the status is OK.
    pub fn fail<S: 'static>(mut self, cx: &mut Context<'_, S>, status: Status, message: &str) {
        assert!(status != Status::Ok, "a failure has a status other than OK");
        if let Some(handle) = self.handle.take() {
            cx.respond_error(handle, status, message);
        }
    }

    /// Answers with an error, with its [details](Error::details).
    ///
    /// # Panics
    /// When the status is OK.
    pub fn fail_with<S: 'static>(mut self, cx: &mut Context<'_, S>, error: &Error) {
        assert!(error.status != Status::Ok, "a failure has a status other than OK");
        if let Some(handle) = self.handle.take() {
            cx.respond_error(handle, error.status, error.body());
        }
    }

    /// Answers that the request was not and will not be executed, like [`Request::refuse`].
    pub fn refuse<S: 'static>(
        mut self,
        cx: &mut Context<'_, S>,
        status: Status,
        message: &'static str,
    ) {
        if let Some(handle) = self.handle.take() {
            cx.refuse(handle, status, message);
        }
    }
}

impl Responder {
    /// Has the event loop send the answer of a task.
    pub(crate) fn answer_later(mut self, outcome: Result<MsgBuf, Error>) {
        if let Some(handle) = self.handle.take() {
            self.late.push(handle, outcome);
        }
    }

    /// Returns the caller's identity. `None` if the session has ended meanwhile.
    pub fn peer<'c, S>(&self, cx: &'c Context<'_, S>) -> Option<&'c Peer> {
        cx.local.sessions.peer_of(self.handle?.session).map(Arc::as_ref)
    }

    /// Returns true if the caller no longer waits: it cancelled the call, or the call expired, or the session has
    /// ended. The next turn of the event loop may learn of an end.
    pub fn is_cancelled<S>(&self, cx: &Context<'_, S>) -> bool {
        self.handle.is_none_or(|handle| !cx.local.core.is_awaited(handle))
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.late.push_dropped(handle);
        }
    }
}
