//! Sessions opened by futures.

use std::future::poll_fn;
use std::rc::Rc;

use petrel_proto::SessionId;

use super::hub::Hub;
use super::orders::{Command, ConnectAnswer, Destination};
use super::session::Session;
use crate::error::Error;

/// Opens a session, and waits until it is open. Dropping the future earlier closes the session.
pub(super) async fn open(hub: &Rc<Hub>, destination: Destination) -> Result<Session, Error> {
    let answer = Rc::new(ConnectAnswer::default());
    hub.command(Command::Connect(destination, Rc::clone(&answer)));
    let mut connecting = Connecting::new(hub, &answer);
    let session = connecting.begun().await?;
    let opened = session.opened().await;
    connecting.finish();
    match opened {
        Ok(()) => Ok(session),
        Err(reason) => Err(destination.failed(&reason)),
    }
}

/// A session being opened. Dropping this before the session is open closes the session, for lack of another handle.
struct Connecting {
    hub: Rc<Hub>,
    answer: Rc<ConnectAnswer>,
    /// The session once the event loop has begun to open it.
    session: Option<SessionId>,
}

impl Connecting {
    fn new(hub: &Rc<Hub>, answer: &Rc<ConnectAnswer>) -> Self {
        Self { hub: Rc::clone(hub), answer: Rc::clone(answer), session: None }
    }

    /// Waits for the session, which is not open yet.
    async fn begun(&mut self) -> Result<Session, Error> {
        let watch = poll_fn(|cx| self.answer.poll(cx)).await?;
        let session = Session::new(Rc::clone(&self.hub), watch);
        self.session = Some(session.id());
        Ok(session)
    }

    /// Keeps the session open: it has an owner now, or has ended.
    fn finish(mut self) {
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
