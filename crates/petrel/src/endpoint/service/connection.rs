//! A server of a service: the session, kept open, and the outstanding calls.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::{CallFailure, Execution, Status};

use super::attempts::{connection_failed, connection_left, connection_opened};
use super::queue::CallQueue;
use super::reconnect::Reconnect;
use super::servers::Load;
use crate::client::balance::{hash_of_server, rank};
use crate::client::{ClientConfig, Counters, Target};
use crate::endpoint::SessionState;
use crate::endpoint::context::Context;
use crate::error::Error;
use crate::events;
use crate::local::{Handle, Key, Session, Task, TimerId};
use crate::overload::{BackoffConfig, ConcurrencyLimit, Permit};
use crate::sync::Arc;

/// A server of one service.
pub(super) struct Connection {
    pub(super) service: Key,
    pub(super) target: Target,
    /// The hash of its name.
    hash: u64,
    /// The service's counters.
    pub(super) counters: Arc<Counters>,
    session: Option<Session>,
    /// Why there is no session, after a failed attempt to open one.
    failure: Option<String>,
    load: Rc<Load>,
    /// Whether it gets no further calls, and is closed after the last.
    is_retired: bool,
    limit: Option<ConcurrencyLimit>,
    /// Calls that wait for a permit here.
    pub(super) queue: CallQueue,
    /// The timer of the first of them.
    pub(super) timer: Option<TimerId>,
    /// Keeps the session open, until the connection is closed.
    keeper: Option<Task<()>>,
}

/// The right to have an attempt outstanding at a server; [`Connection::end`] returns it.
#[derive(Debug)]
pub(super) struct Leave(Option<Permit>);

/// Whether an attempt may be made now.
pub(super) enum MayBegin {
    Now(Leave),
    /// After another attempt has ended, or at this time.
    Later(Option<u64>),
}

impl Leave {
    /// Takes the permit out, if the server has a limit.
    #[inline]
    pub(super) fn take(&mut self) -> Self {
        Self(self.0.take())
    }
}

impl Connection {
    pub(super) fn new(
        service: Key,
        target: Target,
        config: &ClientConfig,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            service,
            target,
            hash: hash_of_server(&target),
            counters,
            session: None,
            failure: None,
            load: Load::new(target.weight),
            is_retired: false,
            limit: config.concurrency.map(ConcurrencyLimit::new),
            queue: CallQueue::default(),
            timer: None,
            keeper: None,
        }
    }

    /// Sets the task that keeps the session open.
    pub(super) fn keep(&mut self, keeper: Task<()>) {
        assert!(self.keeper.is_none(), "a server has one keeper");
        self.keeper = Some(keeper);
    }

    /// Returns the session, if calls may be made on it.
    #[inline]
    pub(super) fn session(&self) -> Option<&Session> {
        self.session.as_ref().filter(|session| session.is_open())
    }

    /// Returns true if there is a session, even without acceptance of further calls.
    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Returns why there is no session, if the last attempt to open one has failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref().filter(|_| self.session().is_none())
    }

    /// Returns the rank of the server for a key.
    pub(super) fn rank(&self, key: u64) -> f64 {
        rank(key, self.hash, self.target.weight)
    }

    pub(super) fn load(&self) -> &Rc<Load> {
        &self.load
    }

    /// Updates the server's weight.
    pub(super) fn set_target(&mut self, target: Target) {
        assert!(self.target.is_server(&target), "a connection stays with its server");
        self.load.set_weight(target.weight);
        self.target = target;
    }

    /// Takes a permit for an attempt, if the limit allows another one now.
    #[inline]
    pub(super) fn begin(&mut self, now_ns: u64) -> MayBegin {
        let permit = match &mut self.limit {
            None => None,
            Some(limit) => match limit.try_start(now_ns) {
                Some(permit) => Some(permit),
                None => return MayBegin::Later(limit.resumes_ns()),
            },
        };
        self.load.add();
        MayBegin::Now(Leave(permit))
    }

    /// Ends an attempt that has succeeded.
    #[inline]
    pub(super) fn end_well(&mut self, leave: Leave, now_ns: u64) {
        self.load.subtract();
        if let (Some(permit), Some(limit)) = (leave.0, &mut self.limit) {
            limit.succeeded(permit, now_ns);
        }
    }

    /// Returns the permit of an ended attempt, with the outcome if it concerns the server. Returns true if the
    /// connection is then over.
    pub(super) fn end(
        &mut self,
        leave: Leave,
        outcome: Option<&Result<(), Error>>,
        now_ns: u64,
    ) -> bool {
        self.load.subtract();
        if let (Some(permit), Some(limit)) = (leave.0, &mut self.limit) {
            match outcome {
                Some(Ok(())) => limit.succeeded(permit, now_ns),
                Some(Err(failure)) if is_too_much(failure) => limit.refused(permit, now_ns),
                Some(Err(failure)) if is_timeout(failure) => limit.timed_out(permit, now_ns),
                _ => limit.ended(permit, now_ns),
            }
        }
        self.is_over()
    }

    /// Stops further calls. Returns true if the connection is then over: it has no calls.
    pub(super) fn retire(&mut self) -> bool {
        self.is_retired = true;
        self.is_over()
    }

    #[inline]
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired
    }

    fn is_over(&self) -> bool {
        self.is_retired && self.load.busy() == 0
    }

    /// Records an open session.
    fn open(&mut self, session: Session) {
        self.session = Some(session);
        self.load.set_ready(true);
        self.failure = None;
    }

    /// Records that the session accepts no further calls. Whether another can be opened is unknown: calls wait.
    fn leave(&mut self) {
        self.load.set_ready(false);
        self.session = None;
    }

    /// Records that no session can be opened.
    fn fail(&mut self, why: String) {
        self.load.set_ready(false);
        self.session = None;
        self.failure = Some(why);
    }

    /// Ends the connection: closes the session, and opens no other.
    pub(super) fn close(mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.abort();
        }
        if let Some(session) = self.session.take() {
            session.close();
        }
    }
}

/// Keeps a session to a server open, until the connection is closed.
pub(super) async fn keep(handle: Handle, key: Key, target: Target, backoff: BackoffConfig) {
    let mut reconnect = Reconnect::new(backoff);
    loop {
        let why = match handle.connect_to(target.address, target.endpoint).await {
            Ok(session) => {
                reconnect.opened(handle.now_ns());
                let opened = session.clone();
                change(&handle, key, |connection| connection.open(opened), connection_opened);
                session.left().await;
                reconnect.left(handle.now_ns());
                let why = why_left(&session);
                let leave = |connection: &mut Connection| match planted("service_gap_is_a_failure")
                {
                    true => connection.fail(why.clone()),
                    false => connection.leave(),
                };
                change(&handle, key, leave, connection_left);
                why
            }
            Err(error) => {
                let why = error.to_string();
                change(&handle, key, |connection| connection.fail(why.clone()), connection_failed);
                why
            }
        };
        let pause_ns = reconnect.pause_ns(handle.random());
        events::reconnect(target.address, &why, pause_ns);
        handle.sleep(Duration::from_nanos(pause_ns)).await;
    }
}

/// Changes a connection, and lets the calls of its service go on.
fn change(
    handle: &Handle,
    key: Key,
    change: impl FnOnce(&mut Connection),
    go_on: fn(&mut Context<'_>, Key),
) {
    handle.with_local(|local| {
        let connection = local.services.connections.get_mut(key);
        change(connection.expect("a keeper ends with its connection"));
        go_on(&mut Context::new(local), key);
    });
}

fn why_left(session: &Session) -> String {
    match session.state() {
        SessionState::Ended(Some(reason)) => reason.message,
        SessionState::Draining => "the server is draining".to_owned(),
        _ => "the session has ended".to_owned(),
    }
}

/// Returns true if the server may have begun a call and did not answer in time.
fn is_timeout(failure: &CallFailure) -> bool {
    failure.status == Status::DeadlineExceeded && failure.execution == Execution::MayHaveExecuted
}

/// Returns true if the server refused because of overload.
fn is_too_much(failure: &CallFailure) -> bool {
    if planted("service_every_failure_is_overload") {
        return true;
    }
    failure.execution == Execution::Refused
        && matches!(failure.status, Status::ResourceExhausted | Status::DeadlineExceeded)
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.session.as_ref().map_or(SessionState::Opening, Session::state);
        write!(f, "{}: {state:?}, {} calls", self.target.address, self.load.busy())
    }
}
