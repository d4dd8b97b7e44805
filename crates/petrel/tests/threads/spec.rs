//! The parameters drawn from a seed.

use std::time::Duration;

use petrel::endpoint::IdlePolicy;
use petrel::overload::Shedding;

use crate::rng::Rng;

/// How the worker pool ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolEnd {
    /// `Workers::shutdown`: waiting requests are executed.
    Shutdown,
    /// Waiting requests are refused.
    Drop,
    /// `Workers::stop`, and `Drop` when nothing is left.
    StopThenDrop,
}

/// A world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) seed: u64,
    /// No call has a deadline, and no thread waits for a time: the clock must stand still, since a thread can always
    /// run.
    pub(crate) is_untimed: bool,
    /// The clock may advance while threads can run.
    pub(crate) clock_may_jump: bool,
    pub(crate) callers: usize,
    /// Actions per caller.
    pub(crate) acts: usize,
    pub(crate) workers: usize,
    pub(crate) queue_requests: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) shedding: Shedding,
    pub(crate) worker_idle: Option<IdlePolicy>,
    pub(crate) endpoint_idle: IdlePolicy,
    pub(crate) client_calls_max: usize,
    /// After this number of yields of another thread, the endpoint is stopped and dropped with calls outstanding.
    pub(crate) server_end: Option<usize>,
    pub(crate) client_end: Option<usize>,
    pub(crate) pool_end: PoolEnd,
    /// The pool ends then, not after all callers.
    pub(crate) pool_ends_early: Option<usize>,
    /// A handler may drop its own pool.
    pub(crate) may_drop_own_pool: bool,
}

impl Spec {
    pub(crate) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let is_untimed = rng.once_in(2);
        let clock_may_jump = !is_untimed && rng.once_in(2);
        // A thread that never blocks keeps a clock that does not jump from advancing.
        let may_spin = is_untimed || clock_may_jump;
        Self {
            seed,
            is_untimed,
            clock_may_jump,
            callers: 1 + rng.below(3),
            acts: 1 + rng.below(4),
            workers: 1 + rng.below(3),
            queue_requests: rng.pick(&[1, 2, 3, 8, 1_024]),
            queue_bytes: rng.pick(&[40, 300, 5_000, 1 << 20]),
            shedding: draw_shedding(rng),
            worker_idle: match rng.below(8) {
                0 => None,
                1 => Some(IdlePolicy::SpinThenBlock(Duration::from_nanos(500))),
                2 if may_spin => Some(IdlePolicy::Yield),
                3 if may_spin => Some(IdlePolicy::Poll),
                _ => Some(IdlePolicy::Block),
            },
            endpoint_idle: match rng.below(8) {
                0 => IdlePolicy::SpinThenBlock(Duration::from_micros(10)),
                1 if may_spin => IdlePolicy::Yield,
                _ => IdlePolicy::Block,
            },
            client_calls_max: rng.pick(&[1, 2, 3, 64]),
            server_end: draw_end(rng, 8),
            client_end: draw_end(rng, 8),
            pool_end: rng.pick(&[PoolEnd::Shutdown, PoolEnd::Drop, PoolEnd::StopThenDrop]),
            pool_ends_early: draw_end(rng, 6),
            may_drop_own_pool: rng.once_in(8),
        }
    }

    /// Returns true if an object needed by calls may end before them.
    pub(crate) fn has_ends(&self) -> bool {
        self.has_pool_end() || self.server_end.is_some() || self.client_end.is_some()
    }

    /// Returns true if every idle thread sleeps, and time passes only then.
    pub(crate) fn sleeps_when_idle(&self) -> bool {
        let spins = |idle| matches!(idle, IdlePolicy::Poll | IdlePolicy::Yield);
        !self.clock_may_jump && !spins(self.endpoint_idle) && !self.worker_idle.is_some_and(spins)
    }

    pub(crate) fn has_pool_end(&self) -> bool {
        self.pool_ends_early.is_some() || self.may_drop_own_pool
    }
}

fn draw_end(rng: &mut Rng, of: usize) -> Option<usize> {
    let yields = rng.pick(&[0, 5, 20, 60, 200]);
    rng.once_in(of).then(|| rng.below(yields + 1))
}

/// With 25 ns per reading of this clock, a request waits for some hundreds of nanoseconds.
fn draw_shedding(rng: &mut Rng) -> Shedding {
    match rng.below(8) {
        0..3 => Shedding::ExpectedWait { target: Duration::from_nanos(200), services: 0 },
        3 => Shedding::default(),
        _ => Shedding::LimitOnly,
    }
}
