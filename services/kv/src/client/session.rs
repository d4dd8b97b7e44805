//! The client session, which numbers the writes.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Turn, Notify};

use super::KvError;
use crate::limits::PENDING_WRITES_MAX;

/// The client session, and its unanswered writes.
#[derive(Debug, Default)]
pub(super) struct ClientSession {
    state: Mutex<State>,
    /// Queues writes without a number; the first in the queue opens the session.
    turn: Turn<()>,
    /// Signals room for another write.
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// None while there is no session.
    id: Option<u64>,
    /// The number of the last write.
    last: u64,
    pending: BTreeSet<u64>,
}

/// A write with a number in the session. Dropping this value ends the pending state.
#[derive(Debug)]
pub(super) struct Numbered<'a> {
    of: &'a ClientSession,
    pub(super) session: u64,
    pub(super) sequence: u64,
    pub(super) first_pending: u64,
}

impl Numbered<'_> {
    /// Notes that the cluster does not know the session any longer: the next write opens another.
    pub(super) fn end_session(&self) {
        self.of.end(self.session);
    }
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        if state.id == Some(self.session) {
            state.pending.remove(&self.sequence);
            self.of.room.notify_one();
        }
    }
}

impl ClientSession {
    /// Numbers a write, if possible at once.
    pub(super) fn try_number(&self) -> Option<Numbered<'_>> {
        let _turn = self.turn.try_lock().ok()?;
        self.next()
    }

    /// Numbers a write as soon as a session has room for it. Without a session, `open` opens a session.
    pub(super) async fn number(
        &self,
        open: impl AsyncFn() -> Result<u64, KvError>,
    ) -> Result<Numbered<'_>, KvError> {
        let _turn = self.turn.lock().await;
        loop {
            if self.state().id.is_none() {
                let id = open().await?;
                *self.state() = State { id: Some(id), ..State::default() };
            }
            if let Some(numbered) = self.next() {
                return Ok(numbered);
            }
            self.room.notified().await;
        }
    }

    fn end(&self, id: u64) {
        let mut state = self.state();
        if state.id == Some(id) {
            state.id = None;
            self.room.notify_one();
        }
    }

    fn next(&self) -> Option<Numbered<'_>> {
        let mut state = self.state();
        let (session, sequence) = (state.id?, state.last + 1);
        let first_pending = state.pending.first().copied().unwrap_or(sequence);
        if sequence - first_pending >= PENDING_WRITES_MAX {
            return None;
        }
        state.last = sequence;
        state.pending.insert(sequence);
        Some(Numbered { of: self, session, sequence, first_pending })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn open() -> ClientSession {
        let session = ClientSession::default();
        *session.state() = State { id: Some(7), ..State::default() };
        session
    }

    fn named(numbered: &Numbered<'_>) -> (u64, u64, u64) {
        (numbered.session, numbered.sequence, numbered.first_pending)
    }

    #[test]
    fn number__from_one_and_with_the_first_pending() {
        let session = open();
        let next = || session.try_number().unwrap();
        let [first, second] = [next(), next()];
        assert_eq!([&first, &second].map(named), [(7, 1, 1), (7, 2, 1)]);
        drop(first);
        let third = next();
        assert_eq!(named(&third), (7, 3, 2));
        drop(third);
        let fourth = next();
        assert_eq!(named(&fourth), (7, 4, 2), "the second is still pending");
        drop((second, fourth));
        assert_eq!(named(&next()), (7, 5, 5));
    }

    #[test]
    fn number__never_goes_further_ahead_than_the_service_allows_and_waits_in_turn() {
        let session = open();
        let mut pending: Vec<_> =
            (0..PENDING_WRITES_MAX).map(|_| session.try_number().unwrap()).collect();
        let opens = async || panic!("a session is open");
        let (mut one, mut other) = (pin!(session.number(opens)), pin!(session.number(opens)));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(one.as_mut().poll(cx).is_pending() && other.as_mut().poll(cx).is_pending());
        pending.remove(1);
        assert!(one.as_mut().poll(cx).is_pending(), "the first one holds the others up");
        pending.remove(0);
        assert!(session.try_number().is_none(), "two have waited for longer");
        assert!(other.as_mut().poll(cx).is_pending());
        let Poll::Ready(Ok(one)) = one.as_mut().poll(cx) else { panic!("there is room") };
        assert_eq!(named(&one), (7, PENDING_WRITES_MAX + 1, 3));
        let Poll::Ready(Ok(other)) = other.as_mut().poll(cx) else { panic!("there is room") };
        assert_eq!(other.sequence, PENDING_WRITES_MAX + 2);
        assert!(session.try_number().is_none());
    }

    #[test]
    fn number__one_of_those_that_wait_opens_the_session() {
        let session = ClientSession::default();
        assert!(session.try_number().is_none());
        let fails = async || Err(KvError::InvalidArgument("as asked for".to_owned()));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(matches!(pin!(session.number(fails)).poll(cx), Poll::Ready(Err(_))));
        let Poll::Ready(Ok(first)) = pin!(session.number(async || Ok(9))).poll(cx) else {
            panic!("it is open")
        };
        assert_eq!(named(&first), (9, 1, 1));
        session.end(8);
        assert_eq!(named(&session.try_number().unwrap()), (9, 2, 1), "another one has ended");
        session.end(9);
        assert!(session.try_number().is_none());
        let Poll::Ready(Ok(again)) = pin!(session.number(async || Ok(10))).poll(cx) else {
            panic!("it is open")
        };
        drop(first);
        assert_eq!(named(&again), (10, 1, 1), "numbers begin anew");
    }
}
