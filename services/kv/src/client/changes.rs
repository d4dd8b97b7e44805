//! Waiting for news of the members.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// What can have changed.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// A session was opened or has ended.
    Connection,
    /// A member has answered as the leader.
    Leader,
}

/// Counts what has changed, and wakes those that wait.
#[derive(Debug, Default)]
pub(super) struct Changes {
    counts: [Cell<u64>; 2],
    wakers: RefCell<Vec<Waker>>,
}

impl Changes {
    pub(super) fn tell(&self, news: News) {
        let count = &self.counts[news as usize];
        count.set(count.get() + 1);
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until there is news of this kind, from now on.
    pub(super) async fn wait(&self, news: News) {
        let seen = self.counts[news as usize].get();
        poll_fn(|cx| {
            if self.counts[news as usize].get() != seen {
                return Poll::Ready(());
            }
            let mut wakers = self.wakers.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
