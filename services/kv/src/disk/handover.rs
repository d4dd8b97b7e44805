//! Between the replica's thread and those that write: what is to be written, and how far that has come.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use super::change::Base;
use crate::persist::{Batch, Checkpoint, LogFailure};

/// Batches that become durable with one sync.
const GROUP_BATCHES_MAX: usize = 4096;

/// What the log's thread does.
#[derive(Debug)]
pub(super) enum Job {
    Batch(Box<Batch>),
    /// A checkpoint is in its file. What can be removed once the log says so: the one before, or this one if a
    /// later one has come; the answer is the number of a file.
    Checkpoint(Base, SyncSender<Option<u64>>),
}

/// What the replica's thread shares with those that write.
///
/// The queue has no limit of its own: the Raft core stops at 256 MiB that are not committed, as a leader, and a
/// follower's leader at 256 messages that are not answered.
#[derive(Debug, Default)]
pub(super) struct Handover {
    waiting: Mutex<Waiting>,
    has_jobs: Condvar,
    has_checkpoint: Condvar,
    durable: AtomicU64,
    failure: OnceLock<LogFailure>,
    waker: Mutex<Option<Waker>>,
    /// The replica has gone: a checkpoint need not be finished.
    is_leaving: AtomicBool,
    pub(super) counts: Counts,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) syncs: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) checkpoints: AtomicU64,
    pub(super) checkpoint_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// The last checkpoint that the replica gave; an earlier one need not be written.
    checkpoint: Option<Checkpoint>,
    /// No more jobs come.
    is_closed: bool,
}

impl Handover {
    pub(super) fn push(&self, job: Job) {
        if self.failure().is_none() {
            self.waiting().jobs.push_back(job);
            self.has_jobs.notify_one();
        }
    }

    pub(super) fn push_checkpoint(&self, checkpoint: Checkpoint) {
        self.waiting().checkpoint = Some(checkpoint);
        self.has_checkpoint.notify_one();
    }

    /// The jobs that wait; none when there will be no more.
    pub(super) fn take(&self) -> Option<Vec<Job>> {
        let idle = |waiting: &mut Waiting| waiting.jobs.is_empty() && !waiting.is_closed;
        let waiting = self.has_jobs.wait_while(self.waiting(), idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let count = waiting.jobs.len().min(GROUP_BATCHES_MAX);
        let jobs: Vec<Job> = waiting.jobs.drain(..count).collect();
        (!jobs.is_empty()).then_some(jobs)
    }

    /// The checkpoint that waits; none when none is wanted any more.
    pub(super) fn take_checkpoint(&self) -> Option<Checkpoint> {
        let idle = |waiting: &mut Waiting| waiting.checkpoint.is_none() && !self.is_leaving();
        let waiting = self.has_checkpoint.wait_while(self.waiting(), idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        waiting.checkpoint.take().filter(|_| !self.is_leaving())
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// The replica has gone: checkpoints are not wanted any more.
    pub(super) fn leave(&self) {
        // Under the lock, or the other thread could look before and sleep after.
        let waiting = self.waiting();
        self.is_leaving.store(true, Ordering::Relaxed);
        self.has_checkpoint.notify_one();
        drop(waiting);
    }

    /// What waits is written, and no more comes.
    pub(super) fn close(&self) {
        self.waiting().is_closed = true;
        self.has_jobs.notify_one();
    }

    pub(super) fn durable(&self) -> Result<u64, LogFailure> {
        match self.failure() {
            Some(failure) => Err(failure.clone()),
            // Partner: the store in `note_durable`.
            None => Ok(self.durable.load(Ordering::Acquire)),
        }
    }

    /// Tells whether that is news.
    pub(super) fn note_durable(&self, number: u64) -> bool {
        self.durable.fetch_max(number, Ordering::AcqRel) < number
    }

    /// There will be nothing durable any more. The first cause stays.
    pub(super) fn fail(&self, failure: LogFailure) {
        let _ = self.failure.set(failure);
        self.waiting().jobs.clear();
        self.leave();
        self.wake();
    }

    pub(super) fn set_waker(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    pub(super) fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*waker {
            waker.wake_by_ref();
        }
    }

    fn failure(&self) -> Option<&LogFailure> {
        self.failure.get()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turns the end of a thread by a panic into a failure, so that nobody waits for it.
pub(super) struct EndsWell<'a>(pub(super) &'a Handover);

impl Drop for EndsWell<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(LogFailure("a thread of the log has panicked".to_owned()));
        }
    }
}
