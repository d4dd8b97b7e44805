//! The client for other threads.
//!
//! What is to be done crosses to the endpoint's thread as a closure, behind a lock that both sides hold for a
//! push or a pop, and its result comes back the same way. That is an allocation or two and a wake-up for each
//! operation: who wants more of them per second puts several into one closure, or lives on the endpoint's thread.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::{Cas, KvClient, KvError, Put};
use crate::command::Expected;

type Job = Box<dyn FnOnce(KvClient) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// A [`KvClient`] for other threads, and for tasks of other executors. It works as long as the endpoint's event
/// loop runs.
///
/// ```no_run
/// # fn example(client: petrel_kv::KvClient) {
/// let remote = client.remote(); // on the endpoint's thread
/// std::thread::spawn(move || {
///     let put = remote.put(b"key", b"value").wait();
///     // Anything else the client can do, there:
///     let count = remote.run(|client| async move {
///         let mut scan = client.scan(b"", None);
///         let mut count = 0;
///         while let Some(page) = scan.next_page().await? {
///             count += page.len();
///         }
///         Ok(count)
///     });
///     println!("{put:?}, {:?}", count.wait());
/// });
/// # }
/// ```
#[derive(Clone)]
pub struct KvRemote {
    queue: Arc<Queue>,
    /// Ends the endpoint's side when the last handle goes.
    _guard: Arc<Guard>,
}

/// An operation that is on its way: a future of its result. It goes on if this is dropped.
#[derive(Debug)]
pub struct RemoteOperation<T> {
    slot: Arc<Slot<T>>,
}

/// Why an operation from another thread has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The operation has none.
    #[error(transparent)]
    Failed(#[from] KvError),
    /// The endpoint is gone, or went while the operation was under way: whether it took effect nobody knows.
    #[error("the client's endpoint is gone; nobody knows whether it was done")]
    EndpointGone,
}

impl KvClient {
    /// A handle for other threads.
    pub fn remote(&self) -> KvRemote {
        let queue = Arc::new(Queue::default());
        let receiver = Receiver(Arc::clone(&queue));
        self.inner.handle.spawn(serve(self.clone(), receiver));
        KvRemote { _guard: Arc::new(Guard(Arc::clone(&queue))), queue }
    }
}

impl KvRemote {
    /// Does something with the client on the endpoint's thread.
    pub fn run<T, F, R>(&self, operation: F) -> RemoteOperation<T>
    where
        T: Send + 'static,
        F: FnOnce(KvClient) -> R + Send + 'static,
        R: Future<Output = Result<T, KvError>> + 'static,
    {
        let slot = Arc::new(Slot::default());
        let answer = Answer(Some(Arc::clone(&slot)));
        self.queue.push(Box::new(move |client| {
            let future = operation(client);
            Box::pin(async move { answer.give(future.await.map_err(RemoteError::from)) })
        }));
        RemoteOperation { slot }
    }

    /// [`KvClient::put`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> RemoteOperation<Put> {
        let (key, value) = (key.to_vec(), value.to_vec());
        self.run(|client| async move { client.put(&key, &value).await })
    }

    /// [`KvClient::delete`].
    pub fn delete(&self, key: &[u8]) -> RemoteOperation<bool> {
        let key = key.to_vec();
        self.run(|client| async move { client.delete(&key).await })
    }

    /// [`KvClient::get`]: the value and its revision.
    pub fn get(&self, key: &[u8]) -> RemoteOperation<Option<(Vec<u8>, u64)>> {
        let key = key.to_vec();
        self.run(|client| async move {
            let value = client.get(&key).await?;
            Ok(value.map(|value| (value.to_vec(), value.revision())))
        })
    }

    /// [`KvClient::cas`], if the key was last written at this revision, or is absent.
    pub fn cas(&self, key: &[u8], revision: Option<u64>, value: &[u8]) -> RemoteOperation<Cas> {
        let (key, value) = (key.to_vec(), value.to_vec());
        self.run(move |client| async move {
            let expected = revision.map_or(Expected::Absent, Expected::Revision);
            client.cas(&key, expected, &value).await
        })
    }
}

impl<T> RemoteOperation<T> {
    /// Waits for the result, on a thread that has no executor, and is not the endpoint's.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn wait(self) -> Result<T, RemoteError> {
        self.slot.look();
        let mut state = lock(&self.slot.state);
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            state.sleeps = true;
            state = self.slot.given.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Future for RemoteOperation<T> {
    type Output = Result<T, RemoteError>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.slot.state);
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// What is to be done on the endpoint's thread.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    waker: Option<Waker>,
    /// No handle is left.
    is_left: bool,
    /// The endpoint's side is gone.
    is_gone: bool,
}

impl Queue {
    fn push(&self, job: Job) {
        let mut state = lock(&self.state);
        if !state.is_gone {
            state.jobs.push_back(job);
        }
        let waker = state.waker.take();
        // The waker and a job that was not taken do more than may be done under the lock.
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

struct Guard(Arc<Queue>);

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_left = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The endpoint's side. Jobs that it leaves behind end when they are dropped.
struct Receiver(Arc<Queue>);

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_gone = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
    }
}

impl Receiver {
    /// The next job; none when no handle is left.
    async fn next(&self) -> Option<Job> {
        poll_fn(|cx| {
            let mut state = lock(&self.0.state);
            match state.jobs.pop_front() {
                Some(job) => Poll::Ready(Some(job)),
                None if state.is_left => Poll::Ready(None),
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

async fn serve(client: KvClient, receiver: Receiver) {
    while let Some(job) = receiver.next().await {
        client.inner.handle.spawn(job(client.clone()));
    }
}

/// How long a thread looks for a result before it sleeps, and lets others run meanwhile: as an endpoint does by
/// default, see [`petrel::endpoint::IdlePolicy`].
const LOOK: Duration = Duration::from_micros(100);

/// Where a result is put.
#[derive(Debug)]
struct Slot<T> {
    state: Mutex<SlotState<T>>,
    /// Whether there is a result, for who looks without the lock.
    has_result: AtomicBool,
    given: Condvar,
}

#[derive(Debug)]
struct SlotState<T> {
    result: Option<Result<T, RemoteError>>,
    waker: Option<Waker>,
    /// A thread sleeps until there is a result.
    sleeps: bool,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        let state = SlotState { result: None, waker: None, sleeps: false };
        Self { state: Mutex::new(state), has_result: AtomicBool::new(false), given: Condvar::new() }
    }
}

/// The duty to give a result; dropped without one, it says so.
struct Answer<T>(Option<Arc<Slot<T>>>);

impl<T> Answer<T> {
    fn give(mut self, result: Result<T, RemoteError>) {
        if let Some(slot) = self.0.take() {
            slot.put(result);
        }
    }
}

impl<T> Slot<T> {
    fn put(&self, result: Result<T, RemoteError>) {
        let mut state = lock(&self.state);
        state.result = Some(result);
        // Partner: the load in `look`. The result itself is behind the lock.
        self.has_result.store(true, Ordering::Release);
        let (waker, sleeps) = (state.waker.take(), state.sleeps);
        drop(state);
        if sleeps {
            self.given.notify_all();
        }
        waker.into_iter().for_each(Waker::wake);
    }

    /// Looks for a while whether there is a result: a sleep costs several times what a put takes.
    fn look(&self) {
        let begin = Instant::now();
        while !self.has_result.load(Ordering::Acquire) && begin.elapsed() < LOOK {
            thread::yield_now();
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.put(Err(RemoteError::EndpointGone));
        }
    }
}

impl fmt::Debug for KvRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvRemote").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
