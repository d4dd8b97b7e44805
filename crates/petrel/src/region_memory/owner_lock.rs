//! A lock for a value that one thread uses all the time, and others rarely and briefly.
//!
//! Locking and unlocking without contention takes five instructions, in place of some 22 of `std::sync::Mutex`, which also
//! looks for panics and for sleeping threads. Unlocking wakes no thread: a waiting thread yields first, and then sleeps for
//! short times.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::{AtomicBool, Ordering, thread};

/// Attempts before the first sleep: the lock is held for a few microseconds, unless its thread has lost its CPU.
const YIELDS: u32 = 16;

/// The length of a sleep, some context switches long. A thread of real-time priority that only yielded could keep the lock's
/// thread from its CPU.
const SLEEP: Duration = Duration::from_micros(50);

/// A value behind the lock. A panic of its user releases the lock.
pub(crate) struct OwnerLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed by one guard at a time, on any thread.
unsafe impl<T: Send> Sync for OwnerLock<T> {}

impl<T> OwnerLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { is_held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Returns `None` if another guard exists.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<OwnerGuard<'_, T>> {
        if self.is_held.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(OwnerGuard { lock: self, _value: PhantomData })
    }

    /// Waits until no other guard exists.
    #[inline]
    pub(crate) fn lock(&self) -> OwnerGuard<'_, T> {
        if self.is_held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        OwnerGuard { lock: self, _value: PhantomData }
    }

    #[cold]
    fn wait(&self) {
        let mut attempts = 0;
        while self.is_held.swap(true, Ordering::Acquire) {
            match attempts {
                0..YIELDS => thread::yield_now(),
                _ => thread::sleep(SLEEP),
            }
            attempts = (attempts + 1).min(YIELDS);
        }
    }
}

/// Access to the value, until the guard is dropped.
pub(crate) struct OwnerGuard<'a, T> {
    lock: &'a OwnerLock<T>,
    /// A guard is shared between threads only if the value may be.
    _value: PhantomData<&'a mut T>,
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the only guard is borrowed.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the only guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn lock__excludes_other_threads() {
        const ROUNDS: u64 = 50_000;
        let lock = OwnerLock::new((0_u64, 0_u64));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut value = lock.lock();
                        assert_eq!(value.0, value.1, "another thread is between the two");
                        value.0 += 1;
                        std::hint::black_box(&mut value.0);
                        value.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (3 * ROUNDS, 3 * ROUNDS));
    }

    #[test]
    fn lock__waits_beyond_the_first_attempts() {
        let lock = OwnerLock::new(0);
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            let waiting = scope.spawn(|| *lock.lock());
            std::thread::sleep(10 * SLEEP);
            *held = 7;
            drop(held);
            assert_eq!(waiting.join().unwrap(), 7);
        });
    }

    #[test]
    fn try_lock__leaves_the_other_guard_its_lock() {
        let lock = OwnerLock::new(3);
        let held = lock.lock();
        assert!(lock.try_lock().is_none() && lock.try_lock().is_none());
        drop(held);
        assert_eq!(lock.try_lock().map(|value| *value), Some(3));
    }

    #[test]
    fn guard__is_released_by_a_panic() {
        let lock = OwnerLock::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _held = lock.lock();
            panic!("with the lock");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 1);
    }
}
