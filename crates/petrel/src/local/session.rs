//! The handle of a session for futures.

use std::future::poll_fn;
use std::rc::Rc;

use petrel_proto::{SessionId, Status};

use super::connect::open;
use super::hub::Hub;
use super::orders::{Command, Destination};
use super::watch::SessionWatch;
use crate::control::Reason;
use crate::error::Error;
use crate::values::SessionState;

/// A session, to make calls on as futures. Clones name one session. A handle stays on its thread, and dropping the
/// handle leaves the session open.
///
/// ```
/// # use petrel::endpoint::EndpointConfig;
/// # use petrel::Nexus;
/// # let server = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
/// # let address = server.local_addr().expect("it listens");
/// # std::thread::spawn(move || {
/// #     let mut endpoint = server.endpoint(EndpointConfig::default()).expect("an endpoint");
/// #     endpoint.on(1, |_, cx, request| { let data = request.data().to_vec(); request.reply(cx, &data) });
/// #     endpoint.run_until(|_, _| false);
/// # });
/// let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
/// let handle = endpoint.handle();
/// let answers = endpoint.block_on(async move {
///     let session = handle.connect(address).await?;
///     // Both are outstanding before either is awaited.
///     let first = session.call(1, "one").started();
///     let second = session.call(1, "two").started();
///     Ok::<_, Box<dyn std::error::Error>>((first.await?, second.await?))
/// })?;
/// assert_eq!((&answers.0[..], &answers.1[..]), (&b"one"[..], &b"two"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    hub: Rc<Hub>,
    watch: Rc<SessionWatch>,
}

impl Session {
    pub(crate) fn new(hub: Rc<Hub>, watch: Rc<SessionWatch>) -> Self {
        Self { hub, watch }
    }

    /// Returns the session's id, for the endpoint's own methods.
    #[inline]
    pub fn id(&self) -> SessionId {
        self.watch.id()
    }

    #[inline]
    pub(crate) fn hub(&self) -> &Rc<Hub> {
        &self.hub
    }

    /// Returns the state of the session.
    pub fn state(&self) -> SessionState {
        self.watch.state()
    }

    /// Returns true if the session is open and sends calls.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.watch.is_open()
    }

    /// Waits until the session is open.
    ///
    /// # Errors
    /// Why it ended, if it did.
    pub async fn opened(&self) -> Result<(), Reason> {
        let state = self.wait_for(|state| !matches!(state, SessionState::Opening)).await;
        match state {
            SessionState::Ended(reason) => Err(reason.unwrap_or_else(unknown_reason)),
            _ => Ok(()),
        }
    }

    /// Waits until the session accepts no further calls: until the server drains, or the session has ended.
    pub async fn unavailable(&self) {
        let is_over =
            |state: &SessionState| !matches!(state, SessionState::Opening | SessionState::Open);
        self.wait_for(is_over).await;
    }

    /// Waits until the session has ended, and returns the reason.
    pub async fn ended(&self) -> Reason {
        let state = self.wait_for(|state| matches!(state, SessionState::Ended(_))).await;
        match state {
            SessionState::Ended(Some(reason)) => reason,
            _ => unknown_reason(),
        }
    }

    /// Returns the medium of the session's frames: `udp`, `shm` or `stream`, and nothing before it is open.
    pub fn medium(&self) -> &'static str {
        self.watch.medium().name
    }

    /// Returns true if the session uses a stream because datagrams did not get through.
    pub(crate) fn is_fallback(&self) -> bool {
        self.watch.medium().is_fallback
    }

    /// Makes no further calls on the session, which ends with its last pending call.
    pub(crate) fn leave(&self) {
        self.hub.command(Command::Leave(self.id()));
    }

    /// Opens a session back to the client of a session that this endpoint serves: on the same link, with this endpoint as the client. Waits
    /// until it is open. Each call opens another session, which ends with the link at the latest.
    ///
    /// # Errors
    /// As [`Endpoint::connect_back`](crate::Endpoint::connect_back), or why the client has refused.
    pub async fn reverse(&self) -> Result<Session, Error> {
        open(&self.hub, Destination::BackOf(self.id())).await
    }

    /// Closes the session. Its pending calls end with CANCELLED.
    pub fn close(&self) {
        self.hub.command(Command::Close(self.id()));
    }

    /// Waits until `is_wanted` is true for the session's state.
    pub(crate) async fn wait_for(&self, is_wanted: impl Fn(&SessionState) -> bool) -> SessionState {
        poll_fn(|cx| self.watch.poll_for(cx, &is_wanted)).await
    }
}

fn unknown_reason() -> Reason {
    Reason::new(Status::Unknown, "the session ended some time ago")
}
