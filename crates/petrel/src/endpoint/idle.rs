//! How an endpoint waits between turns without work: poll again, yield, or sleep.
//!
//! An awaited message arrives within microseconds, and a sleep costs tens of them: an endpoint therefore polls for a
//! while before it sleeps. But polling occupies a CPU, for which the sender of the message may be waiting. The endpoint
//! therefore yields between polls, and learns from the duration of a yield:
//!
//! | duration of a yield | meaning | consequence |
//! | --- | --- | --- |
//! | less than a switch of threads | no other thread wants the CPU | it only polls for a while: the more such yields in a row, the longer |
//! | longer | others want it, and return it | a yield follows every poll without result |
//! | as long as a time slice | another thread computes | it sleeps: the scheduler prefers a waking thread to a yielding one |
//!
//! A thread that the endpoint itself has woken, by the response to the only outstanding call or by a request for a worker, may wait for this
//! CPU: a yield follows at once.

use std::time::Duration;

use super::config::IdlePolicy;
use crate::time::as_ns;

/// A longer yield has switched threads. Measured on a virtual machine with Linux 6.18: 0.5 µs when no other thread
/// wants the CPU (99.9 % below 0.9 µs), 2.5 µs for two threads that yield to one another.
const SWITCH_NS: u64 = 1_000;

/// The time between two yields while no other thread wants the CPU, at first: yields then take a tenth of the time, and a new
/// thread waits for 5 µs.
const ALONE_NS_MIN: u64 = 5_000;

/// The time between two yields after many yields without a switch. A yield takes as long as a call over shared memory: with a
/// yield in every 5 µs each tenth call takes twice its time.
const ALONE_NS_MAX: u64 = 20_000;

/// Yields without a switch until the time between yields is doubled. A thread that wants the CPU more than once in 0.1 ms keeps
/// the time at its least.
const QUICK_YIELDS: u32 = 24;

/// A longer yield met a computing thread: Linux runs one for 0.7 to 3 ms, while threads that wait for messages return
/// the CPU in less than a tenth of that.
const CROWDED_NS: u64 = 300_000;

/// After a yield among computing threads, the endpoint sleeps instead of yielding, for this time at first. Every
/// further long yield doubles the time, up to the maximum: beside a computing thread there is a long yield per second.
const SLEEPY_NS_MIN: u64 = 10_000_000;
const SLEEPY_NS_MAX: u64 = 1_000_000_000;

const _: () = assert!(SWITCH_NS < ALONE_NS_MIN && ALONE_NS_MIN < ALONE_NS_MAX);
const _: () = assert!(ALONE_NS_MAX < CROWDED_NS && CROWDED_NS < SLEEPY_NS_MIN);

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleAction {
    /// Poll again at once.
    Poll,
    /// Poll again after a yield.
    Yield,
    /// Sleep until the next event.
    Sleep,
}

/// The endpoint's observations of its CPU.
#[derive(Debug)]
pub(super) struct Idle {
    policy: IdlePolicy,
    /// When there last was work.
    busy_ns: u64,
    /// When the last yield ended.
    yielded_ns: u64,
    /// Whether other threads wanted the CPU at the last yield, or a thread was woken since.
    is_shared: bool,
    /// The time between two yields while no other thread wants the CPU.
    alone_ns: u64,
    /// Yields without a switch since the last change of `alone_ns`.
    quick_yields: u32,
    /// Until then it sleeps instead of yielding.
    sleepy_until_ns: u64,
    /// The length of the next such time.
    sleepy_ns: u64,
}

impl Idle {
    pub(super) fn new(policy: IdlePolicy, now_ns: u64) -> Self {
        Self {
            policy,
            busy_ns: now_ns,
            yielded_ns: now_ns,
            is_shared: false,
            alone_ns: ALONE_NS_MIN,
            quick_yields: 0,
            sleepy_until_ns: 0,
            sleepy_ns: SLEEPY_NS_MIN,
        }
    }

    /// Returns how long the endpoint polls without work, instead of sleeping.
    pub(super) fn spin(&self) -> Duration {
        match self.policy {
            IdlePolicy::Poll | IdlePolicy::Yield => Duration::MAX,
            IdlePolicy::SpinThenBlock(spin) => spin,
            IdlePolicy::Block => Duration::ZERO,
        }
    }

    /// Returns true if another thread computes on this CPU, as far as is known: the endpoint sleeps instead of yielding.
    pub(super) fn is_crowded(&self, now_ns: u64) -> bool {
        now_ns < self.sleepy_until_ns
    }

    /// Records that the turn had work.
    pub(super) fn on_work(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
    }

    /// Returns the next action after a turn without work.
    pub(super) fn next(&self, now_ns: u64) -> IdleAction {
        match self.policy {
            IdlePolicy::Poll => IdleAction::Poll,
            IdlePolicy::Yield => IdleAction::Yield,
            IdlePolicy::Block => IdleAction::Sleep,
            IdlePolicy::SpinThenBlock(spin) => self.next_of_spin(spin, now_ns),
        }
    }

    fn next_of_spin(&self, spin: Duration, now_ns: u64) -> IdleAction {
        if now_ns.saturating_sub(self.busy_ns) >= as_ns(spin) {
            return IdleAction::Sleep;
        }
        let is_time = now_ns.saturating_sub(self.yielded_ns) >= self.alone_ns;
        match self.is_shared || is_time {
            false => IdleAction::Poll,
            true if self.is_crowded(now_ns) => IdleAction::Sleep,
            true => IdleAction::Yield,
        }
    }

    /// Returns true if the duration of a yield matters.
    pub(super) fn learns(&self) -> bool {
        matches!(self.policy, IdlePolicy::SpinThenBlock(_))
    }

    /// Records that the endpoint has woken another thread, which may wait for this CPU.
    pub(super) fn on_wake(&mut self) {
        (self.is_shared, self.alone_ns, self.quick_yields) = (true, ALONE_NS_MIN, 0);
    }

    /// Records a yield of the thread.
    pub(super) fn on_yield(&mut self, begin_ns: u64, end_ns: u64) {
        let took_ns = end_ns.saturating_sub(begin_ns);
        self.yielded_ns = end_ns;
        self.is_shared = took_ns >= SWITCH_NS;
        self.quick_yields = if self.is_shared { 0 } else { self.quick_yields + 1 };
        if self.is_shared {
            self.alone_ns = ALONE_NS_MIN;
        } else if self.quick_yields == QUICK_YIELDS {
            (self.quick_yields, self.alone_ns) = (0, (self.alone_ns * 2).min(ALONE_NS_MAX));
        }
        assert!(
            (SLEEPY_NS_MIN..=SLEEPY_NS_MAX).contains(&self.sleepy_ns),
            "the time without yielding is within its bounds"
        );
        if took_ns >= CROWDED_NS {
            self.sleepy_until_ns = end_ns + self.sleepy_ns;
            self.sleepy_ns = (self.sleepy_ns * 2).min(SLEEPY_NS_MAX);
        } else {
            self.sleepy_ns = SLEEPY_NS_MIN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(100);

    fn spinning() -> Idle {
        Idle::new(IdlePolicy::SpinThenBlock(SPIN), 0)
    }

    #[test]
    fn next__of_a_policy_without_a_limit_is_always_the_same() {
        for (policy, action) in [
            (IdlePolicy::Poll, IdleAction::Poll),
            (IdlePolicy::Yield, IdleAction::Yield),
            (IdlePolicy::Block, IdleAction::Sleep),
        ] {
            let mut idle = Idle::new(policy, 0);
            idle.on_yield(0, CROWDED_NS);
            assert_eq!((idle.next(0), idle.next(1 << 40)), (action, action));
            assert!(!idle.learns());
        }
    }

    #[test]
    fn next__sleeps_when_there_was_no_work_for_so_long() {
        let mut idle = spinning();
        idle.on_work(1_000);
        assert_ne!(idle.next(100_999), IdleAction::Sleep);
        assert_eq!(idle.next(101_000), IdleAction::Sleep);
        idle.on_work(101_000);
        assert_ne!(idle.next(101_000), IdleAction::Sleep);
    }

    #[test]
    fn next__alone_yields_now_and_then() {
        let mut idle = spinning();
        let mut yielded_ns = 0;
        for between_ns in [5_000, 10_000, 20_000, 20_000] {
            for _ in 0..QUICK_YIELDS {
                idle.on_work(yielded_ns);
                assert_eq!(idle.next(yielded_ns + between_ns - 1), IdleAction::Poll);
                assert_eq!(idle.next(yielded_ns + between_ns), IdleAction::Yield);
                yielded_ns += between_ns + 500;
                idle.on_yield(yielded_ns - 500, yielded_ns);
            }
        }
        // Another thread comes.
        idle.on_yield(yielded_ns, yielded_ns + SWITCH_NS);
        idle.on_yield(yielded_ns + SWITCH_NS, yielded_ns + SWITCH_NS + 500);
        yielded_ns += SWITCH_NS + 500;
        assert_eq!(idle.next(yielded_ns + ALONE_NS_MIN - 1), IdleAction::Poll);
        assert_eq!(idle.next(yielded_ns + ALONE_NS_MIN), IdleAction::Yield);
    }

    #[test]
    fn next__yields_once_to_a_thread_that_was_woken() {
        let mut idle = spinning();
        assert_eq!(idle.next(100), IdleAction::Poll);
        idle.on_wake();
        assert_eq!(idle.next(200), IdleAction::Yield);
        idle.on_yield(200, 700);
        assert_eq!(idle.next(800), IdleAction::Poll);
    }

    #[test]
    fn next__beside_others_yields_after_each_poll() {
        let mut idle = spinning();
        idle.on_yield(6_000, 6_000 + SWITCH_NS);
        assert_eq!(idle.next(7_000), IdleAction::Yield);
        // The others have gone.
        idle.on_yield(8_000, 8_400);
        assert_eq!(idle.next(8_500), IdleAction::Poll);
    }

    #[test]
    fn next__beside_a_thread_that_computes_sleeps_longer_and_longer() {
        let mut idle = spinning();
        let mut now_ns = 0;
        for times in 0..10 {
            now_ns += CROWDED_NS;
            idle.on_yield(now_ns - CROWDED_NS, now_ns);
            idle.on_work(now_ns);
            let sleepy_ns = (SLEEPY_NS_MIN << times).min(SLEEPY_NS_MAX);
            assert_eq!(idle.next(now_ns), IdleAction::Sleep);
            idle.on_work(now_ns + sleepy_ns);
            assert_eq!(idle.next(now_ns + sleepy_ns - 1), IdleAction::Sleep);
            assert_eq!(idle.next(now_ns + sleepy_ns), IdleAction::Yield);
            now_ns += sleepy_ns;
        }
        // The computing thread has gone: the next one starts anew.
        idle.on_yield(now_ns, now_ns + 2 * SWITCH_NS);
        idle.on_work(now_ns);
        assert_eq!(idle.next(now_ns), IdleAction::Yield);
        idle.on_yield(now_ns, now_ns + CROWDED_NS);
        idle.on_work(now_ns + CROWDED_NS + SLEEPY_NS_MIN);
        assert_eq!(idle.next(now_ns + CROWDED_NS + SLEEPY_NS_MIN), IdleAction::Yield);
    }

    panics! {
        on_yield__with_a_time_beyond_its_bounds:
            "the time without yielding is within its bounds" => {
            let mut idle = spinning();
            idle.sleepy_ns = SLEEPY_NS_MAX + 1;
            idle.on_yield(0, CROWDED_NS);
        };
    }
}
