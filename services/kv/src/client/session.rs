//! The client session: who opens it, and who writes next.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use super::members::Target;
use super::pursuit::Pursuit;
use super::window::Window;
use super::{Inner, KvError};
use crate::api::{WriteReply, methods};
use crate::command::Command;

/// The client session, and those that wait to write in it.
#[derive(Debug, Default)]
pub(super) struct ClientSession {
    state: State,
    /// By the order in which they came; those that were woken have no waker, and still have their place.
    waiting: BTreeMap<u64, Option<Waker>>,
    places: u64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Closed,
    /// Somebody opens it.
    Opening,
    Open(u64, Window),
}

/// A write that has its number in the session. It is pending until this is dropped.
#[derive(Debug)]
pub(super) struct Numbered<'a> {
    inner: &'a Inner,
    pub(super) session: u64,
    pub(super) sequence: u64,
    pub(super) first_pending: u64,
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        let session = &mut *self.inner.session.borrow_mut();
        if let State::Open(id, window) = &mut session.state
            && *id == self.session
        {
            window.end(self.sequence);
            session.wake();
        }
    }
}

/// Whose turn it is has either to write or to open the session first.
enum Turn<'a> {
    Write(Numbered<'a>),
    Open(Opening<'a>),
}

/// The one that opens the session.
struct Opening<'a> {
    inner: &'a Inner,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let session = &mut *self.inner.session.borrow_mut();
        if matches!(session.state, State::Opening) {
            session.state = State::Closed;
            session.wake();
        }
    }
}

impl ClientSession {
    /// Wakes as many as can go on.
    fn wake(&mut self) {
        let count = match &self.state {
            State::Closed => 1,
            State::Opening => 0,
            State::Open(_, window) => window.room(),
        };
        let woken = self.waiting.values_mut().take(count).filter_map(Option::take);
        woken.for_each(Waker::wake);
    }
}

impl Inner {
    /// Numbers a write, if that is possible at once.
    #[inline]
    pub(super) fn number(&self) -> Option<Numbered<'_>> {
        let session = &mut *self.session.borrow_mut();
        if !session.waiting.is_empty() {
            return None;
        }
        self.number_in(&mut session.state)
    }

    fn number_in(&self, state: &mut State) -> Option<Numbered<'_>> {
        let State::Open(id, window) = state else { return None };
        let (sequence, first_pending) = window.begin()?;
        Some(Numbered { inner: self, session: *id, sequence, first_pending })
    }

    /// Numbers a write as soon as there is a session with room for it, and opens one if there is none.
    pub(super) async fn number_in_time(
        self: &Rc<Self>,
        deadline_ns: u64,
    ) -> Result<Numbered<'_>, KvError> {
        loop {
            let left = Duration::from_nanos(deadline_ns.saturating_sub(self.handle.now_ns()));
            match self.handle.timeout(left, InTurn::new(self)).await {
                Ok(Turn::Write(numbered)) => return Ok(numbered),
                Ok(Turn::Open(opening)) => self.open_session(&opening, deadline_ns).await?,
                Err(_) => {
                    let last = "the writes before it have no answer yet".to_owned();
                    return Err(KvError::Timeout { last });
                }
            }
        }
    }

    /// To open one session too many does no harm.
    async fn open_session(
        self: &Rc<Self>,
        _opening: &Opening<'_>,
        deadline_ns: u64,
    ) -> Result<(), KvError> {
        let mut pursuit = Pursuit::new(self, Target::Leader, deadline_ns);
        loop {
            let encode = |out: &mut Vec<u8>| Command::OpenSession.encode(out);
            let (reply, from) = pursuit.ask(methods::WRITE, encode).await?;
            match WriteReply::decode(&reply) {
                Ok(WriteReply::Applied(applied)) => {
                    pursuit.confirm(&from);
                    let session = &mut *self.session.borrow_mut();
                    session.state = State::Open(applied.index, Window::new());
                    session.wake();
                    return Ok(());
                }
                Ok(WriteReply::Refused(refusal)) => pursuit.refused(&from, refusal)?,
                Err(error) => return Err(pursuit.not_understood(&from, &error)),
            }
        }
    }

    /// The cluster knows the session no more: the next write opens another.
    pub(super) fn end_session(&self, id: u64) {
        let session = &mut *self.session.borrow_mut();
        if matches!(&session.state, State::Open(current, _) if *current == id) {
            session.state = State::Closed;
            session.wake();
        }
    }
}

/// Waits for its turn, behind those that came before.
struct InTurn<'a> {
    inner: &'a Inner,
    place: Option<u64>,
}

impl<'a> InTurn<'a> {
    fn new(inner: &'a Inner) -> Self {
        Self { inner, place: None }
    }

    fn is_first(&self, session: &ClientSession) -> bool {
        match self.place {
            None => session.waiting.is_empty(),
            Some(place) => {
                session.waiting.first_key_value().is_some_and(|(first, _)| *first == place)
            }
        }
    }
}

impl<'a> Future for InTurn<'a> {
    type Output = Turn<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Turn<'a>> {
        let inner = self.inner;
        let session = &mut *inner.session.borrow_mut();
        if self.is_first(session) {
            let turn = match &mut session.state {
                State::Closed => {
                    session.state = State::Opening;
                    Some(Turn::Open(Opening { inner }))
                }
                state => inner.number_in(state).map(Turn::Write),
            };
            if let Some(turn) = turn {
                self.place.take().map(|place| session.waiting.remove(&place));
                session.wake();
                return Poll::Ready(turn);
            }
        }
        let place = *self.place.get_or_insert_with(|| {
            session.places += 1;
            session.places
        });
        session.waiting.insert(place, Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for InTurn<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let session = &mut *self.inner.session.borrow_mut();
            session.waiting.remove(&place);
            session.wake();
        }
    }
}
