//! The queue between the replica's thread and the writing threads, and the progress of the writing threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use super::change::Base;
use crate::persist::{Batch, Checkpoint, LogFailure};

/// Most batches that one sync makes durable.
const GROUP_BATCHES_MAX: usize = 4096;

/// A job for the log's thread.
#[derive(Debug)]
pub(super) enum Job {
    Batch(Box<Batch>),
    /// A checkpoint is in its file. The answer is the number of an outdated file, to be removed: usually the previous
    /// checkpoint's, or this checkpoint's if the log already names a later one.
    Checkpoint(Base, SyncSender<Option<u64>>),
}

/// State shared by the replica's thread and the writing threads.
///
/// The queue needs no limit. As a leader, the Raft core stops at 256 MiB of uncommitted entries; as a follower, its
/// leader stops at 256 unanswered messages.
#[derive(Debug, Default)]
pub(super) struct Handover {
    waiting: Mutex<Waiting>,
    has_jobs: Condvar,
    has_checkpoint: Condvar,
    durable: AtomicU64,
    failure: OnceLock<LogFailure>,
    waker: Mutex<Option<Waker>>,
    /// The replica has ended: a checkpoint need not be finished.
    is_closing: AtomicBool,
    pub(super) counts: Counts,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) syncs: AtomicU64,
    pub(super) checkpoints: AtomicU64,
    pub(super) checkpoint_bytes: AtomicU64,
    /// Of the disk.
    pub(super) free_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// The replica's last checkpoint; an earlier one need not be written.
    checkpoint: Option<Checkpoint>,
    /// No more jobs will arrive.
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

    /// Removes and returns the waiting jobs; blocks while the queue is empty. Returns none once the queue is closed and
    /// empty.
    pub(super) fn take(&self) -> Option<Vec<Job>> {
        let idle = |waiting: &mut Waiting| waiting.jobs.is_empty() && !waiting.is_closed;
        let waiting = self.has_jobs.wait_while(self.waiting(), idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let count = waiting.jobs.len().min(GROUP_BATCHES_MAX);
        let jobs: Vec<Job> = waiting.jobs.drain(..count).collect();
        (!jobs.is_empty()).then_some(jobs)
    }

    /// Removes and returns the waiting checkpoint; blocks until one arrives. Returns none once the replica has ended.
    pub(super) fn take_checkpoint(&self) -> Option<Checkpoint> {
        let idle = |waiting: &mut Waiting| waiting.checkpoint.is_none() && !self.is_closing();
        let waiting = self.has_checkpoint.wait_while(self.waiting(), idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        waiting.checkpoint.take().filter(|_| !self.is_closing())
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Ends the writing of checkpoints, because the replica has ended.
    pub(super) fn close_checkpoints(&self) {
        // Under the lock: otherwise the other thread could check the flag before the store and sleep after the
        // notification.
        let waiting = self.waiting();
        self.is_closing.store(true, Ordering::Relaxed);
        self.has_checkpoint.notify_one();
        drop(waiting);
    }

    /// Closes the queue: waiting jobs are still written.
    pub(super) fn close(&self) {
        self.waiting().is_closed = true;
        self.has_jobs.notify_one();
    }

    pub(super) fn durable(&self) -> Result<u64, LogFailure> {
        match self.failure() {
            Some(failure) => Err(failure.clone()),
            // Pairs with the store in `note_durable`.
            None => Ok(self.durable.load(Ordering::Acquire)),
        }
    }

    /// Returns true if `number` is news.
    pub(super) fn note_durable(&self, number: u64) -> bool {
        self.durable.fetch_max(number, Ordering::AcqRel) < number
    }

    /// Records a failure: nothing more will become durable. The first cause stays.
    pub(super) fn fail(&self, failure: LogFailure) {
        let _ = self.failure.set(failure);
        self.waiting().jobs.clear();
        self.close_checkpoints();
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

/// Turns a thread's panic into a failure, to keep other threads from waiting.
pub(super) struct FailOnPanic<'a>(pub(super) &'a Handover);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(LogFailure("a thread of the log has panicked".to_owned()));
        }
    }
}
