//! A session as futures have it.

use std::cell::{Cell, RefCell};
use std::future::{IntoFuture, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use petrel_proto::{SessionId, Status};

use super::calls::Call;
use super::hub::{Command, Hub};
use crate::control::Reason;
use crate::endpoint::{CallOptions, HEALTH_METHOD, Health, IntoMessage, SessionState};
use crate::error::Error;
use crate::msgbuf::MsgBuf;

/// What has become of a session, for all who have a handle of it.
#[derive(Debug)]
pub(crate) struct Watched {
    id: SessionId,
    /// Whether the state is that calls go out.
    is_open: Cell<bool>,
    state: RefCell<SessionState>,
    wakers: RefCell<Vec<Waker>>,
}

impl Watched {
    pub(super) fn new(id: SessionId, state: SessionState) -> Self {
        let is_open = Cell::new(state == SessionState::Open);
        Self { id, is_open, state: RefCell::new(state), wakers: RefCell::default() }
    }

    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    pub(super) fn set(&self, state: SessionState) {
        self.is_open.set(state == SessionState::Open);
        *self.state.borrow_mut() = state;
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A session, to make calls on as futures. Clones are the same session; it stays on its thread, and
/// dropping it does not close it.
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
///     // Both are on their way before either is waited for.
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
    watched: Rc<Watched>,
}

impl Session {
    pub(crate) fn new(hub: Rc<Hub>, watched: Rc<Watched>) -> Self {
        Self { hub, watched }
    }

    /// The session's name, for the endpoint's own methods.
    pub fn id(&self) -> SessionId {
        self.watched.id
    }

    /// Begins a call of `method`: awaited, or [started](SessionCall::started), its request leaves in the event loop's next
    /// turn. One that cannot be made ends with the reason, like any other call.
    #[inline(always)]
    pub fn call<M: IntoMessage>(&self, method: u16, request: M) -> SessionCall<'_, M> {
        SessionCall { session: self, method, request, options: CallOptions::default() }
    }

    /// Asks whether the server can serve: as a whole, or one of its methods.
    ///
    /// # Errors
    /// That of the call; INTERNAL if the answer is none.
    pub async fn health(&self, method: Option<u16>) -> Result<Health, Error> {
        let request = method.map(u16::to_le_bytes);
        let request = request.as_ref().map_or(&[][..], |bytes| bytes);
        let reply = self.call(HEALTH_METHOD, request).await?;
        Health::from_answer(&reply)
    }

    /// How the session is doing.
    pub fn state(&self) -> SessionState {
        self.watched.state.borrow().clone()
    }

    /// Whether calls go out.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.watched.is_open.get()
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

    /// Waits until no further calls are taken: until the server drains, or the session has ended.
    pub async fn left(&self) {
        let is_over =
            |state: &SessionState| !matches!(state, SessionState::Opening | SessionState::Open);
        self.wait_for(is_over).await;
    }

    /// Waits until the session has ended, and gives the reason.
    pub async fn ended(&self) -> Reason {
        let state = self.wait_for(|state| matches!(state, SessionState::Ended(_))).await;
        match state {
            SessionState::Ended(Some(reason)) => reason,
            _ => unknown_reason(),
        }
    }

    /// Closes the session. Calls that are pending on it end with CANCELLED.
    pub fn close(&self) {
        self.hub.command(Command::Close(self.id()));
    }

    /// Waits until the session's state is one that `is_wanted`.
    pub(crate) async fn wait_for(&self, is_wanted: impl Fn(&SessionState) -> bool) -> SessionState {
        poll_fn(|cx| {
            let state = self.watched.state.borrow();
            if is_wanted(&state) {
                return Poll::Ready(state.clone());
            }
            // Whoever waits with a time limit again and again is the same task each time.
            let mut wakers = self.watched.wakers.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// A call of a [`Session`] that is about to be made, by awaiting it or by [`started`](Self::started).
#[must_use = "a call is made when it is awaited or started"]
#[derive(Debug)]
pub struct SessionCall<'a, M> {
    session: &'a Session,
    method: u16,
    request: M,
    options: CallOptions,
}

impl<M: IntoMessage> SessionCall<'_, M> {
    /// The call ends with DEADLINE_EXCEEDED when it has taken this long, and its server knows.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.timeout(timeout);
        self
    }

    /// The same with a time on the endpoint's clock, that of [`Handle::now_ns`](crate::task::Handle::now_ns). With both, the
    /// earlier one holds.
    pub fn deadline_ns(mut self, at_ns: u64) -> Self {
        self.options = self.options.deadline_ns(at_ns);
        self
    }

    /// Bytes of the buffer for the response; 1 200 by default. A longer response gets a larger buffer when it comes; to know
    /// before costs less.
    pub fn response_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.response_bytes(bytes);
        self
    }

    /// All that is said about the call, in place of what was said before. A call that is to be hedged, or to wait for a
    /// server, fails: a session has one server.
    pub fn options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Makes the call now, and gives the future of its response.
    #[inline(always)]
    pub fn started(self) -> Call {
        let Self { session: Session { hub, watched }, method, request, options } = self;
        hub.start(watched.id, method, request, hub.begun(options))
    }
}

impl<M: IntoMessage> IntoFuture for SessionCall<'_, M> {
    type Output = Result<MsgBuf, Error>;
    type IntoFuture = Call;

    #[inline(always)]
    fn into_future(self) -> Call {
        self.started()
    }
}

fn unknown_reason() -> Reason {
    Reason::new(Status::Unknown, "the session ended some time ago")
}
