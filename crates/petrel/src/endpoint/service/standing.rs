//! Slow and failing servers of a service: found by comparing the answers of all servers, and avoided.
//!
//! A client measures the time of answers, and compares the time with the usual time *of the method* at all servers of the service: a
//! method with a wait for an event is slow at every server. A server with four times the usual time, and at least [`SLOW_NS_MIN`], gets no
//! calls while further servers are available, and neither does a server after five failed calls in a row. A single call in a while finds
//! out whether the server has recovered (outlier detection, as in Envoy; the comparison by method is Petrel's own).
//!
//! At most half of a service's servers are avoided: if all become slow, the load is at fault and not a server.

use petrel_proto::{Execution, Status};

use crate::error::Error;

/// A logarithm to base 2, in units of 1/256.
type Log = i32;

/// The logarithm of 2.
const LOG_2: Log = 256;

/// An answer counts as at most 64 times as long as usual, or as short: a single answer decides nothing.
const EXCESS_MAX: Log = 6 * LOG_2;

/// A server is slow from four times the usual time on. With an exponential service time of equal servers, 1 of 20 000 weighted means
/// is as far from the usual time.
const EXCESS_SLOW: Log = 2 * LOG_2;

/// The share of an answer in its server's mean, and in the method's: 1/8 and 1/32.
const SERVER_SHARE: Log = 8;
const METHOD_SHARE: Log = 32;

/// The share of an answer of an avoided server: three good answers are enough.
const PROBE_SHARE: Log = 2;

/// A server with quicker answers is not avoided. Below this time the outstanding calls balance the load, and a sleeping server with few
/// calls would be avoided for being idle.
pub(super) const SLOW_NS_MIN: u64 = 500_000;

/// Failures in a row after which a server is avoided.
const FAILURES_MAX: u8 = 5;

/// The time between two measurements at a server, after the first: of a busy one, few calls are measured.
const SAMPLE_NS: u64 = 5_000_000;

/// Measurements at the beginning, without a pause between them.
const FIRST_SAMPLES: u8 = 16;

/// The pause before an avoided server gets a call again, and the calls of the service meanwhile: less than a sixty-fourth reaches the server.
const PROBE_NS: u64 = 1_000_000_000;
const PROBE_CALLS: u64 = 64;

/// Methods with a known usual time. Further methods replace earlier methods.
const METHODS_MAX: usize = 64;

/// The usual time of the answers of each method, at all servers of a service.
#[derive(Debug, Default)]
pub(super) struct UsualTimes {
    /// Methods with their usual times, placed by the method's lowest bits. Empty before the first measurement.
    methods: Vec<(u16, Option<Log>)>,
}

impl UsualTimes {
    /// Adds an answer's time, and returns the factor by which it differs from the usual time.
    #[inline]
    pub(super) fn add(&mut self, method: u16, ns: u64) -> Log {
        if self.methods.is_empty() {
            self.methods.resize(METHODS_MAX, (0, None));
        }
        let (of, usual) = &mut self.methods[usize::from(method) % METHODS_MAX];
        let time = log_of(ns);
        let before = match usual {
            Some(usual) if *of == method => *usual,
            _ => time,
        };
        let excess = (time - before).clamp(-EXCESS_MAX, EXCESS_MAX);
        (*of, *usual) = (method, Some(before + excess / METHOD_SHARE));
        excess
    }
}

/// The standing of a server among all servers of a service.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// The weighted mean of the excess of the server's answers.
    excess: Log,
    is_slow: bool,
    failures: u8,
    is_avoided: bool,
    samples: u8,
    /// The time of the next measurement.
    next_ns: u64,
    /// The time of the last probe, and the calls of the service until then.
    probed: (u64, u64),
}

/// Why a server is avoided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Slow,
    Failing,
}

impl Why {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Slow => "its answers take four times as long as those of other servers",
            Self::Failing => "its last five calls failed",
        }
    }
}

impl Standing {
    pub(super) fn is_avoided(&self) -> bool {
        self.is_avoided
    }

    /// Returns true if a call that begins now is to be measured.
    #[inline]
    pub(super) fn begins_measured(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.next_ns;
        if is_due {
            self.samples = self.samples.saturating_add(1);
            let follows = self.samples < FIRST_SAMPLES || self.is_avoided();
            self.next_ns = if follows { now_ns } else { now_ns.saturating_add(SAMPLE_NS) };
        }
        is_due
    }

    /// Ends a row of failures.
    #[inline(always)]
    pub(super) fn succeeds(&mut self) {
        self.failures = 0;
    }

    /// Records the time of an answer, and the factor to the usual time.
    #[inline]
    pub(super) fn answered(&mut self, excess: Log, ns: u64) {
        self.succeeds();
        let share = if self.is_avoided() { PROBE_SHARE } else { SERVER_SHARE };
        self.excess += (excess - self.excess) / share;
        self.is_slow = self.excess >= EXCESS_SLOW && ns >= SLOW_NS_MIN;
    }

    /// Records a failure of the server.
    pub(super) fn failed(&mut self) {
        self.failures = (self.failures + 1).min(FAILURES_MAX);
    }

    /// Returns why the server is to be avoided.
    #[inline]
    pub(super) fn why(&self) -> Option<Why> {
        let why = if self.is_slow { Why::Slow } else { Why::Failing };
        (self.is_slow || self.failures == FAILURES_MAX).then_some(why)
    }

    /// Avoids the server from now on.
    pub(super) fn avoid(&mut self, now_ns: u64, calls: u64) {
        assert!(!self.is_avoided(), "a server is avoided once");
        (self.is_avoided, self.probed) = (true, (now_ns, calls));
        // Its few calls are all measured.
        self.next_ns = 0;
    }

    /// Returns true if the avoided server has recovered.
    pub(super) fn recovers(&mut self) -> bool {
        let is_well = self.failures == 0 && self.excess < EXCESS_SLOW / 2;
        let recovers = self.is_avoided() && is_well;
        if recovers {
            self.is_avoided = false;
        }
        recovers
    }

    /// Returns true if the server, which is avoided, is to be tried with a call. `calls` are the service's so far.
    pub(super) fn is_probe_due(&mut self, now_ns: u64, calls: u64) -> bool {
        let (at_ns, before) = self.probed;
        let is_due = self.is_avoided()
            && now_ns.saturating_sub(at_ns) >= PROBE_NS
            && calls.saturating_sub(before) >= PROBE_CALLS;
        if is_due {
            self.probed = (now_ns, calls);
        }
        is_due
    }
}

/// Returns true if a failure is the server's, and not the request's or the caller's. Refusals of a draining or busy server do not count.
pub(super) fn is_of_server(failure: &Error) -> bool {
    let was_sent = matches!(failure.execution, Execution::Answered | Execution::MayHaveExecuted);
    let statuses = [Status::Unavailable, Status::Internal, Status::Unknown, Status::DataLoss];
    was_sent && statuses.contains(&failure.status)
}

/// Returns the logarithm of a time.
fn log_of(ns: u64) -> Log {
    let ns = ns.max(1);
    let exponent = ns.ilog2();
    // The eight bits behind the first.
    let rest = (ns << (63 - exponent)) >> 55 & 0xff;
    exponent as Log * LOG_2 + rest as Log
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn log_of__is_monotonous_and_doubles_by_one() {
        assert_eq!([1, 2, 1024, u64::MAX].map(log_of), [0, 256, 2560, 63 * 256 + 255]);
        assert_eq!(log_of(0), 0);
        let logs: Vec<_> = (1..10_000).map(log_of).collect();
        assert!(logs.is_sorted());
        assert_eq!(log_of(3 * MS) + LOG_2, log_of(6 * MS));
    }

    /// Answers of servers in turn, in milliseconds. Returns the servers that would be avoided.
    fn avoided(
        rounds: usize,
        times: impl Fn(usize, usize) -> (u16, u64),
        servers: usize,
    ) -> Vec<usize> {
        let mut usual = UsualTimes::default();
        let mut standings: Vec<Standing> = (0..servers).map(|_| Standing::default()).collect();
        let mut avoided = Vec::new();
        for round in 0..rounds {
            for (server, standing) in standings.iter_mut().enumerate() {
                let (method, ms) = times(round, server);
                let excess = usual.add(method, ms * MS);
                standing.answered(excess, ms * MS);
                if standing.why().is_some() && !avoided.contains(&server) {
                    avoided.push(server);
                }
            }
        }
        avoided
    }

    #[test]
    fn answered__by_a_slow_server_among_two_or_three() {
        for servers in [2, 3, 5] {
            let slow = |_, server| (1, if server == 1 { 200 } else { 1 });
            assert_eq!(avoided(20, slow, servers), [1], "{servers} servers");
        }
    }

    #[test]
    fn answered__by_equal_servers_with_methods_of_all_times() {
        let equal = |round: usize, server: usize| match (round * 7 + server * 3) % 5 {
            // A method waits for an event, a second is quick, and a third is sometimes slow.
            0 => (5, 30_000),
            1 | 2 => (69, 1),
            _ => (7, if round.is_multiple_of(10) { 100 } else { 1 }),
        };
        assert_eq!(avoided(5_000, equal, 3), [0; 0]);
    }

    #[test]
    fn answered__by_a_server_of_half_the_speed_or_of_a_few_microseconds() {
        assert_eq!(avoided(1_000, |_, server| (1, if server == 0 { 20 } else { 10 }), 3), [0; 0]);
        let mut standing = Standing::default();
        for _ in 0..100 {
            standing.answered(EXCESS_MAX, SLOW_NS_MIN - 1);
            assert_eq!(standing.why(), None);
        }
    }

    #[test]
    fn failed__five_times_in_a_row() {
        let mut standing = Standing::default();
        for _ in 0..2 {
            (0..4).for_each(|_| standing.failed());
            assert_eq!(standing.why(), None);
            standing.succeeds();
        }
        (0..5).for_each(|_| standing.failed());
        assert_eq!(standing.why(), Some(Why::Failing));
        standing.answered(0, MS);
        assert_eq!(standing.why(), None);
    }

    #[test]
    fn recovers__after_three_good_answers_to_probes_that_are_rare() {
        let mut standing = Standing::default();
        while standing.why().is_none() {
            standing.answered(EXCESS_MAX, MS);
        }
        standing.avoid(0, 0);
        let mut now_ns = 0;
        for calls in 1.. {
            assert!(!standing.is_probe_due(now_ns + PROBE_NS - 1, calls * PROBE_CALLS));
            now_ns += PROBE_NS;
            assert!(!standing.is_probe_due(now_ns, calls * PROBE_CALLS - 1));
            assert!(standing.is_probe_due(now_ns, calls * PROBE_CALLS));
            assert!(!standing.is_probe_due(now_ns, (calls + 9) * PROBE_CALLS), "once");
            standing.answered(0, MS);
            if standing.recovers() {
                assert!((2..=3).contains(&calls), "{calls} probes");
                break;
            }
        }
        assert!(!standing.is_avoided());
    }
}
