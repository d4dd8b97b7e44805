//! The streams of a pair, shared by the endpoint's thread and the threads of the application.

use std::fmt;
use std::task::Waker;

use petrel_proto::SessionId;

use super::pair::{Event, Pair, Role};
use super::wire::Breach;
use crate::error::Error;
use crate::local::Key;
use crate::sync::{Arc, Mutex, MutexGuard, lock};
use crate::values::StreamConfig;

/// The tasks that wait for a stream.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    /// The task of the handler, which ends with the stream.
    pub(super) handler: Option<Waker>,
}

/// A pair behind a lock.
pub(super) struct Shared {
    inner: Mutex<Inner>,
    message_bytes_max: usize,
}

struct Inner {
    pair: Pair<Waiters>,
    /// The task that sends the batches, while it waits.
    pump: Option<Waker>,
    /// Streams that the client has opened, whose handlers have not begun.
    opened: Vec<(Key, u16)>,
    /// The session on which the peer's batches come.
    served: Option<SessionId>,
    /// Whether the application opens no further stream.
    is_retired: bool,
}

/// A batch to be sent.
pub(super) struct Batch<M> {
    pub(super) message: M,
    pub(super) len: usize,
    pub(super) sequence: u64,
}

impl Shared {
    pub(super) fn new(role: Role, config: StreamConfig, message_bytes_max: usize) -> Arc<Self> {
        let inner = Inner {
            pair: Pair::new(role, config),
            pump: None,
            opened: Vec::new(),
            served: None,
            is_retired: false,
        };
        Arc::new(Self { inner: Mutex::new(inner), message_bytes_max })
    }

    /// Returns the bytes of the largest message.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    /// Runs a closure with the pair, and wakes the tasks that have waited for its effects.
    #[inline]
    pub(super) fn with<R>(&self, run: impl FnOnce(&mut Pair<Waiters>) -> R) -> R {
        let mut inner = lock(&self.inner);
        let result = run(&mut inner.pair);
        inner.settle(result)
    }

    /// Handles a batch from the session `from`. Returns the streams that it has opened.
    ///
    /// # Errors
    /// The peer breaks the rules, or the pair has ended: the reason for the peer.
    pub(super) fn handle_batch(
        &self,
        from: SessionId,
        now_ns: u64,
        batch: &[u8],
    ) -> Result<Vec<(Key, u16)>, Error> {
        let mut inner = lock(&self.inner);
        let is_served = *inner.served.get_or_insert(from) == from;
        if let Some(failure) = inner.pair.failure() {
            return Err(failure.clone());
        }
        let handled = match is_served {
            true => inner.pair.handle_batch(now_ns, batch),
            false => Err(Breach("batches on two sessions")),
        };
        let outcome = handled.map_err(|Breach(text)| {
            let error = breach(text);
            inner.pair.fail(&error);
            error
        });
        let woken = inner.woken();
        let opened = std::mem::take(&mut inner.opened);
        if outcome.is_err() {
            // They have no handlers.
            opened.iter().for_each(|(key, _)| inner.pair.release(*key));
        }
        inner.leave(woken, outcome.map(|()| opened))
    }

    /// Writes the next batch into a message that `alloc` makes, if there is one to be sent; otherwise the pump waits.
    pub(super) fn next_batch<M>(
        &self,
        now_ns: u64,
        pump: &Waker,
        alloc: impl FnOnce(usize) -> Result<M, Error>,
        memory: impl FnOnce(&mut M) -> &mut [u8],
    ) -> Result<Option<Batch<M>>, Error> {
        let mut inner = lock(&self.inner);
        inner.pair.expire(now_ns);
        if let Some(failure) = inner.pair.failure() {
            return Err(failure.clone());
        }
        let mut batch = None;
        if inner.pair.wants_batch() {
            let mut message = alloc(inner.pair.room_bytes())?;
            if let Some((len, sequence)) = inner.pair.next_batch(now_ns, memory(&mut message)) {
                batch = Some(Batch { message, len, sequence });
            }
        }
        if batch.is_none() {
            inner.pump = Some(pump.clone());
        }
        inner.settle(Ok(batch))
    }

    /// Returns when the pump must look again; and whether no stream is left, nor will be.
    pub(super) fn next_look(&self) -> (u64, bool) {
        let inner = lock(&self.inner);
        (inner.pair.next_deadline_ns(), inner.is_retired && inner.pair.is_empty())
    }

    /// Ends all streams.
    pub(super) fn fail(&self, error: &Error) {
        let mut inner = lock(&self.inner);
        inner.pair.fail(error);
        let pump = inner.pump.take();
        inner.settle(());
        pump.into_iter().for_each(Waker::wake);
    }

    /// Lets the pair end with its last stream.
    pub(super) fn retire(&self) {
        let mut inner = lock(&self.inner);
        inner.is_retired = true;
        let pump = inner.pump.take();
        drop(inner);
        pump.into_iter().for_each(Waker::wake);
    }

    /// Takes a stream that the client has opened.
    #[cfg(test)]
    pub(super) fn take_opened(&self) -> Option<(Key, u16)> {
        lock(&self.inner).opened.pop()
    }

    #[cfg(test)]
    pub(super) fn put_opened(&self, opened: Vec<(Key, u16)>) {
        lock(&self.inner).opened.extend(opened);
    }

    pub(super) fn has_failed(&self) -> bool {
        lock(&self.inner).pair.failure().is_some()
    }

    /// Returns the session on which the peer's batches come.
    pub(super) fn served(&self) -> Option<SessionId> {
        lock(&self.inner).served
    }
}

/// The error of a pair whose peer breaks the rules.
fn breach(text: &str) -> Error {
    let text = format!("the peer breaks the rules of streams: {text}");
    let execution = petrel_proto::Execution::MayHaveExecuted;
    Error::of(petrel_proto::Status::InvalidArgument, text, execution)
}

/// Ends an access of the pair: the lock is free when the waiting tasks are woken, for wakers are the code of others.
trait Settle: Sized {
    fn settle<R>(self, result: R) -> R;

    fn leave<R>(self, woken: Vec<Waker>, result: R) -> R;
}

impl Settle for MutexGuard<'_, Inner> {
    /// Most accesses, such as that of a message beside others, wake nothing.
    #[inline]
    fn settle<R>(self, result: R) -> R {
        match self.pair.has_news() || self.pump.is_some() && self.is_pump_wanted() {
            false => result,
            true => settle_news(self, result),
        }
    }

    fn leave<R>(mut self, woken: Vec<Waker>, result: R) -> R {
        let is_wanted = self.pump.is_some() && self.is_pump_wanted();
        let pump = if is_wanted { self.pump.take() } else { None };
        let gone = self.pair.take_gone();
        drop(self);
        drop(gone);
        pump.into_iter().chain(woken).for_each(Waker::wake);
        result
    }
}

#[inline(never)]
fn settle_news<R>(mut inner: MutexGuard<'_, Inner>, result: R) -> R {
    let woken = inner.woken();
    inner.leave(woken, result)
}

impl Inner {
    #[inline]
    fn is_pump_wanted(&self) -> bool {
        self.pair.wants_batch() || self.is_retired && self.pair.is_empty()
    }

    /// Takes the wakers of the tasks that the last events concern.
    #[inline(never)]
    fn woken(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(event) = self.pair.pop_event() {
            let (Event::Opened(key, _)
            | Event::Readable(key)
            | Event::Writable(key)
            | Event::Ended(key)) = event;
            if let Event::Opened(key, method) = event {
                self.opened.push((key, method));
            }
            let Some(waiters) = self.pair.user(key) else { continue };
            match event {
                Event::Opened(..) => {}
                Event::Readable(_) => woken.extend(waiters.reader.take()),
                Event::Writable(_) => woken.extend(waiters.writer.take()),
                Event::Ended(_) => {
                    woken.extend(waiters.reader.take());
                    woken.extend(waiters.writer.take());
                    woken.extend(waiters.handler.take());
                }
            }
        }
        woken
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// A handle of a stream.
#[derive(Debug)]
pub(super) struct Held {
    shared: Arc<Shared>,
    key: Key,
}

impl Held {
    /// Takes over a handle that the pair has counted.
    pub(super) fn new(shared: &Arc<Shared>, key: Key) -> Self {
        Self { shared: Arc::clone(shared), key }
    }

    /// Returns a further handle.
    pub(super) fn another(&self) -> Self {
        self.with(|pair, key| pair.hold(key));
        Self::new(&self.shared, self.key)
    }

    #[inline]
    pub(super) fn with<R>(&self, run: impl FnOnce(&mut Pair<Waiters>, Key) -> R) -> R {
        self.shared.with(|pair| run(pair, self.key))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.with(Pair::release);
    }
}

/// Registers the waker of a task. Returns a former waker of another task: its destructor is another's code, to be run without the lock.
pub(super) fn register(place: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match place {
        Some(known) if known.will_wake(waker) => None,
        _ => place.replace(waker.clone()),
    }
}
