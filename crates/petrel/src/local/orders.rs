//! The orders of futures to the event loop, apart from calls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use petrel_proto::SessionId;

use super::watch::SessionWatch;
use crate::control::{EndpointId, LinkId, Reason};
use crate::error::Error;
use crate::values::CallbacksKey;

/// An order of a future to the event loop.
#[derive(Debug)]
pub(crate) enum Command {
    Connect(Destination, Rc<ConnectAnswer>),
    Close(SessionId),
    /// Close a session after its pending calls.
    Leave(SessionId),
    /// Keep sessions of clients' callbacks from the endpoint's own handlers.
    KeepApart,
    /// Close the links that were opened for callbacks.
    EndCallbacks(CallbacksKey),
}

/// The server of a session to open.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination {
    /// An endpoint of another process, which may call these callbacks.
    To(SocketAddr, EndpointId, Option<CallbacksKey>),
    /// The peer of a session, on its link.
    BackOf(SessionId),
    /// The peer of a link.
    BackOn(LinkId),
}

impl Destination {
    /// Returns the error of a session that could not be opened for this reason.
    pub(super) fn failed(&self, reason: &Reason) -> Error {
        match self {
            Self::To(remote, ..) => Error::cannot_connect(*remote, reason),
            Self::BackOf(_) | Self::BackOn(_) => {
                Error::not_sent(reason.status, reason.message.clone())
            }
        }
    }
}

/// The orders, oldest first.
#[derive(Debug, Default)]
pub(super) struct Orders {
    queue: RefCell<VecDeque<Command>>,
}

impl Orders {
    pub(super) fn push(&self, command: Command) {
        self.queue.borrow_mut().push_back(command);
    }

    pub(super) fn pop(&self) -> Option<Command> {
        self.queue.borrow_mut().pop_front()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.borrow().len()
    }
}

/// Where the event loop puts the session that a future requested.
#[derive(Debug, Default)]
pub(crate) struct ConnectAnswer {
    session: RefCell<Option<Result<Rc<SessionWatch>, Error>>>,
    waker: RefCell<Option<Waker>>,
    is_cancelled: Cell<bool>,
}

impl ConnectAnswer {
    pub(crate) fn put(&self, session: Result<Rc<SessionWatch>, Error>) {
        let before = self.session.borrow_mut().replace(session);
        assert!(before.is_none(), "an order to connect is answered once");
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Returns true if the future was dropped: then there is no session to open.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.get()
    }

    /// Is ready with the session, which is not open yet.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<Rc<SessionWatch>, Error>> {
        match self.session.borrow_mut().take() {
            Some(session) => Poll::Ready(session),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Withdraws the order. Returns the session that the future has not seen.
    pub(super) fn cancel(&self) -> Option<SessionId> {
        assert!(!self.is_cancelled(), "an order to connect is cancelled once");
        self.is_cancelled.set(true);
        let unread = self.session.borrow_mut().take();
        unread.and_then(Result::ok).map(|watch| watch.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    panics! {
        put__again: "answered once" => {
            let answer = ConnectAnswer::default();
            answer.put(Err(Error::elapsed()));
            answer.put(Err(Error::elapsed()));
        };
        cancel__again: "an order to connect is cancelled once" => {
            let answer = ConnectAnswer::default();
            (0..2).for_each(|_| assert_eq!(answer.cancel(), None));
        };
    }
}
