//! Requests read in place by a handler, in memory writable by the client.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use petrel_proto::{RequestHandle, SessionId, Status};
use petrel_transport::SharedBytes;

use super::context::Context;
use super::peer::Peer;
use super::request::{Handled, Payload, Request, Responder};
use crate::msgbuf::MsgBuf;
use crate::time::Time;
use crate::values::State;

/// A request whose handler reads the message in place: see [`Endpoint::on_in_place`](crate::Endpoint::on_in_place).
///
/// Over shared memory a message of one frame lies in the ring, and the client may change it at any time. Hence there is
/// no `&[u8]` of the message: the handler copies the needed bytes out of [`InPlaceRequest::data`], and uses the copy.
#[derive(Debug)]
pub struct InPlaceRequest<'a> {
    /// Without the message if `shared` has it.
    request: Request<'a>,
    shared: Option<SharedBytes<'a>>,
}

impl<'a> InPlaceRequest<'a> {
    /// Creates a request with its message in private memory.
    fn private(request: Request<'a>) -> Self {
        Self { request, shared: None }
    }

    /// Creates a request with its message in memory writable by the client.
    pub(super) fn shared(
        handle: &'a RequestHandle,
        method: u16,
        message: SharedBytes<'a>,
        spare: Option<MsgBuf>,
    ) -> Self {
        let request = Request::new(handle, method, Payload::Borrowed(&[]), spare);
        Self { request, shared: Some(message) }
    }
}

impl InPlaceRequest<'_> {
    /// Returns the message.
    #[inline]
    pub fn data(&self) -> SharedBytes<'_> {
        self.shared.unwrap_or_else(|| SharedBytes::from(self.request.data()))
    }

    /// Returns the called method.
    pub fn method(&self) -> u16 {
        self.request.method()
    }

    /// Returns the session of the request.
    pub fn session(&self) -> SessionId {
        self.request.session()
    }

    /// As [`Request::peer`].
    pub fn peer<'c, S>(&self, cx: &'c Context<'_, S>) -> Option<&'c Peer> {
        self.request.peer(cx)
    }

    /// As [`Request::deadline`].
    pub fn deadline<S: 'static>(&self, cx: &Context<'_, S>) -> Option<Time> {
        self.request.deadline(cx)
    }

    /// As [`Request::reply`].
    pub fn reply<S: 'static>(self, cx: &mut Context<'_, S>, message: &[u8]) -> Handled {
        self.request.reply(cx, message)
    }

    /// As [`Request::reply_with`].
    pub fn reply_with<S: 'static>(
        self,
        cx: &mut Context<'_, S>,
        capacity: usize,
        fill: impl FnOnce(SharedBytes<'_>, &mut [u8]) -> usize,
    ) -> Handled {
        let Self { request, shared } = self;
        request.reply_with(cx, capacity, |data, out| {
            fill(shared.unwrap_or_else(|| SharedBytes::from(data)), out)
        })
    }

    /// As [`Request::reply_buffer`].
    pub fn reply_buffer<S: 'static>(self, cx: &mut Context<'_, S>, message: MsgBuf) -> Handled {
        self.request.reply_buffer(cx, message)
    }

    /// Answers with an error, as [`Request::fail`] does.
    ///
    /// # Panics
    /// When the status is OK.
    pub fn fail<S: 'static>(
        self,
        cx: &mut Context<'_, S>,
        status: Status,
        message: &str,
    ) -> Handled {
        self.request.fail(cx, status, message)
    }

    /// As [`Request::refuse`].
    pub fn refuse<S: 'static>(
        self,
        cx: &mut Context<'_, S>,
        status: Status,
        message: &'static str,
    ) -> Handled {
        self.request.refuse(cx, status, message)
    }

    /// As [`Request::defer`]. Copy the message before.
    pub fn defer<S: 'static>(self, cx: &mut Context<'_, S>) -> (Responder, Handled) {
        self.request.defer(cx)
    }
}

pub(super) type Handler =
    Rc<RefCell<dyn FnMut(State<'_>, &mut Context<'_>, InPlaceRequest<'_>) -> Handled>>;

/// The handlers that read in place, by method.
#[derive(Default)]
pub(super) struct InPlace {
    by_method: Vec<Option<Handler>>,
}

impl InPlace {
    #[inline]
    pub(super) fn is_wanted(&self, method: Option<u16>) -> bool {
        method
            .is_some_and(|method| matches!(self.by_method.get(usize::from(method)), Some(Some(_))))
    }

    /// Returns the handler of a method.
    pub(super) fn get(&self, method: u16) -> Option<&Handler> {
        self.by_method.get(usize::from(method))?.as_ref()
    }

    /// Sets the handler of a method. Returns the same handler for requests in private memory.
    pub(super) fn set(
        &mut self,
        method: u16,
        handler: impl FnMut(State<'_>, &mut Context<'_>, InPlaceRequest<'_>) -> Handled + 'static,
    ) -> impl FnMut(State<'_>, &mut Context<'_>, Request<'_>) -> Handled + 'static {
        let handler = Rc::new(RefCell::new(handler));
        let same = Rc::clone(&handler);
        let index = usize::from(method);
        if self.by_method.len() <= index {
            self.by_method.resize_with(index + 1, || None);
        }
        self.by_method[index] = Some(handler);
        move |state: State<'_>, cx: &mut Context<'_>, request: Request<'_>| {
            (same.borrow_mut())(state, cx, InPlaceRequest::private(request))
        }
    }

    /// Removes the handler of a method that has got another.
    pub(super) fn forget(&mut self, method: u16) {
        if let Some(handler) = self.by_method.get_mut(usize::from(method)) {
            *handler = None;
        }
    }
}

impl fmt::Debug for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InPlace({} methods)", self.by_method.iter().flatten().count())
    }
}
