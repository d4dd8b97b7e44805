//! Sessions opened by futures.

use std::future::poll_fn;
use std::rc::Rc;

use petrel_proto::SessionId;

use super::hub::Hub;
use super::orders::{Command, ConnectAnswer};
use super::session::Session;
use crate::error::Error;

/// A session being opened. Dropping this before the session is open closes the session, for lack of another handle.
pub(super) struct Connecting {
    hub: Rc<Hub>,
    answer: Rc<ConnectAnswer>,
    /// The session once the event loop has begun to open it.
    session: Option<SessionId>,
}

impl Connecting {
    pub(super) fn new(hub: &Rc<Hub>, answer: &Rc<ConnectAnswer>) -> Self {
        Self { hub: Rc::clone(hub), answer: Rc::clone(answer), session: None }
    }

    /// Waits for the session, which is not open yet.
    pub(super) async fn begun(&mut self) -> Result<Session, Error> {
        let watch = poll_fn(|cx| self.answer.poll(cx)).await?;
        let session = Session::new(Rc::clone(&self.hub), watch);
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
        let unread = self.answer.cancel();
        if let Some(session) = self.session.or(unread) {
            self.hub.command(Command::Close(session));
        }
    }
}
