//! The number of calls a client has outstanding to a server.

use std::time::Duration;

use crate::time::as_ns;

/// Bounds of a [`ConcurrencyLimit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimitConfig {
    /// Initial limit of outstanding calls; `u32::MAX`, the default, is none: the first refusal sets a limit.
    pub initial: u32,
    /// The most calls outstanding; `u32::MAX` by default.
    pub max: u32,
    /// The longest pause between two calls, when even one outstanding call is too much: 20 ms.
    pub pause_max: Duration,
}

impl Default for ConcurrencyLimitConfig {
    /// Pauses of at most 20 ms let a client recover within some tenths of a second from any limit.
    fn default() -> Self {
        Self { initial: u32::MAX, max: u32::MAX, pause_max: Duration::from_millis(20) }
    }
}

/// Limits the calls that a client has outstanding to one server by the server's refusals: additive increase,
/// multiplicative decrease, as TCP's window (Chiu and Jain 1989).
///
/// - There is no limit until the server refuses a call: calls may wait for an event by the thousand, and a long wait is no sign of
///   overload. The first refusal sets the limit to half of the most calls that were outstanding.
/// - A successful call raises the limit if the limit was reached when the call began: by one per round trip of
///   successes only. A client that does not use its whole limit does not raise it.
/// - After a second without a refusal, every success of a full limit adds a call, as in TCP's slow start. And if no call has ended for a
///   second, all calls wait for an event: the limit doubles every second until a call ends.
/// - A refused call halves the limit, but only if the call began after the last decrease: calls of one round trip carry
///   the same information. With a factor of 0.7 to 0.9 instead of a half, a single worker with a hundred clients did 3
///   to 5 % more work. But refusals were two to six times as many, and goodput 9 to 38 % less where refusals cost as
///   much as the work (`docs/overload.md`).
/// - The limit may fall below one: a quarter means one call in four round trips. Otherwise, as many clients as the
///   server has places would keep it refusing, each as fast as refusals return. Below one, a success adds a quarter.
///   With an eighth, clients of a server that had stalled for some 30 ms stayed away for seconds; with a half, refusals
///   increased.
///
/// Every [`Permit`] is returned to exactly one of [`succeeded`](Self::succeeded), [`refused`](Self::refused),
/// [`timed_out`](Self::timed_out) and [`ended`](Self::ended).
///
/// ```
/// use petrel::overload::{ConcurrencyLimit, ConcurrencyLimitConfig};
///
/// let config = ConcurrencyLimitConfig { initial: 2, ..Default::default() };
/// let mut limit = ConcurrencyLimit::new(config);
/// let first = limit.try_start(0).expect("the first of two");
/// let second = limit.try_start(0).expect("the second");
/// assert!(limit.try_start(0).is_none());
/// limit.succeeded(first, 5_000);
/// limit.refused(second, 5_000);
/// assert_eq!(limit.limit(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct ConcurrencyLimit {
    /// In units of 1/[`ONE`].
    limit: u64,
    limit_max: u64,
    pause_max_ns: u64,
    outstanding: u32,
    /// The most calls outstanding since the last decrease.
    peak: u32,
    /// Counts decreases: a call of an earlier epoch began before the last decrease.
    epoch: u32,
    /// Below a limit of one, no call starts before this time.
    resumes_ns: u64,
    /// The time of the last refusal.
    refused_ns: u64,
    /// The time of the last begin or end of a call, or of the last doubling.
    moved_ns: u64,
}

/// A call in the unit of the limit, which counts fractions of calls.
const ONE: u64 = 1 << 16;

/// The fraction of a limit below one that a success adds.
const GROWTH_BELOW_ONE: u64 = 4;

/// After this time without a refusal, or without any end of a call, the limit grows faster. A second is fifty of the longest pauses: a
/// client of an overloaded server makes calls in it.
const CALM_NS: u64 = 1_000_000_000;

/// After this time without a refusal, a client has no limit, as in the beginning.
const LIFTED_NS: u64 = 10 * CALM_NS;

/// One call in 64 round trips: a server copes with 64 times as many clients as it has places for calls.
const LIMIT_MIN: u64 = ONE / 64;

/// The right to have one call outstanding.
#[derive(Debug)]
#[must_use = "a call counts as outstanding until its permit is returned"]
pub struct Permit {
    began_ns: u64,
    epoch: u32,
    /// Whether the limit was reached with this call.
    was_full: bool,
}

impl ConcurrencyLimit {
    /// Creates a limit without outstanding calls.
    pub fn new(config: ConcurrencyLimitConfig) -> Self {
        let limit_max = u64::from(config.max.max(1)) * ONE;
        let limit = (u64::from(config.initial) * ONE).clamp(ONE, limit_max);
        let pause_max_ns = as_ns(config.pause_max);
        Self {
            limit,
            limit_max,
            pause_max_ns,
            outstanding: 0,
            peak: 0,
            epoch: 0,
            resumes_ns: 0,
            refused_ns: 0,
            moved_ns: 0,
        }
    }

    /// Creates a limit after the first refusal of a server, with as many calls outstanding. They have no permits.
    pub(crate) fn after_refusal(
        config: ConcurrencyLimitConfig,
        outstanding: u32,
        now_ns: u64,
    ) -> Self {
        let initial = (outstanding / 2).max(1);
        let mut limit = Self::new(ConcurrencyLimitConfig { initial, ..config });
        limit.refused_ns = now_ns;
        limit
    }

    /// Lifts the limit after [`LIFTED_NS`] without a refusal, if it is not reached: the server needs none. Returns true if the limit is
    /// lifted, and no call has a permit.
    pub(crate) fn try_lift(&mut self, now_ns: u64) -> bool {
        let is_full = self.outstanding >= self.limit();
        let is_needless = !is_full && now_ns.saturating_sub(self.refused_ns) >= LIFTED_NS;
        if is_needless {
            self.limit = self.limit_max;
        }
        is_needless && self.outstanding == 0
    }

    /// Returns a permit to make a call, if possible now. Otherwise try again after an outstanding call has ended, and
    /// not before [`next_ns`](Self::next_ns).
    pub fn try_start(&mut self, now_ns: u64) -> Option<Permit> {
        if !self.may_start(now_ns) {
            self.grow_while_all_wait(now_ns);
            if !self.may_start(now_ns) {
                return None;
            }
        }
        self.outstanding += 1;
        self.peak = self.peak.max(self.outstanding);
        self.moved_ns = now_ns;
        let was_full = self.outstanding >= self.limit();
        Some(Permit { began_ns: now_ns, epoch: self.epoch, was_full })
    }

    /// Returns true if a call may be made now.
    pub fn may_start(&self, now_ns: u64) -> bool {
        self.outstanding < self.limit() && self.resumes_ns().is_none_or(|at| now_ns >= at)
    }

    /// Records a response of the server.
    pub fn succeeded(&mut self, permit: Permit, now_ns: u64) {
        // A success carries no information about a limit lowered after the call began.
        if permit.was_full && permit.epoch == self.epoch {
            let is_calm = now_ns.saturating_sub(self.refused_ns) >= CALM_NS;
            let more = match self.limit {
                below_one @ ..ONE => below_one / GROWTH_BELOW_ONE,
                _ if is_calm => ONE,
                limit => (ONE * ONE / limit).max(1),
            };
            self.limit = (self.limit + more).min(self.limit_max);
        }
        self.end(&permit, now_ns);
    }

    /// Records that the server did not execute the call because of overload: RESOURCE_EXHAUSTED, or DEADLINE_EXCEEDED
    /// if the deadline passed before the handler ran.
    pub fn refused(&mut self, permit: Permit, now_ns: u64) {
        self.refused_ns = now_ns;
        self.decrease(&permit, LIMIT_MIN);
        self.end(&permit, now_ns);
    }

    /// Records that no response came in time. If the limit was reached when the call began, that is a sign of overload too, but no
    /// reason to pause. The call has kept its place until the deadline, which is pause enough, and clients should not stay away from a
    /// server that stalled once. Below the limit, a long wait says nothing of the server's load.
    pub fn timed_out(&mut self, permit: Permit, now_ns: u64) {
        if permit.was_full {
            self.decrease(&permit, ONE.min(self.limit));
        }
        self.end(&permit, now_ns);
    }

    /// Records an end that carries no information about the server's load.
    pub fn ended(&mut self, permit: Permit, now_ns: u64) {
        self.end(&permit, now_ns);
    }

    /// Returns the limit of outstanding calls, at least one.
    pub fn limit(&self) -> u32 {
        // The limit is at most `limit_max`, which came from a u32.
        (self.limit / ONE).max(1) as u32
    }

    /// Returns the number of outstanding calls.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Returns the earliest time of the next call, if a pause is needed.
    pub fn resumes_ns(&self) -> Option<u64> {
        (self.limit < ONE).then_some(self.resumes_ns)
    }

    /// Returns when a further call may be made, though none ends before.
    pub fn next_ns(&self) -> Option<u64> {
        let is_full = self.outstanding >= self.limit();
        let grows_ns = is_full.then(|| self.moved_ns.saturating_add(CALM_NS));
        grows_ns.or_else(|| self.resumes_ns())
    }

    /// Doubles the limit if it is reached and no call has ended for long.
    #[cold]
    fn grow_while_all_wait(&mut self, now_ns: u64) {
        let is_full = self.outstanding >= self.limit();
        if is_full && now_ns >= self.moved_ns.saturating_add(CALM_NS) {
            self.limit = (self.limit.max(ONE) * 2).min(self.limit_max);
            self.moved_ns = now_ns;
        }
    }

    /// Halves the limit, or the used part of the limit, once for all calls begun since the last decrease.
    fn decrease(&mut self, permit: &Permit, least: u64) {
        if permit.epoch == self.epoch {
            self.epoch = self.epoch.wrapping_add(1);
            let used = u64::from(self.peak) * ONE;
            self.peak = self.outstanding;
            self.limit = (self.limit.min(used) / 2).max(least);
        }
    }

    /// Ends a call, and sets the pause before the next one if the limit is below one.
    fn end(&mut self, permit: &Permit, now_ns: u64) {
        assert!(self.outstanding > 0, "each permit goes back once");
        self.outstanding -= 1;
        self.moved_ns = now_ns;
        assert!(
            (LIMIT_MIN..=self.limit_max).contains(&self.limit),
            "a limit is between the least and the most calls"
        );
        if self.limit >= ONE {
            return;
        }
        // A limit below one allows a call in 1 / limit round trips. They count from the begin of the last call, which took one.
        let round_trip_ns = now_ns.saturating_sub(permit.began_ns);
        let round_trips_ns = u128::from(round_trip_ns) * u128::from(ONE) / u128::from(self.limit);
        let pause_ns = round_trips_ns.saturating_sub(u128::from(round_trip_ns));
        let pause_ns = u64::try_from(pause_ns).unwrap_or(u64::MAX).min(self.pause_max_ns);
        self.resumes_ns = now_ns.saturating_add(pause_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const RTT_NS: u64 = 10_000;

    fn limit_of(initial: u32) -> ConcurrencyLimit {
        ConcurrencyLimit::new(ConcurrencyLimitConfig { initial, ..Default::default() })
    }

    /// Starts as many calls as possible at once.
    fn start_all(limit: &mut ConcurrencyLimit, now_ns: u64) -> Vec<Permit> {
        std::iter::from_fn(|| limit.try_start(now_ns)).collect()
    }

    /// Runs a round trip per entry, in which all calls end accordingly.
    fn round_trips(limit: &mut ConcurrencyLimit, now_ns: &mut u64, succeed: &[bool]) {
        for &succeeds in succeed {
            *now_ns = (*now_ns).max(limit.resumes_ns().unwrap_or(0));
            let permits = start_all(limit, *now_ns);
            *now_ns += RTT_NS;
            let end =
                if succeeds { ConcurrencyLimit::succeeded } else { ConcurrencyLimit::refused };
            permits.into_iter().for_each(|permit| end(limit, permit, *now_ns));
        }
    }

    #[test]
    fn succeeded__raises_a_full_limit_only() {
        let mut limit = limit_of(4);
        for _ in 0..1_000 {
            let permit = limit.try_start(0).unwrap();
            limit.succeeded(permit, RTT_NS);
        }
        assert_eq!(limit.limit(), 4, "one at a time");
        let mut now_ns = 0;
        // The last of each round trip's calls fills the limit.
        round_trips(&mut limit, &mut now_ns, &[true; 4]);
        assert_eq!(limit.limit(), 4);
        round_trips(&mut limit, &mut now_ns, &[true; 1]);
        assert_eq!(limit.limit(), 5);
        let permits = start_all(&mut limit, now_ns);
        assert_eq!(permits.len(), 5);
        permits.into_iter().for_each(|permit| limit.ended(permit, now_ns));
        assert_eq!((limit.outstanding(), limit.limit()), (0, 5), "nothing was learned");
    }

    /// If the limit is too large for the increment's resolution, a success still adds something.
    #[test]
    fn succeeded__raises_any_full_limit() {
        for calls in [1, 2, 3, 1 << 16, 1 << 17] {
            let config =
                ConcurrencyLimitConfig { initial: calls, max: u32::MAX, ..Default::default() };
            let mut limit = ConcurrencyLimit::new(config);
            let last = start_all(&mut limit, 0).pop().expect("a call");
            let before = limit.limit;
            limit.succeeded(last, RTT_NS);
            let added = (ONE / u64::from(calls)).max(1);
            assert_eq!(limit.limit - before, added, "{calls} calls");
        }
    }

    #[test]
    fn default__limits_nothing_until_a_refusal() {
        let mut limit = ConcurrencyLimit::new(ConcurrencyLimitConfig::default());
        let mut permits: Vec<_> =
            (0..5_000).map(|_| limit.try_start(0).expect("no limit")).collect();
        // Long polls that end by their deadlines, or as they should.
        permits.drain(..2_000).for_each(|permit| limit.timed_out(permit, 9 * CALM_NS));
        permits.drain(..1_000).for_each(|permit| limit.succeeded(permit, 9 * CALM_NS));
        assert_eq!(limit.limit(), u32::MAX);
        limit.refused(permits.pop().expect("a call"), 9 * CALM_NS);
        assert_eq!(limit.limit(), 2_500, "half of the most");
        permits.into_iter().for_each(|permit| limit.refused(permit, 9 * CALM_NS));
        assert_eq!(limit.limit(), 2_500, "once");
    }

    /// Calls that wait for an event hold a limit that a refusal has set, though the server is idle since.
    #[test]
    fn try_start__where_all_calls_wait_for_an_event() {
        let mut limit = limit_of(2);
        round_trips(&mut limit, &mut 0, &[false]);
        let mut now_ns = 5 * CALM_NS;
        let mut waiting = start_all(&mut limit, now_ns);
        assert_eq!(waiting.len(), 1);
        for doubled in [2, 4, 8, 16] {
            let next_ns = limit.next_ns().expect("it is full");
            assert!(limit.try_start(next_ns - 1).is_none());
            assert!(next_ns <= now_ns + CALM_NS);
            now_ns = next_ns;
            waiting.extend(start_all(&mut limit, now_ns));
            assert_eq!(waiting.len(), doubled);
        }
        // An ended call shows progress of the server.
        limit.succeeded(waiting.pop().expect("a call"), now_ns + 5);
        waiting.extend(start_all(&mut limit, now_ns + 5));
        assert_eq!(limit.next_ns(), Some(now_ns + 5 + CALM_NS));
        waiting.into_iter().for_each(|permit| limit.ended(permit, now_ns));
    }

    #[test]
    fn after_refusal__is_half_of_the_calls_until_long_after_the_last_refusal() {
        let config = ConcurrencyLimitConfig::default();
        for (outstanding, expected) in [(1, 1), (2, 1), (9, 4), (2_000, 1_000)] {
            let limit = ConcurrencyLimit::after_refusal(config, outstanding, 5);
            assert_eq!((limit.limit(), limit.outstanding()), (expected, 0));
        }
        let mut limit = ConcurrencyLimit::after_refusal(config, 4, 5);
        let permits = start_all(&mut limit, 5);
        assert!(!limit.try_lift(LIFTED_NS + 5) && limit.limit() == 2, "it holds calls back");
        let [first, second] = <[Permit; 2]>::try_from(permits).unwrap();
        limit.succeeded(first, LIFTED_NS + 3);
        assert!(!limit.try_lift(LIFTED_NS + 4) && limit.limit() == 2);
        assert!(!limit.try_lift(LIFTED_NS + 5), "a permit is out");
        assert_eq!(limit.limit(), u32::MAX);
        limit.ended(second, LIFTED_NS + 6);
        assert!(limit.try_lift(LIFTED_NS + 6));
    }

    #[test]
    fn succeeded__without_a_refusal_for_long_doubles_each_round_trip() {
        let mut limit = limit_of(4);
        let mut now_ns = 0;
        round_trips(&mut limit, &mut now_ns, &[false]);
        now_ns += CALM_NS;
        for doubled in [3, 4] {
            // Only the last call of a full limit shows the demand for a further call.
            round_trips(&mut limit, &mut now_ns, &[true]);
            assert_eq!(limit.limit(), doubled);
        }
    }

    #[test]
    fn refused__all_calls_of_a_round_trip_count_once() {
        let mut limit = limit_of(100);
        let mut permits = start_all(&mut limit, 0);
        let last = permits.pop().expect("a call");
        for permit in permits {
            limit.refused(permit, RTT_NS);
        }
        assert_eq!(limit.limit(), 50);
        let lowered = limit.limit;
        limit.succeeded(last, RTT_NS);
        assert_eq!(limit.limit, lowered, "a call from before the decrease raises nothing");
        round_trips(&mut limit, &mut RTT_NS.clone(), &[false]);
        assert_eq!(limit.limit(), 25);
    }

    #[test]
    fn refused__below_one_is_a_pause_in_round_trips() {
        let mut limit = limit_of(1);
        let permit = limit.try_start(0).unwrap();
        limit.refused(permit, RTT_NS);
        // Half a call in a round trip: one in two, of which one has passed.
        let resumes_ns = limit.resumes_ns().unwrap();
        assert_eq!(resumes_ns, 2 * RTT_NS);
        assert!(limit.try_start(resumes_ns - 1).is_none());
        let permit = limit.try_start(resumes_ns).unwrap();
        assert!(limit.try_start(CALM_NS).is_none(), "one outstanding");
        limit.succeeded(permit, resumes_ns + RTT_NS);
        assert_eq!(limit.limit, ONE * 5 / 8);
    }

    #[test]
    fn refused__for_ever_pauses_for_no_longer_than_the_most() {
        let mut limit = limit_of(100);
        let mut now_ns = 0;
        round_trips(&mut limit, &mut now_ns, &[false; 100]);
        assert_eq!(limit.limit(), 1);
        assert_eq!(
            limit.resumes_ns(),
            Some(now_ns + 63 * RTT_NS),
            "64 round trips, one of them past"
        );
        round_trips(&mut limit, &mut now_ns, &[true; 19]);
        assert_eq!(limit.resumes_ns(), None, "back above one after 19 successes");
    }

    #[test]
    fn timed_out__goes_down_to_one_and_no_further() {
        let mut limit = limit_of(4);
        let permit = limit.try_start(0).unwrap();
        limit.timed_out(permit, RTT_NS);
        assert_eq!(limit.limit(), 4, "a wait below the limit");
        for expected in [2, 1, 1, 1] {
            let mut permits = start_all(&mut limit, 0);
            limit.timed_out(permits.pop().unwrap(), RTT_NS);
            permits.into_iter().for_each(|permit| limit.ended(permit, RTT_NS));
            assert_eq!((limit.limit(), limit.resumes_ns()), (expected, None));
        }
        let permit = limit.try_start(0).unwrap();
        limit.refused(permit, RTT_NS);
        let permit = limit.try_start(2 * RTT_NS).unwrap();
        limit.timed_out(permit, 3 * RTT_NS);
        assert_eq!(limit.limit, ONE / 2, "nor up again");
    }

    #[test]
    fn ended__after_a_minute_pauses_for_no_minute() {
        let mut limit = limit_of(1);
        round_trips(&mut limit, &mut 0, &[false]);
        let permit = limit.try_start(RTT_NS * 2).unwrap();
        limit.ended(permit, 60_000_000_000);
        let first_ns = 60_020_000_000;
        assert!(limit.try_start(first_ns - 1).is_none() && limit.try_start(first_ns).is_some());
    }

    /// A server with a fixed number of places, which refuses all other calls at once: round by round.
    #[test]
    fn limits_of_many_clients__share_the_places_of_the_server() {
        let (clients, places, rounds) = (10, 100, 4_000);
        let mut limits = vec![limit_of(256); clients];
        let mut held = vec![0usize; clients];
        for round in 0..rounds {
            let now_ns = round * RTT_NS;
            let mut calls: VecDeque<_> = limits.iter_mut().map(|l| start_all(l, now_ns)).collect();
            let mut free = places;
            // In turns: no client is always the first to find the server full.
            while calls.iter().any(|calls| !calls.is_empty()) {
                for (client, calls) in calls.iter_mut().enumerate() {
                    let Some(permit) = calls.pop() else { continue };
                    if free > 0 {
                        (free, held[client]) = (free - 1, held[client] + 1);
                        limits[client].succeeded(permit, now_ns + RTT_NS);
                    } else {
                        limits[client].refused(permit, now_ns + RTT_NS);
                    }
                }
            }
        }
        let total: usize = held.iter().sum();
        assert!(total * 10 > places * rounds as usize * 8, "{total}: the server is kept busy");
        let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
        assert!(most * 10 < least * 15, "{held:?}: fairly");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Start,
        End { which: usize, how: u8 },
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
        let end = (any::<usize>(), 0..4u8).prop_map(|(which, how)| Step::End { which, how });
        let step = prop_oneof![2 => Just(Step::Start), 1 => end];
        prop::collection::vec((0..50_000u64, step), 1..400)
    }

    fn bound() -> impl Strategy<Value = u32> {
        prop_oneof![9 => 0..20u32, 1 => Just(u32::MAX)]
    }

    fn pause() -> impl Strategy<Value = Duration> {
        let short = (0..100_000u64).prop_map(Duration::from_nanos);
        prop_oneof![8 => short, 1 => Just(Duration::ZERO), 1 => Just(Duration::MAX)]
    }

    proptest! {
        #[test]
        fn limit__stays_within_its_bounds_and_counts_outstanding_calls(
            steps in steps(), initial in bound(), max in bound(), pause_max in pause(),
        ) {
            let config = ConcurrencyLimitConfig { initial, max, pause_max };
            let mut limit = ConcurrencyLimit::new(config);
            let (mut now_ns, mut permits) = (0, Vec::new());
            for (elapsed_ns, step) in steps {
                now_ns += elapsed_ns;
                match step {
                    Step::Start => permits.extend(limit.try_start(now_ns)),
                    Step::End { which, how } if !permits.is_empty() => {
                        let permit = permits.swap_remove(which % permits.len());
                        match how {
                            0 => limit.succeeded(permit, now_ns),
                            1 => limit.refused(permit, now_ns),
                            2 => limit.timed_out(permit, now_ns),
                            _ => limit.ended(permit, now_ns),
                        }
                    }
                    Step::End { .. } => {}
                }
                prop_assert_eq!(limit.outstanding() as usize, permits.len());
                prop_assert!((1..=max.max(1)).contains(&limit.limit()));
                let pause_ns = limit.resumes_ns().map_or(0, |at_ns| at_ns.saturating_sub(now_ns));
                prop_assert!(u128::from(pause_ns) <= pause_max.as_nanos());
            }
            // After any history, a call can start once all calls have ended and pauses are over.
            permits.into_iter().for_each(|permit| limit.ended(permit, now_ns));
            let resumes_ns = limit.resumes_ns().unwrap_or(now_ns);
            prop_assert!(limit.try_start(resumes_ns.max(now_ns)).is_some());
        }
    }

    panics! {
        end__with_a_limit_beyond_the_most: "a limit is between the least and the most calls" => {
            let mut limit = limit_of(3);
            let permit = limit.try_start(0).unwrap();
            limit.limit = limit.limit_max + 1;
            limit.ended(permit, 1);
        };
    }
}
