//! Threads, time, and synchronisation types, from one place. Tests replace them by a model checker's: loom's in
//! `tests/loom_inbox.rs`, and shuttle's in the whole crate, with `--cfg shuttle` (`tests/threads`).

#[cfg(not(shuttle))]
pub(crate) use petrel_transport::clock::now_ns;
#[cfg(not(shuttle))]
pub(crate) use std::{
    hint,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    thread, thread_local,
    time::Instant,
};

#[cfg(shuttle)]
pub(crate) use crate::model::{Instant, now_ns, thread};
#[cfg(shuttle)]
pub(crate) use shuttle::{
    hint,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    thread_local,
};

/// Locks, also after a panic of another thread: data under these locks is consistent between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
