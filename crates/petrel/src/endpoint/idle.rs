//! What an endpoint does between turns that find no work: look again, let others run, or sleep.
//!
//! A message that is awaited comes within microseconds, and a sleep costs tens of them; so an endpoint looks for a
//! while before it sleeps. Who looks has a CPU, and the thread that is to send the message may wait for that very
//! CPU. So the endpoint yields between looks, and learns from the time that a yield takes:
//!
//! | a yield took | then | so |
//! | --- | --- | --- |
//! | less than a switch of threads | no other thread wants the CPU | the next few microseconds belong to looks alone |
//! | longer | others want it, and give it back | every look that finds nothing is followed by a yield |
//! | as long as a slice of time | another thread computes | it sleeps: a thread that wakes is preferred, one that yields is not |

use std::time::Duration;

use super::IdlePolicy;
use crate::time::as_ns;

/// A yield that takes longer has switched threads. Measured on a virtual machine with Linux 6.18: 0.5 µs
/// when no other thread wants the CPU (99.9 % below 0.9 µs), 2.5 µs for two threads that yield to each other.
const SWITCH_NS: u64 = 1_000;

/// Between two yields while no other thread wants the CPU: a yield is then a tenth of the time, and a thread that
/// wants the CPU from now on waits this long.
const ALONE_NS: u64 = 5_000;

/// A yield that takes longer met a thread that computes: Linux gives one 0.7 to 3 ms, and threads that wait for
/// messages give the CPU back in less than a tenth of that.
const CROWDED_NS: u64 = 300_000;

/// For how long the endpoint sleeps instead of yielding then: at first, and at most. Each further such yield
/// doubles it, so that a second has one of them beside a thread that computes without end.
const SLEEPY_NS_MIN: u64 = 10_000_000;
const SLEEPY_NS_MAX: u64 = 1_000_000_000;

const _: () = assert!(SWITCH_NS < ALONE_NS && ALONE_NS < CROWDED_NS && CROWDED_NS < SLEEPY_NS_MIN);

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Look again at once.
    Look,
    /// Look again when others have run.
    Yield,
    /// Sleep until something comes.
    Sleep,
}

/// What an endpoint has seen of its CPU.
#[derive(Debug)]
pub(super) struct Idle {
    policy: IdlePolicy,
    /// When there last was work.
    busy_ns: u64,
    /// When the last yield ended.
    yielded_ns: u64,
    /// Whether others wanted the CPU then.
    is_shared: bool,
    /// Until then it sleeps instead of yielding.
    sleepy_until_ns: u64,
    /// For how long it does so the next time.
    sleepy_ns: u64,
}

impl Idle {
    pub(super) fn new(policy: IdlePolicy, now_ns: u64) -> Self {
        Self {
            policy,
            busy_ns: now_ns,
            yielded_ns: now_ns,
            is_shared: false,
            sleepy_until_ns: 0,
            sleepy_ns: SLEEPY_NS_MIN,
        }
    }

    /// There was work in this turn.
    pub(super) fn note_work(&mut self, now_ns: u64) {
        self.busy_ns = now_ns;
    }

    /// There was none.
    pub(super) fn next(&self, now_ns: u64) -> Rest {
        match self.policy {
            IdlePolicy::Poll => Rest::Look,
            IdlePolicy::Yield => Rest::Yield,
            IdlePolicy::Block => Rest::Sleep,
            IdlePolicy::SpinThenBlock(spin) => self.next_of_spin(spin, now_ns),
        }
    }

    fn next_of_spin(&self, spin: Duration, now_ns: u64) -> Rest {
        if now_ns.saturating_sub(self.busy_ns) >= as_ns(spin) {
            return Rest::Sleep;
        }
        let is_time = now_ns.saturating_sub(self.yielded_ns) >= ALONE_NS;
        match self.is_shared || is_time {
            false => Rest::Look,
            true if now_ns < self.sleepy_until_ns => Rest::Sleep,
            true => Rest::Yield,
        }
    }

    /// Whether the time that a yield takes matters.
    pub(super) fn learns(&self) -> bool {
        matches!(self.policy, IdlePolicy::SpinThenBlock(_))
    }

    /// The thread has yielded.
    pub(super) fn note_yield(&mut self, begin_ns: u64, end_ns: u64) {
        let took_ns = end_ns.saturating_sub(begin_ns);
        self.yielded_ns = end_ns;
        self.is_shared = took_ns >= SWITCH_NS;
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
        for (policy, rest) in [
            (IdlePolicy::Poll, Rest::Look),
            (IdlePolicy::Yield, Rest::Yield),
            (IdlePolicy::Block, Rest::Sleep),
        ] {
            let mut idle = Idle::new(policy, 0);
            idle.note_yield(0, CROWDED_NS);
            assert_eq!((idle.next(0), idle.next(1 << 40)), (rest, rest));
            assert!(!idle.learns());
        }
    }

    #[test]
    fn next__sleeps_when_there_was_no_work_for_so_long() {
        let mut idle = spinning();
        idle.note_work(1_000);
        assert_ne!(idle.next(100_999), Rest::Sleep);
        assert_eq!(idle.next(101_000), Rest::Sleep);
        idle.note_work(101_000);
        assert_ne!(idle.next(101_000), Rest::Sleep);
    }

    #[test]
    fn next__alone_yields_now_and_then() {
        let mut idle = spinning();
        assert_eq!(idle.next(ALONE_NS - 1), Rest::Look);
        assert_eq!(idle.next(ALONE_NS), Rest::Yield);
        idle.note_yield(ALONE_NS, ALONE_NS + 500);
        assert_eq!(idle.next(ALONE_NS + 501), Rest::Look);
        assert_eq!(idle.next(2 * ALONE_NS + 500), Rest::Yield);
    }

    #[test]
    fn next__beside_others_yields_after_each_look() {
        let mut idle = spinning();
        idle.note_yield(6_000, 6_000 + SWITCH_NS);
        assert_eq!(idle.next(7_000), Rest::Yield);
        // The others have gone.
        idle.note_yield(8_000, 8_400);
        assert_eq!(idle.next(8_500), Rest::Look);
    }

    #[test]
    fn next__beside_a_thread_that_computes_sleeps_longer_and_longer() {
        let mut idle = spinning();
        let mut now_ns = 0;
        for times in 0..10 {
            now_ns += CROWDED_NS;
            idle.note_yield(now_ns - CROWDED_NS, now_ns);
            idle.note_work(now_ns);
            let sleepy_ns = (SLEEPY_NS_MIN << times).min(SLEEPY_NS_MAX);
            assert_eq!(idle.next(now_ns), Rest::Sleep);
            idle.note_work(now_ns + sleepy_ns);
            assert_eq!(idle.next(now_ns + sleepy_ns - 1), Rest::Sleep);
            assert_eq!(idle.next(now_ns + sleepy_ns), Rest::Yield);
            now_ns += sleepy_ns;
        }
        // It has gone: the next one is a new case.
        idle.note_yield(now_ns, now_ns + 2 * SWITCH_NS);
        idle.note_work(now_ns);
        assert_eq!(idle.next(now_ns), Rest::Yield);
        idle.note_yield(now_ns, now_ns + CROWDED_NS);
        idle.note_work(now_ns + CROWDED_NS + SLEEPY_NS_MIN);
        assert_eq!(idle.next(now_ns + CROWDED_NS + SLEEPY_NS_MIN), Rest::Yield);
    }
}
