//! Requests read in place by a handler, in memory writable by the client.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use petrel_proto::{RequestHandle, SessionId, Status};
use petrel_transport::SharedBytes;

use super::context::Context;
use super::handler::{Handled, Handlers, Payload, Request, Responder};
use super::state::State;
use crate::msgbuf::MsgBuf;

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

    /// As [`Request::fail`].
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

type Handler = Rc<RefCell<dyn FnMut(State<'_>, &mut Context<'_>, InPlaceRequest<'_>) -> Handled>>;

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

impl Handlers {
    /// Sets the handler of a method: in place for requests of one frame over shared memory, and by `set` for all
    /// others.
    pub(super) fn set_in_place(
        &mut self,
        method: u16,
        handler: impl FnMut(State<'_>, &mut Context<'_>, InPlaceRequest<'_>) -> Handled + 'static,
    ) {
        let handler = Rc::new(RefCell::new(handler));
        let same = Rc::clone(&handler);
        self.set(
            method,
            Box::new(move |state: State<'_>, cx: &mut Context<'_>, request: Request<'_>| {
                let request = InPlaceRequest { request, shared: None };
                (same.borrow_mut())(state, cx, request)
            }),
        );
        let place = usize::from(method);
        if self.in_place.by_method.len() <= place {
            self.in_place.by_method.resize_with(place + 1, || None);
        }
        self.in_place.by_method[place] = Some(handler);
    }

    /// Runs the handler of a request with the message in shared memory, and sends the response, if the handler returns
    /// one.
    pub(super) fn run_in_place(
        &mut self,
        cx: &mut Context<'_>,
        handle: RequestHandle,
        method: u16,
        message: SharedBytes<'_>,
        spare: Option<MsgBuf>,
    ) {
        let Some(Some(handler)) = self.in_place.by_method.get(usize::from(method)) else {
            unreachable!("the method's handler reads in place");
        };
        let request = Request { handle: &handle, method, payload: Payload::Borrowed(&[]), spare };
        let request = InPlaceRequest { request, shared: Some(message) };
        if let Handled(Some(message)) =
            (handler.borrow_mut())(State::of(&mut *self.state), cx, request)
        {
            cx.respond_at_once(handle, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_wanted__by_the_methods_whose_latest_handler_reads_in_place() {
        let mut handlers = Handlers::new(Box::new(()));
        let wanted = |handlers: &Handlers| {
            (0..8).filter(|&method| handlers.in_place.is_wanted(Some(method))).collect::<Vec<_>>()
        };
        assert_eq!(wanted(&handlers), []);
        let answer = |_: State<'_>, _: &mut Context<'_>, _: InPlaceRequest<'_>| Handled(None);
        for method in [5, 2, 5] {
            handlers.set_in_place(method, answer);
        }
        assert_eq!(wanted(&handlers), [2, 5]);
        assert!(!handlers.in_place.is_wanted(None), "no request");
        let copied = |_: State<'_>, _: &mut Context<'_>, _: Request<'_>| Handled(None);
        handlers.set(5, Box::new(copied));
        handlers.set(3, Box::new(copied));
        handlers.in_place.forget(u16::MAX);
        assert_eq!(wanted(&handlers), [2]);
    }
}
