//! Sessions opened by futures.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use petrel_proto::SessionId;

use super::hub::{Command, Hub};
use super::session::{Session, Watched};
use crate::error::Error;

/// Where the event loop puts the session that a future requested.
#[derive(Debug, Default)]
pub(crate) struct ConnectAnswer {
    session: RefCell<Option<Result<Rc<Watched>, Error>>>,
    waker: RefCell<Option<Waker>>,
    is_given_up: Cell<bool>,
}

impl ConnectAnswer {
    pub(crate) fn put(&self, session: Result<Rc<Watched>, Error>) {
        *self.session.borrow_mut() = Some(session);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Returns true if the future was dropped: then there is no session to open.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.get()
    }
}

/// A session being opened. Dropping this before the session is open closes the session, for lack of another handle.
pub(super) struct Connecting {
    hub: Rc<Hub>,
    answer: Rc<ConnectAnswer>,
    /// Set once the event loop has begun to open it.
    session: Option<SessionId>,
}

impl Connecting {
    pub(super) fn new(hub: &Rc<Hub>, answer: &Rc<ConnectAnswer>) -> Self {
        Self { hub: Rc::clone(hub), answer: Rc::clone(answer), session: None }
    }

    /// Waits for the session, which is not open yet.
    pub(super) async fn begun(&mut self) -> Result<Session, Error> {
        let answer = &self.answer;
        let watched = poll_fn(|cx| match answer.session.borrow_mut().take() {
            Some(session) => Poll::Ready(session),
            None => {
                *answer.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await?;
        let session = Session::new(Rc::clone(&self.hub), watched);
        self.session = Some(session.id());
        Ok(session)
    }

    /// Keeps the session open: it has an owner now, or has ended.
    pub(super) fn finish(mut self) {
        self.session = None;
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.answer.is_given_up.set(true);
        let unread = self.answer.session.borrow_mut().take();
        let unread = unread.and_then(Result::ok).map(|watched| watched.id());
        if let Some(session) = self.session.or(unread) {
            self.hub.command(Command::Close(session));
        }
    }
}
