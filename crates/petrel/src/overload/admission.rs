//! Admission control: the choice of requests that a server queues, and of queued ones that it still runs.

use std::time::Duration;

use petrel_proto::Status;

use super::expected::ExpectedWait;
use crate::time::as_ns;

/// Limits of an [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// The most queued requests: 1 024.
    pub requests_max: usize,
    /// The most bytes of queued requests: 64 MiB. A larger request may wait alone.
    pub bytes_max: usize,
    /// How requests that wait too long are shed.
    pub shedding: Shedding,
}

impl Default for AdmissionConfig {
    /// The limits bound memory, not delay: delay is the task of [`Shedding`].
    fn default() -> Self {
        Self { requests_max: 1_024, bytes_max: 64 << 20, shedding: Shedding::default() }
    }
}

/// How a server detects excessive waits, and its choice of requests to refuse. `docs/overload.md` compares the
/// policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shedding {
    /// Applies only the limits, and deadlines that have passed.
    LimitOnly,
    /// Refuses an arriving request if its expected wait reaches both `target` and `services` mean service times. Also refuses a request
    /// that with a long service time would end after its deadline. The expectation comes from the queue length, the workers and past
    /// service times; if lower, the oldest request's wait replaces it.
    ExpectedWait {
        /// The longest wait, however short the requests are.
        target: Duration,
        /// The longest wait in mean service times.
        services: u32,
    },
}

/// The queued requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Number of requests.
    pub requests: usize,
    /// Bytes of the requests.
    pub bytes: usize,
    /// When the oldest was queued, in nanoseconds.
    pub oldest_ns: Option<u64>,
}

/// Why a request is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shed {
    /// The queue holds its maximum of requests.
    Requests,
    /// The request would make the queue exceed its maximum of bytes.
    Bytes,
    /// The request's wait was or would be too long, or the response would miss its deadline.
    Delay,
    /// Its deadline has passed.
    Late,
}

impl Default for Shedding {
    /// A hundred service times, and at least a millisecond. A request without a deadline is never refused for less, so a client may have
    /// some dozen calls outstanding to a single worker. The deadline decides about a request that has one.
    fn default() -> Self {
        Shedding::ExpectedWait { target: Duration::from_millis(1), services: 100 }
    }
}

impl Shed {
    /// Returns the status for the client. The request was not executed.
    pub fn status(self) -> Status {
        match self {
            Shed::Requests | Shed::Bytes | Shed::Delay => Status::ResourceExhausted,
            Shed::Late => Status::DeadlineExceeded,
        }
    }

    /// Returns the message for people.
    pub fn text(self) -> &'static str {
        match self {
            Shed::Requests => "the server's queue is full",
            Shed::Bytes => "the server's queue has no room for a request of this size",
            Shed::Delay => "the server is overloaded: requests wait too long",
            Shed::Late => "the deadline passed before the server began",
        }
    }
}

/// Decides which requests to refuse, for a queue and its workers. A request that waits longer than the caller is wasted
/// work, and delays all later requests.
///
/// The owner of the queue asks [`admit`](Self::admit) before it queues a request, and [`begin`](Self::begin) when a
/// worker could run the request. It reports each service time ([`done`](Self::done)), and answers a refused request
/// with [`Shed::status`] at once.
///
/// ```
/// use petrel::overload::{Admission, AdmissionConfig, Shed, Waiting};
///
/// let mut admission = Admission::new(AdmissionConfig::default(), 2);
/// admission.done(1_000_000);
/// // Two workers, a millisecond each: with 200 before it a request would wait for a hundred service times.
/// let waiting = |requests| Waiting { requests, bytes: 0, oldest_ns: None };
/// assert_eq!(admission.admit(0, 100, None, waiting(10)), Ok(()));
/// assert_eq!(admission.admit(0, 100, None, waiting(200)), Err(Shed::Delay));
/// // A request with three milliseconds left should not wait for five.
/// assert_eq!(admission.admit(0, 100, Some(3_000_000), waiting(10)), Err(Shed::Delay));
/// ```
#[derive(Clone, Debug)]
pub struct Admission {
    requests_max: usize,
    bytes_max: usize,
    expected: ExpectedWait,
    policy: Policy,
}

#[derive(Clone, Debug)]
enum Policy {
    LimitOnly,
    ExpectedWait { target_ns: u64, services: u64 },
}

impl Admission {
    /// Creates an admission for an empty queue with this number of workers.
    pub fn new(config: AdmissionConfig, workers: usize) -> Self {
        Self {
            requests_max: config.requests_max,
            bytes_max: config.bytes_max,
            expected: ExpectedWait::new(workers),
            policy: Policy::new(config.shedding),
        }
    }

    /// Decides whether an arriving request of `bytes` may be queued behind `waiting`. If not, it is answered at once.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn admit(
        &mut self,
        now_ns: u64,
        bytes: usize,
        deadline_ns: Option<u64>,
        waiting: Waiting,
    ) -> Result<(), Shed> {
        if waiting.requests >= self.requests_max {
            return Err(Shed::Requests);
        }
        // A request larger than the limit is admitted to an empty queue.
        if waiting.requests > 0 && waiting.bytes.saturating_add(bytes) > self.bytes_max {
            return Err(Shed::Bytes);
        }
        if deadline_ns.is_some_and(|deadline_ns| now_ns >= deadline_ns) {
            return Err(Shed::Late);
        }
        if self.is_too_long(now_ns, deadline_ns, waiting) { Err(Shed::Delay) } else { Ok(()) }
    }

    /// Decides whether a free worker should run the next queued request. If not, the request is answered at once, and the
    /// worker takes the next.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn begin(&self, now_ns: u64, deadline_ns: Option<u64>) -> Result<(), Shed> {
        if deadline_ns.is_some_and(|deadline_ns| now_ns >= deadline_ns) {
            Err(Shed::Late)
        } else {
            Ok(())
        }
    }

    /// Records the service time of a request.
    pub fn done(&mut self, service_ns: u64) {
        self.expected.record(service_ns);
    }

    /// Returns false for an empty queue: else no request would run, and a mean that refuses everything would never
    /// change. Returns false also while service times are unknown: a millisecond is long for some and short for others.
    fn is_too_long(&self, now_ns: u64, deadline_ns: Option<u64>, waiting: Waiting) -> bool {
        if waiting.requests == 0 || !self.expected.is_known() {
            return false;
        }
        assert!(
            deadline_ns.is_none_or(|at_ns| at_ns > now_ns),
            "a request that came too late is refused for that reason"
        );
        match self.policy {
            Policy::LimitOnly => false,
            Policy::ExpectedWait { target_ns, services } => {
                let wait_ns = self.wait_ns(now_ns, waiting);
                wait_ns >= target_ns.max(services.saturating_mul(self.expected.service_ns()))
                    || deadline_ns.is_some_and(|at_ns| self.is_too_late(wait_ns, at_ns - now_ns))
            }
        }
    }

    /// Returns the expected wait of a request that arrives now.
    fn wait_ns(&self, now_ns: u64, waiting: Waiting) -> u64 {
        self.expected.wait_ns(waiting.requests).max(waiting.age_ns(now_ns))
    }

    /// Returns true if a slow request with this wait would end too late to be answered in the time left.
    fn is_too_late(&self, wait_ns: u64, left_ns: u64) -> bool {
        let ends_ns = wait_ns.saturating_add(self.expected.long_service_ns());
        ends_ns > left_ns - left_ns / WAY_BACK
    }
}

/// The fraction of the remaining time reserved for the response's transmission and surprises. Without it, a server with
/// constant service times answers exactly at the deadline, when the client is gone.
const WAY_BACK: u64 = 8;

impl Waiting {
    fn age_ns(&self, now_ns: u64) -> u64 {
        self.oldest_ns.map_or(0, |oldest_ns| now_ns.saturating_sub(oldest_ns))
    }
}

impl Policy {
    fn new(shedding: Shedding) -> Self {
        match shedding {
            Shedding::LimitOnly => Policy::LimitOnly,
            Shedding::ExpectedWait { target, services } => {
                Policy::ExpectedWait { target_ns: as_ns(target), services: services.into() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TARGET_NS: u64 = 50_000;
    const SERVICE_NS: u64 = 10_000;

    fn admission(shedding: Shedding) -> Admission {
        let config = AdmissionConfig { requests_max: 100, bytes_max: 1_000, shedding };
        let mut admission = Admission::new(config, 2);
        admission.done(SERVICE_NS);
        admission
    }

    fn expected(services: u32) -> Admission {
        let target = Duration::from_nanos(TARGET_NS);
        admission(Shedding::ExpectedWait { target, services })
    }

    fn waiting(requests: usize) -> Waiting {
        Waiting { requests, ..Waiting::default() }
    }

    #[test]
    fn admit__refuses_beyond_the_limits() {
        let mut admission = admission(Shedding::LimitOnly);
        assert_eq!(admission.admit(0, 1_000, None, waiting(99)), Ok(()));
        assert_eq!(admission.admit(0, 0, None, waiting(100)), Err(Shed::Requests));
        assert_eq!(admission.admit(0, 1_001, None, waiting(1)), Err(Shed::Bytes));
        assert_eq!(admission.admit(0, 1_001, None, waiting(0)), Ok(()), "alone");
        let bytes = Waiting { requests: 1, bytes: 400, oldest_ns: Some(0) };
        assert_eq!(admission.admit(u64::MAX, 600, None, bytes), Ok(()), "however long it takes");
        assert_eq!(admission.admit(0, usize::MAX, None, bytes), Err(Shed::Bytes));
    }

    #[test]
    fn admit__with_expected_wait_refuses_requests_that_would_wait_too_long() {
        // Two workers: a request for each 5 µs.
        let mut admission = expected(0);
        assert_eq!(admission.admit(0, 0, None, waiting(9)), Ok(()));
        assert_eq!(admission.admit(0, 0, None, waiting(10)), Err(Shed::Delay));
        let mut admission = expected(7);
        assert_eq!(
            admission.admit(0, 0, None, waiting(13)),
            Ok(()),
            "seven times of service are longer"
        );
        assert_eq!(admission.admit(0, 0, None, waiting(14)), Err(Shed::Delay));
    }

    #[test]
    fn admit__with_expected_wait_knows_nothing_before_the_first_has_ended() {
        let shedding = Shedding::ExpectedWait { target: Duration::ZERO, services: 0 };
        let config = AdmissionConfig { shedding, ..AdmissionConfig::default() };
        let mut admission = Admission::new(config, 1);
        let old = Waiting { requests: 9, bytes: 0, oldest_ns: Some(0) };
        assert_eq!(admission.admit(1 << 40, 0, None, old), Ok(()));
        admission.done(1);
        assert_eq!(admission.admit(1 << 40, 0, None, old), Err(Shed::Delay));
    }

    #[test]
    fn admit__with_expected_wait_does_not_hope_while_workers_hang() {
        let mut admission = expected(0);
        let waiting = Waiting { oldest_ns: Some(1_000), ..waiting(1) };
        assert_eq!(admission.admit(1_000 + TARGET_NS - 1, 0, None, waiting), Ok(()));
        assert_eq!(admission.admit(1_000 + TARGET_NS, 0, None, waiting), Err(Shed::Delay));
    }

    #[test]
    fn admit__refuses_requests_that_are_or_will_be_late() {
        let mut admission = expected(0);
        (0..1_000).for_each(|_| admission.done(SERVICE_NS));
        assert_eq!(admission.admit(100, 0, Some(100), waiting(0)), Err(Shed::Late));
        assert_eq!(admission.admit(100, 0, Some(101), waiting(1)), Err(Shed::Delay));
        assert_eq!(
            admission.admit(100, 0, Some(101), waiting(0)),
            Ok(()),
            "a means to learn better"
        );
        // Four before it and itself: 20 µs and 10, an eighth for the response's transmission, and the deviation.
        assert_eq!(admission.admit(100, 0, Some(34_300), waiting(4)), Err(Shed::Delay));
        assert_eq!(admission.admit(100, 0, Some(34_500), waiting(4)), Ok(()));
        let mut admission = self::admission(Shedding::LimitOnly);
        assert_eq!(admission.admit(100, 0, Some(101), waiting(4)), Ok(()), "who knows");
        assert_eq!(admission.admit(100, 0, Some(100), waiting(4)), Err(Shed::Late));
    }

    #[test]
    fn begin__runs_nothing_that_is_late() {
        let admission = admission(Shedding::LimitOnly);
        assert_eq!(admission.begin(99, Some(100)), Ok(()));
        assert_eq!(admission.begin(100, Some(100)), Err(Shed::Late));
        assert_eq!(admission.begin(u64::MAX, None), Ok(()), "nothing else matters");
    }

    fn any_shedding() -> impl Strategy<Value = Shedding> {
        let time = || any::<u64>().prop_map(Duration::from_nanos);
        prop_oneof![
            Just(Shedding::LimitOnly),
            (time(), any::<u32>())
                .prop_map(|(target, services)| Shedding::ExpectedWait { target, services }),
        ]
    }

    proptest! {
        /// Whatever the service times, an empty queue admits every request that is not late.
        #[test]
        fn admit__never_locks_everybody_out(
            shedding in any_shedding(), took in prop::collection::vec(any::<u64>(), 0..99),
            now_ns in 0..u64::MAX, left_ns in prop::option::of(1..u64::MAX),
        ) {
            let mut admission = admission(shedding);
            took.into_iter().for_each(|service_ns| admission.done(service_ns));
            let deadline_ns = left_ns.map(|left_ns| now_ns.saturating_add(left_ns));
            prop_assert_eq!(admission.admit(now_ns, 9, deadline_ns, waiting(0)), Ok(()));
        }

        /// For any calls in any order, even with a clock that goes back.
        #[test]
        fn admission__keeps_its_limits_and_runs_nothing_late(
            shedding in any_shedding(), workers in 0..4usize,
            asked in prop::collection::vec(
                (any::<u64>(), any::<u64>(), any::<Option<u64>>(), 0..200usize, 0..2_000usize), 1..100,
            ),
        ) {
            let config = AdmissionConfig { requests_max: 100, bytes_max: 1_000, shedding };
            let mut admission = Admission::new(config, workers);
            for (now_ns, then_ns, deadline_ns, requests, bytes) in asked {
                let waiting = Waiting { requests, bytes: bytes / 2, oldest_ns: Some(then_ns) };
                let is_late = deadline_ns.is_some_and(|at_ns| at_ns <= now_ns);
                if admission.admit(now_ns, bytes, deadline_ns, waiting).is_ok() {
                    let fits = bytes + bytes / 2 <= 1_000 || requests == 0;
                    prop_assert!(requests < 100 && fits && !is_late);
                }
                if admission.begin(now_ns, deadline_ns).is_ok() {
                    prop_assert!(!is_late);
                }
                admission.done(then_ns);
            }
        }
    }
}
