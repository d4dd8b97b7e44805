//! Handlers: the code that runs for a request.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use petrel_proto::{RequestHandle, SessionId, Status};

use super::context::Context;
use super::health::{self, HEALTH_METHOD, Healths};
use super::in_place::InPlace;
use super::state::State;
use crate::events;
use crate::inbox::WorkFlag;
use crate::msgbuf::MsgBuf;

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
    pub(super) handle: &'a RequestHandle,
    pub(super) method: u16,
    pub(super) payload: Payload<'a>,
    /// A buffer that saves an allocation if the response fits.
    pub(super) spare: Option<MsgBuf>,
}

#[derive(Debug)]
pub(super) enum Payload<'a> {
    Borrowed(&'a [u8]),
    Owned(MsgBuf),
}

impl Payload<'_> {
    #[inline]
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
pub struct Handled(pub(super) Option<MsgBuf>);

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

    /// Returns the request's deadline, if any, in nanoseconds of the endpoint's clock ([`Context::now_ns`]). Calls made
    /// by the handler end no later.
    pub fn deadline_ns<S: 'static>(&self, cx: &Context<'_, S>) -> Option<u64> {
        cx.deadline_ns()
    }

    /// Returns the time left until the request's deadline, if any.
    pub fn time_left<S: 'static>(&self, cx: &Context<'_, S>) -> Option<Duration> {
        let clock = &cx.local.clock;
        let left_ns = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(clock.now_ns()));
        self.deadline_ns(cx).map(left_ns)
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
        let Request { handle, payload, spare, .. } = self;
        if let Some(mut message) = spare
            && message.capacity() >= capacity
        {
            let len = fill(payload.data(), &mut message.storage_mut()[..capacity]);
            message.set_len(len);
            return Handled(Some(message));
        }
        reply_allocated(cx.untyped(), handle, payload.data(), capacity, fill)
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
        let dropped = Rc::clone(&cx.local.dropped);
        (Responder { handle: Some(*self.handle), dropped }, Handled(None))
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

/// [`Request::reply_with`] if the slot has no suitable buffer. Only parts of the request are borrowed: the compiler
/// would copy the whole to memory, even without a call of this function.
#[cold]
#[inline(never)]
fn reply_allocated(
    cx: &mut Context<'_>,
    handle: &RequestHandle,
    request: &[u8],
    capacity: usize,
    fill: impl FnOnce(&[u8], &mut [u8]) -> usize,
) -> Handled {
    let mut room = cx.alloc(capacity);
    if room.is_err() && cx.make_room_for_answer(capacity) {
        room = cx.alloc(capacity);
    }
    let Ok(mut message) = room else {
        cx.respond_error(*handle, Status::ResourceExhausted, "the server has no memory left");
        return Handled(None);
    };
    let len = fill(request, &mut message.storage_mut()[..capacity]);
    message.set_len(len);
    Handled(Some(message))
}

/// The right and duty to answer a request later. Dropping it without an answer answers the
/// request with INTERNAL.
#[derive(Debug)]
pub struct Responder {
    handle: Option<RequestHandle>,
    dropped: Rc<Dropped>,
}

impl Responder {
    /// Returns the request's name, until it is answered.
    pub(super) fn handle(&self) -> Option<RequestHandle> {
        self.handle
    }

    /// Answers with a message. If the client has given up meanwhile, the answer is discarded and
    /// counted.
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

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.dropped.push(handle);
        }
    }
}

/// Requests with a dropped responder.
pub(super) struct Dropped {
    handles: RefCell<Vec<RequestHandle>>,
    work_flag: WorkFlag,
}

impl Dropped {
    pub(super) fn new(work_flag: WorkFlag) -> Rc<Self> {
        Rc::new(Self { handles: RefCell::default(), work_flag })
    }

    fn push(&self, handle: RequestHandle) {
        self.handles.borrow_mut().push(handle);
        self.work_flag.raise();
    }

    pub(super) fn pop(&self) -> Option<RequestHandle> {
        self.handles.borrow_mut().pop()
    }
}

impl fmt::Debug for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dropped({})", self.handles.borrow().len())
    }
}

/// Size of a small response, reserved when memory is short: a handler must not run without memory to answer. It fits
/// into one packet, and the buffer stays in the slot for the next response.
const ROOM_BYTES: usize = petrel_proto::limits::PACKET_BYTES_MIN as usize;

/// A stored handler. A boxed closure would get its arguments in a tuple, for which the request is copied once more;
/// a method of a separate trait does not.
pub(super) trait Handle {
    fn handle(&mut self, state: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled;
}

impl<F: FnMut(State<'_>, &mut Context<'_>, Request<'_>) -> Handled> Handle for F {
    #[inline]
    fn handle(&mut self, state: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        self(state, cx, request)
    }
}

/// Returns the address that the handler of a request will access first.
type Locator = Box<dyn Fn(&[u8]) -> *const u8>;

/// The handlers by method, and their shared state.
pub(super) struct Handlers {
    pub(super) state: Box<dyn Any>,
    by_method: Vec<Option<Box<dyn Handle>>>,
    /// By method too; empty if no method has one.
    locators: Vec<Option<Locator>>,
    /// Handlers that read in place.
    pub(super) in_place: InPlace,
    pub(super) healths: Healths,
}

impl Handlers {
    #[inline(always)]
    pub(super) fn state(&mut self) -> State<'_> {
        State::of(&mut *self.state)
    }

    pub(super) fn new(state: Box<dyn Any>) -> Self {
        Self {
            state,
            by_method: Vec::new(),
            locators: Vec::new(),
            in_place: InPlace::default(),
            healths: Healths::default(),
        }
    }

    pub(super) fn set(&mut self, method: u16, handler: Box<dyn Handle>) {
        let place = usize::from(method);
        if self.by_method.len() <= place {
            self.by_method.resize_with(place + 1, || None);
        }
        self.by_method[place] = Some(handler);
        self.in_place.forget(method);
    }

    pub(super) fn set_locator(&mut self, method: u16, locator: Locator) {
        let place = usize::from(method);
        if self.locators.len() <= place {
            self.locators.resize_with(place + 1, || None);
        }
        self.locators[place] = Some(locator);
    }

    /// Returns true if any handler prefetches memory.
    #[inline(always)]
    pub(super) fn locates(&self) -> bool {
        !self.locators.is_empty()
    }

    /// Returns the address that the handler of a coming request will access.
    #[inline]
    pub(super) fn locate(&self, method: u16, message: &[u8]) -> Option<*const u8> {
        let locator = self.locators.get(usize::from(method))?.as_ref()?;
        Some(locator(message))
    }

    /// Answers a request of a method without a handler.
    #[cold]
    #[inline(never)]
    fn answer_other(
        &self,
        cx: &mut Context<'_>,
        handle: RequestHandle,
        method: u16,
        payload: Payload<'_>,
    ) {
        if method == HEALTH_METHOD {
            let has_handler =
                |method| matches!(self.by_method.get(usize::from(method)), Some(Some(_)));
            return health::answer(cx, handle, &payload, &self.healths, has_handler);
        }
        let text = "the server has no such method";
        events::request_refused(handle.session, Status::Unimplemented, text);
        cx.local.core.refuse(handle, Status::Unimplemented, text);
    }

    /// Runs the handler of a request, and sends the response, if the handler returns one.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        cx: &mut Context<'_>,
        handle: RequestHandle,
        method: u16,
        payload: Payload<'_>,
        spare: Option<MsgBuf>,
    ) {
        let Some(Some(handler)) = self.by_method.get_mut(usize::from(method)) else {
            return self.answer_other(cx, handle, method, payload);
        };
        if spare.is_none() && !cx.local.pool.has_room_for_small() {
            return self.run_in_last_room(cx, handle, method, payload);
        }
        let request = Request { handle: &handle, method, payload, spare };
        if let Handled(Some(message)) = handler.handle(State::of(&mut *self.state), cx, request) {
            cx.respond_at_once(handle, message);
        }
    }

    /// Runs a handler when memory is short, if a small response can be allocated; refuses the request if not.
    #[cold]
    #[inline(never)]
    fn run_in_last_room(
        &mut self,
        cx: &mut Context<'_>,
        handle: RequestHandle,
        method: u16,
        payload: Payload<'_>,
    ) {
        let Ok(room) = cx.alloc(ROOM_BYTES) else {
            let text = "the server has no memory for an answer";
            cx.local.core.refuse(handle, Status::ResourceExhausted, text);
            return;
        };
        self.run(cx, handle, method, payload, Some(room));
    }
}
