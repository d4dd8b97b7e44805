//! The handle of a session for futures.

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

/// The state of a session, shared by all its handles.
#[derive(Debug)]
pub(crate) struct Watched {
    id: SessionId,
    /// Whether the session is open and sends calls.
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

/// A session, to make calls on as futures. Clones are the same session; a session stays on its thread, and dropping it
/// does not close it.
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
    watched: Rc<Watched>,
}

impl Session {
    pub(crate) fn new(hub: Rc<Hub>, watched: Rc<Watched>) -> Self {
        Self { hub, watched }
    }

    /// Returns the session's id, for the endpoint's own methods.
    pub fn id(&self) -> SessionId {
        self.watched.id
    }

    /// Begins a call of `method`: awaited, or [started](SessionCall::started), its request leaves in the event loop's
    /// next turn. An impossible call ends with the reason, like any other call.
    #[inline(always)]
    pub fn call<M: IntoMessage>(&self, method: u16, request: M) -> SessionCall<'_, M> {
        SessionCall { session: self, method, request, options: CallOptions::default() }
    }

    /// Asks the server whether it can serve: in general, or one of its methods.
    ///
    /// # Errors
    /// The call's error; INTERNAL if the response is not a health status.
    pub async fn health(&self, method: Option<u16>) -> Result<Health, Error> {
        let request = method.map(u16::to_le_bytes);
        let request = request.as_ref().map_or(&[][..], |bytes| bytes);
        let reply = self.call(HEALTH_METHOD, request).await?;
        Health::from_answer(&reply)
    }

    /// Returns the state of the session.
    pub fn state(&self) -> SessionState {
        self.watched.state.borrow().clone()
    }

    /// Returns true if the session is open and sends calls.
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

    /// Waits until the session accepts no further calls: until the server drains, or the session has ended.
    pub async fn left(&self) {
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

    /// Closes the session. Its pending calls end with CANCELLED.
    pub fn close(&self) {
        self.hub.command(Command::Close(self.id()));
    }

    /// Waits until `is_wanted` is true for the session's state.
    pub(crate) async fn wait_for(&self, is_wanted: impl Fn(&SessionState) -> bool) -> SessionState {
        poll_fn(|cx| {
            let state = self.watched.state.borrow();
            if is_wanted(&state) {
                return Poll::Ready(state.clone());
            }
            // A caller that waits with a time limit again and again is always the same task.
            let mut wakers = self.watched.wakers.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// A call of a [`Session`] to be made, by awaiting it or by [`started`](Self::started).
#[must_use = "a call is made when it is awaited or started"]
#[derive(Debug)]
pub struct SessionCall<'a, M> {
    session: &'a Session,
    method: u16,
    request: M,
    options: CallOptions,
}

impl<M: IntoMessage> SessionCall<'_, M> {
    /// Ends the call with DEADLINE_EXCEEDED after `timeout`; the server learns the deadline too.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.timeout(timeout);
        self
    }

    /// Sets the end as a time on the endpoint's clock ([`Handle::now_ns`](crate::task::Handle::now_ns)). With both, the
    /// earlier one holds.
    pub fn deadline_ns(mut self, at_ns: u64) -> Self {
        self.options = self.options.deadline_ns(at_ns);
        self
    }

    /// Sets the size of the buffer for the response; 1 200 bytes by default. A longer response gets a larger buffer
    /// when it arrives; the right size from the start costs less.
    pub fn response_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.response_bytes(bytes);
        self
    }

    /// Replaces all options of the call. Hedging, or waiting for a server, makes the call fail: a session has one
    /// server.
    pub fn options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Makes the call now, and returns the future of its response.
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
