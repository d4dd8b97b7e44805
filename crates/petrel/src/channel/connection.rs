//! One server of a channel: the session to it, kept open.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use petrel_planted::planted;

use super::config::{ChannelConfig, Target};
use super::queue::WaitQueue;
use super::reconnect::Reconnect;
use super::{Channel, Counters, Inner};
use crate::endpoint::SessionState;
use crate::events;
use crate::local::{Session, Task};
use crate::overload::ConcurrencyLimit;

pub(super) struct Connection {
    pub(super) target: Target,
    session: RefCell<Option<Session>>,
    /// Why there is no session, once opening one has failed.
    failure: RefCell<Option<String>>,
    /// Attempts on the way.
    busy: Cell<u32>,
    /// Keeps the session open, until the connection is closed.
    keeper: RefCell<Option<Task<()>>>,
    /// Whether it gets no further calls, and is closed after the last that it has.
    is_retired: Cell<bool>,
    pub(super) limit: Option<RefCell<ConcurrencyLimit>>,
    /// Calls that wait for leave to be made here.
    pub(super) queue: WaitQueue,
    /// Tasks that wait for a session, or its end.
    wakers: RefCell<Vec<Waker>>,
}

impl Connection {
    pub(super) fn new(target: Target, config: &ChannelConfig) -> Self {
        let limit = config.concurrency.map(|limit| RefCell::new(ConcurrencyLimit::new(limit)));
        Self {
            target,
            session: RefCell::default(),
            failure: RefCell::default(),
            busy: Cell::new(0),
            keeper: RefCell::default(),
            is_retired: Cell::new(false),
            limit,
            queue: WaitQueue::default(),
            wakers: RefCell::default(),
        }
    }

    /// Whether another attempt may be made now.
    pub(super) fn may_start(&self, now_ns: u64) -> bool {
        self.limit.as_ref().is_none_or(|limit| limit.borrow().may_start(now_ns))
    }

    /// The session, if calls may be made on it.
    pub(super) fn session(&self) -> Option<Session> {
        let session = self.session.borrow();
        session.as_ref().filter(|session| session.is_open()).cloned()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.session.borrow().as_ref().is_some_and(Session::is_open)
    }

    /// Why there is no session, if the last attempt to open one has failed.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    pub(super) fn set_keeper(&self, keeper: Task<()>) {
        *self.keeper.borrow_mut() = Some(keeper);
    }

    /// An attempt begins.
    pub(super) fn begin(&self) {
        self.busy.set(self.busy.get() + 1);
    }

    /// An attempt has ended.
    pub(super) fn end(&self) {
        let busy = self.busy.get().checked_sub(1).expect("an attempt that ends has begun");
        self.busy.set(busy);
        if busy == 0 && self.is_retired.get() {
            self.close();
        }
        self.queue.call_first();
    }

    /// There are to be no further calls: closes the session when those on the way have ended.
    pub(super) fn retire(&self) {
        self.is_retired.set(true);
        if self.busy.get() == 0 {
            self.close();
        }
        self.changed();
    }

    pub(super) fn close(&self) {
        if let Some(keeper) = self.keeper.borrow_mut().take() {
            keeper.abort();
        }
        if let Some(session) = self.session.borrow_mut().take() {
            session.close();
        }
    }

    /// Something has changed that somebody may wait for.
    pub(super) fn changed(&self) {
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes the task at the next change.
    pub(super) fn await_change(&self, cx: &mut TaskContext<'_>) {
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
    }

    /// The session takes no further calls. Whether another can be opened is not known yet: calls wait for that.
    fn leave(&self) {
        *self.session.borrow_mut() = None;
        self.changed();
    }

    fn set(&self, session: Result<Session, String>) {
        match session {
            Ok(session) => {
                *self.session.borrow_mut() = Some(session);
                *self.failure.borrow_mut() = None;
            }
            Err(failure) => {
                *self.session.borrow_mut() = None;
                *self.failure.borrow_mut() = Some(failure);
            }
        }
        self.changed();
    }
}

/// Keeps a session to a server open as long as there is the channel.
pub(super) async fn keep(channel: Weak<Inner>, connection: Rc<Connection>) {
    let Some((handle, config)) =
        channel.upgrade().map(|inner| (inner.handle.clone(), inner.config.connect_backoff))
    else {
        return;
    };
    let mut reconnect = Reconnect::new(config);
    loop {
        let Target { address, endpoint } = connection.target;
        let opened = handle.connect_to(address, endpoint).await;
        if !note_connect(&channel, opened.is_ok()) {
            return;
        }
        let why = match opened {
            Ok(session) => {
                connection.set(Ok(session.clone()));
                reconnect.opened(handle.now_ns());
                session.left().await;
                reconnect.left(handle.now_ns());
                if let Some(inner) = channel.upgrade() {
                    inner.counters.sessions_left.increment();
                }
                match planted("channel_gap_is_a_failure") {
                    true => connection.set(Err(why_left(&session))),
                    false => connection.leave(),
                }
                why_left(&session)
            }
            Err(error) => {
                connection.set(Err(error.to_string()));
                error.to_string()
            }
        };
        if let Some(inner) = channel.upgrade() {
            inner.look_up();
        }
        let pause_ns = reconnect.pause_ns(handle.random());
        events::reconnect(address, &why, pause_ns);
        handle.sleep(Duration::from_nanos(pause_ns)).await;
    }
}

/// Counts an attempt to connect; false if there is no channel any more. Nothing of the channel is held while
/// its keeper waits: two keepers whose waits overlap would keep it, and each other, for ever.
fn note_connect(channel: &Weak<Inner>, has_succeeded: bool) -> bool {
    let Some(inner) = channel.upgrade() else { return false };
    let Counters { sessions_opened, connects_failed, .. } = &*inner.counters;
    if has_succeeded { sessions_opened } else { connects_failed }.increment();
    true
}

fn why_left(session: &Session) -> String {
    match session.state() {
        SessionState::Ended(Some(reason)) => reason.message,
        SessionState::Draining => "the server is draining".to_owned(),
        _ => "the session has ended".to_owned(),
    }
}

impl Inner {
    /// Waits until a connection is as wanted.
    pub(super) async fn wait_for_any(&self, is_wanted: impl Fn(&Connection) -> bool) {
        poll_fn(|cx| {
            let connections = self.connections.borrow();
            if connections.iter().any(|connection| is_wanted(connection)) {
                return Poll::Ready(());
            }
            connections.iter().for_each(|connection| connection.await_change(cx));
            Poll::Pending
        })
        .await;
    }

    /// The ready connection with the fewest attempts on the way among those that a call has not tried; if
    /// it has tried them all, that which it tried longest ago.
    pub(super) fn choose(&self, tried: &[Target]) -> Option<(Rc<Connection>, Session)> {
        let connections = self.connections.borrow();
        let count = connections.len();
        let first = self.turn.get() % count;
        self.turn.set((first + 1) % count);
        let in_turn = (0..count).map(|place| &connections[(first + place) % count]);
        let ready = in_turn.filter(|connection| connection.is_ready());
        let chosen = ready.min_by_key(|connection| {
            let is_tried = |target: &Target| {
                *target == connection.target && !planted("channel_retries_where_it_failed")
            };
            let last_tried = tried.iter().rposition(is_tried);
            (last_tried, connection.busy.get())
        })?;
        Some((Rc::clone(chosen), chosen.session()?))
    }
}

impl Channel {
    /// Why no server can be called, if all have failed.
    pub(super) fn failures(&self) -> Option<String> {
        let connections = self.inner.connections.borrow();
        let each = connections.iter().map(|connection| {
            let failure = connection.failure().filter(|_| !connection.is_ready())?;
            Some(format!("{}: {failure}", connection.target.address))
        });
        each.collect::<Option<Vec<_>>>().map(|failures| failures.join("; "))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = self.session.borrow();
        let state = session.as_ref().map_or(SessionState::Opening, Session::state);
        write!(f, "{}: {state:?}, {} calls", self.target.address, self.busy.get())
    }
}
