//! Time and threads under shuttle, a model checker that schedules all threads itself, one at a time.
//!
//! Shuttle has no time: a timed wait lasts until another thread ends it. Here the clock is a number, advanced by one
//! thread, the timekeeper, to the next end of a wait. If the scheduler runs the timekeeper only when no other thread
//! can run, time stands still while there is work. A lost wake-up then cannot hide behind a timeout: it shows as an
//! advance of the clock.
//!
//! Shuttle runs all threads of an execution on a single thread of the operating system, which holds the clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use shuttle::thread::Thread;

/// The time per reading of the clock, by which polling loops end.
const READ_NS: u64 = 25;

std::thread_local! {
    static CLOCK: RefCell<Clock> = RefCell::default();
}

#[derive(Default)]
struct Clock {
    now_ns: u64,
    /// The waiting threads, by the end of their wait and a unique number.
    sleepers: BTreeMap<(u64, u64), Thread>,
    last_sleeper: u64,
    timekeeper: Option<Thread>,
    moves: u64,
    is_over: bool,
}

fn with<R>(act: impl FnOnce(&mut Clock) -> R) -> R {
    CLOCK.with(|clock| act(&mut clock.borrow_mut()))
}

/// Sets the clock, before an execution begins.
pub fn restart(now_ns: u64) {
    with(|clock| *clock = Clock { now_ns, ..Clock::default() });
}

/// Returns the time, in nanoseconds.
pub fn now_ns() -> u64 {
    with(|clock| {
        clock.now_ns += READ_NS;
        clock.now_ns
    })
}

/// Returns how often the clock was advanced because nothing else could run, or because the scheduler chose so.
pub fn moves() -> u64 {
    with(|clock| clock.moves)
}

/// Parks the thread until it is unparked or the time `end_ns` has come; may return earlier.
pub fn park_until(end_ns: Option<u64>) {
    let Some(end_ns) = end_ns else { return shuttle::thread::park() };
    let sleeper = shuttle::thread::current();
    let (key, timekeeper) = with(|clock| {
        clock.last_sleeper += 1;
        let key = (end_ns, clock.last_sleeper);
        clock.sleepers.insert(key, sleeper);
        (key, clock.timekeeper.clone())
    });
    timekeeper.inspect(Thread::unpark);
    shuttle::thread::park();
    with(|clock| clock.sleepers.remove(&key));
}

/// The timekeeper: advances the clock until [`stop_time`], and calls `look` before each step.
pub fn keep_time(look: impl Fn()) {
    with(|clock| clock.timekeeper = Some(shuttle::thread::current()));
    while !with(|clock| clock.is_over) {
        // After the last thread that was woken.
        shuttle::thread::yield_now();
        look();
        let next = with(|clock| {
            let ((end_ns, _), thread) = clock.sleepers.pop_first()?;
            if end_ns > clock.now_ns {
                clock.now_ns = end_ns;
                clock.moves += 1;
            }
            Some(thread)
        });
        match next {
            Some(thread) => thread.unpark(),
            None => shuttle::thread::park(),
        }
    }
}

/// Ends the timekeeper.
pub fn stop_time() {
    let timekeeper = with(|clock| {
        clock.is_over = true;
        clock.timekeeper.clone()
    });
    timekeeper.inspect(Thread::unpark);
}

/// `std::time::Instant` by this clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(u64);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(now_ns())
    }

    pub(crate) fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }
}

/// `std::thread` in shuttle's order and by this clock.
pub(crate) mod thread {
    use std::io;
    use std::num::NonZeroUsize;

    pub(crate) use shuttle::thread::{
        Builder, JoinHandle, Thread, ThreadId, current, panicking, park, sleep, yield_now,
    };

    /// Returns the same number on every machine: seeds repeat their schedules.
    #[expect(clippy::unnecessary_wraps, reason = "the signature of `std::thread`")]
    pub(crate) fn available_parallelism() -> io::Result<NonZeroUsize> {
        Ok(NonZeroUsize::MIN.saturating_add(1))
    }
}
