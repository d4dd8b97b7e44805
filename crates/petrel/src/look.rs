//! A short look for the end of a wait before a thread sleeps.
//!
//! A thread that sleeps, and is woken, costs two switches of threads and 5 to 10 µs, where a call over shared memory takes less than
//! a microsecond. A waiting thread therefore looks for a few microseconds first, and yields between two looks: the endpoint of the
//! response may share the thread's CPU. One thread of the process looks at a time. A thread with longer waits looks less and less often.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::sync::now_ns;

/// The longest look: about the cost of a sleep and a wake-up.
pub(crate) const LOOK_NS: u64 = 20_000;

/// A longer yield met a thread that computes, as in the event loop: the looks end.
const CROWDED_NS: u64 = 300_000;

/// The most waits without a look after a look in vain.
const SKIPPED_MAX: u32 = 64;

static IS_LOOKING: AtomicBool = AtomicBool::new(false);

/// A thread's experience with its waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worth {
    /// Waits without a look after the next look in vain.
    penalty: u32,
    /// Waits without a look that are left.
    skips: u32,
}

impl Worth {
    const NEW: Self = Self { penalty: 1, skips: 0 };

    fn looks(&mut self) -> bool {
        let looks = self.skips == 0;
        self.skips = self.skips.saturating_sub(1);
        looks
    }

    fn record(&mut self, was_worth_it: bool, met_crowd: bool) {
        *self = match was_worth_it {
            true => Self::NEW,
            false => {
                let skips = if met_crowd { SKIPPED_MAX } else { self.penalty };
                Self { penalty: (2 * skips).min(SKIPPED_MAX), skips }
            }
        };
    }
}

thread_local! {
    static WORTH: Cell<Worth> = const { Cell::new(Worth::NEW) };
}

/// Returns true if a wait begins with a look.
pub(crate) fn is_worth_it() -> bool {
    WORTH.with(|cell| {
        let mut worth = cell.get();
        let looks = worth.looks();
        cell.set(worth);
        looks
    })
}

/// Records the end of a look that another function has done.
pub(crate) fn record(was_worth_it: bool) {
    WORTH.with(|cell| {
        let mut worth = cell.get();
        worth.record(was_worth_it, false);
        cell.set(worth);
    })
}

/// Looks for the end of a wait, unless the thread's last looks were in vain.
pub(crate) fn until(is_over: impl Fn() -> bool) {
    // The model checker's threads have no time.
    if cfg!(shuttle) {
        return;
    }
    WORTH.with(|cell| {
        let mut worth = cell.get();
        let looks = worth.looks() && !IS_LOOKING.swap(true, Ordering::Relaxed);
        if looks {
            let (was_worth_it, met_crowd) = look(&is_over);
            IS_LOOKING.store(false, Ordering::Relaxed);
            worth.record(was_worth_it, met_crowd);
        }
        cell.set(worth);
    })
}

/// Returns whether the wait is over, and whether another thread has taken the CPU for long.
fn look(is_over: &impl Fn() -> bool) -> (bool, bool) {
    let begin_ns = now_ns();
    let mut at_ns = begin_ns;
    loop {
        if is_over() {
            return (true, false);
        }
        thread::yield_now();
        let former_ns = std::mem::replace(&mut at_ns, now_ns());
        if at_ns.saturating_sub(former_ns) >= CROWDED_NS {
            return (is_over(), true);
        }
        if at_ns.saturating_sub(begin_ns) >= LOOK_NS {
            return (is_over(), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worth__of_looks_in_vain_halves_their_number_and_one_that_is_not_ends_that() {
        let mut worth = Worth::NEW;
        for skipped in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!(worth.looks());
            worth.record(false, false);
            assert_eq!(worth.skips, skipped);
            assert!((0..skipped).all(|_| !worth.looks()));
        }
        assert!(worth.looks());
        worth.record(true, false);
        assert_eq!(worth, Worth::NEW);
        worth.record(false, true);
        assert_eq!(worth.skips, SKIPPED_MAX);
    }

    /// Whether a look ends early depends on the machine's other threads.
    #[test]
    fn look__sees_the_end_and_gives_up() {
        assert_eq!(look(&|| true), (true, false));
        let looks = Cell::new(0);
        let (is_over, met_crowd) = look(&|| looks.replace(looks.get() + 1) > 0);
        assert!((is_over, looks.get()) == (true, 2) || met_crowd);
        assert!(!look(&|| false).0);
    }
}
