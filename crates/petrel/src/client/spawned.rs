//! Tasks on the thread of a client's endpoint.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use petrel_proto::Status;

use super::Client;
use crate::error::Error;
use crate::inbox_message::{InboxMessage, RunTask};
use crate::local::{Handle, Hub};
use crate::panics::Closure;
use crate::sync::{Arc, Mutex, lock, now_ns};
use crate::time::Time;

/// The result of a task begun by [`Client::spawn`]. Dropping it ends the task.
///
/// It ends with UNAVAILABLE if the client's endpoint goes away before the task has ended.
#[derive(Debug)]
#[must_use = "dropping it ends the task"]
pub struct Spawned<T> {
    shared: Arc<Mutex<State<T>>>,
}

/// The state shared by both sides. Each waits for the other: for the result, or for an earlier end.
#[derive(Debug)]
enum State<T> {
    Going {
        waits: Option<Waker>,
        runs: Option<Waker>,
    },
    Ended(T),
    /// The task is gone, with or without a result.
    Gone,
    /// The result is not wanted.
    Dropped,
}

impl Client {
    /// Runs a task on the thread of the client's endpoint, in its event loop, even while the result is not awaited. The
    /// task gets the endpoint's [`Handle`] for timers and further tasks, may hold values that are not `Send`, and must
    /// not block.
    ///
    /// The task does not inherit the deadline of a request whose handler spawns it. After the first task, callers no longer run the
    /// endpoint's event loop themselves: calls of single threads and tasks then take longer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use petrel::{Client, Error};
    /// /// Asks again and again until the answer is sufficient.
    /// async fn ask_until(client: &Client, is_done: fn(&[u8]) -> bool) -> Result<(), Error> {
    ///     let asking = client.clone();
    ///     client
    ///         .spawn(async move |handle| {
    ///             while !is_done(&asking.call(1, b"done?").await?) {
    ///                 handle.sleep(Duration::from_millis(10)).await;
    ///             }
    ///             Ok(())
    ///         })
    ///         .await?
    /// }
    /// ```
    pub fn spawn<T, F>(&self, task: impl FnOnce(Handle) -> F + Send + 'static) -> Spawned<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.spawn_by(task, false)
    }

    /// Runs a closure on the thread of the client's endpoint, as a task of the application would. Returns false if the endpoint is gone.
    pub(crate) fn run(&self, begin: impl FnOnce(&Handle) + Send + 'static) -> bool {
        let task = RunTask { begin: Box::new(begin), is_library: false };
        self.endpoint().post(InboxMessage::Run(task))
    }

    /// Spawns a task of the application, or of the library, which keeps no object of the endpoint elsewhere.
    fn spawn_by<T, F>(
        &self,
        task: impl FnOnce(Handle) -> F + Send + 'static,
        is_library: bool,
    ) -> Spawned<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let shared = Arc::new(Mutex::new(State::Going { waits: None, runs: None }));
        let running = Running { shared: Arc::clone(&shared) };
        let begin = move |handle: &Handle| {
            let task = task(handle.clone());
            // Detached: the task ends by itself, or when the result is dropped.
            drop(handle.spawn_within(Closure::Task, None, running.run(task)));
        };
        // If the endpoint is gone, or goes before the task has begun, the task is dropped, and `Spawned` ends.
        let task = RunTask { begin: Box::new(begin), is_library };
        self.endpoint().post(InboxMessage::Run(task));
        Spawned { shared }
    }

    /// Waits for a future at most for `time` by the clock of the client's endpoint, in any executor. For calls a
    /// deadline is better: it reaches the server, too.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED after `time`, and UNAVAILABLE if the endpoint is gone.
    pub async fn timeout<F: Future>(&self, time: Duration, future: F) -> Result<F::Output, Error> {
        let mut future = pin!(future);
        let mut time = pin!(self.spawn_by(async move |handle| handle.sleep(time).await, true));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => {
                time.as_mut().poll(cx).map(|slept| Err(slept.err().unwrap_or_else(Error::elapsed)))
            }
        })
        .await
    }

    /// Returns the time, on the clock of [`CallOptions::deadline`](crate::endpoint::CallOptions::deadline).
    pub fn now(&self) -> Time {
        Time::from_ns(Hub::with_current(Hub::clock_now_ns).unwrap_or_else(now_ns))
    }
}

impl<T> Future for Spawned<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.shared);
        if let State::Going { waits, .. } = &mut *state {
            let former = register(waits, cx);
            drop(state);
            drop(former);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Gone) {
            State::Ended(result) => Poll::Ready(Ok(result)),
            _ => Poll::Ready(Err(Error::not_sent(Status::Unavailable, "the task is gone"))),
        }
    }
}

impl<T> Drop for Spawned<T> {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *lock(&self.shared), State::Dropped);
        // Wakers and destructors of results run arbitrary code, so the lock is free by then.
        if let State::Going { runs: Some(runs), .. } = before {
            runs.wake();
        }
    }
}

/// The task's side.
struct Running<T> {
    shared: Arc<Mutex<State<T>>>,
}

impl<T> Running<T> {
    /// Polls the task until it has ended, or the result is not wanted.
    async fn run(self, task: impl Future<Output = T>) {
        let mut task = pin!(task);
        let result = poll_fn(|cx| {
            let former = match &mut *lock(&self.shared) {
                State::Going { runs, .. } => register(runs, cx),
                State::Ended(_) | State::Gone | State::Dropped => return Poll::Ready(None),
            };
            drop(former);
            task.as_mut().poll(cx).map(Some)
        });
        if let Some(result) = result.await {
            self.end(State::Ended(result));
        }
    }

    fn end(&self, end: State<T>) {
        let mut state = lock(&self.shared);
        if let State::Going { waits, .. } = &mut *state {
            let waits = waits.take();
            *state = end;
            drop(state);
            waits.into_iter().for_each(Waker::wake);
        }
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.end(State::Gone);
    }
}

/// Registers the waker of a task. Returns the former one if it wakes another task: its destructor is another's code, to be
/// run without the lock.
fn register(waker: &mut Option<Waker>, cx: &Context<'_>) -> Option<Waker> {
    match waker {
        Some(waits) if waits.will_wake(cx.waker()) => None,
        _ => waker.replace(cx.waker().clone()),
    }
}
