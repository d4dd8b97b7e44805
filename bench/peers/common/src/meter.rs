//! Counts, times and checks the calls of a window.

use hdrhistogram::Histogram;

use crate::args::{Plan, Workload};
use crate::clock::{self, Clock};
use crate::outcome::Outcome;

/// If more small calls are in flight, the clock is read only once per `CLOCK_EVERY` calls: at tens of
/// millions of calls per second, more readings would be half of the measured time.
const CLOCK_EVERY: u64 = 16;

/// Longest latency that is recorded exactly, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Counts the calls of a window. [`Meter::begin`] numbers a call, until the time is over; [`Meter::end`]
/// counts a call after the check of its reply.
pub struct Meter {
    plan: Plan,
    clock: Clock,
    clock_every: u64,
    begun: u64,
    ended: u64,
    /// The last reading of the clock, in ticks.
    now: u64,
    warm: Option<Warm>,
    start: u64,
    is_over: bool,
    last: (u64, u64),
    latencies: Histogram<u64>,
}

/// The time at which calls began to count, and the number of calls ended by then.
struct Warm {
    at: u64,
    ended: u64,
}

impl Meter {
    /// Creates a meter whose time runs from now.
    pub fn start(plan: Plan) -> Self {
        let clock = Clock::calibrated();
        let latencies = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
            .expect("the bounds of the histogram are valid");
        let now = clock::ticks();
        let is_dense = plan.workload == Workload::Echo && plan.in_flight as u64 > CLOCK_EVERY;
        Self {
            plan,
            clock,
            clock_every: if is_dense { CLOCK_EVERY } else { 1 },
            begun: 0,
            ended: 0,
            now,
            warm: None,
            start: now,
            is_over: false,
            last: (now, 0),
            latencies,
        }
    }

    /// Returns the number of the next call, or `None` if the time is over.
    #[inline]
    pub fn begin(&mut self) -> Option<u64> {
        if self.is_over {
            return None;
        }
        self.begun += 1;
        Some(self.begun)
    }

    /// Returns the number of outstanding calls.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.begun - self.ended
    }

    /// Returns true if no more calls begin.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Ends a call, whose reply was right or wrong.
    ///
    /// # Errors
    /// If the reply was wrong. The measurement must then end, because its numbers would be meaningless.
    #[inline]
    pub fn end(&mut self, call: u64, is_right: bool) -> Result<(), String> {
        if !is_right {
            return Err(format!("the reply to call {call} is wrong"));
        }
        self.ended += 1;
        if self.ended.is_multiple_of(self.clock_every) {
            self.read_clock();
        }
        Ok(())
    }

    /// Reads the clock. With a single call in flight the time between two readings is a round trip.
    #[inline]
    fn read_clock(&mut self) {
        let before = std::mem::replace(&mut self.now, clock::ticks());
        if self.is_over {
            return;
        }
        match &self.warm {
            None => self.warm_up(),
            Some(warm) => {
                if self.plan.in_flight == 1 {
                    let _ = self.latencies.record(self.clock.ns_of(self.now - before).max(1));
                }
                self.last = (self.now, self.ended);
                self.is_over = self.now - warm.at >= self.clock.ticks_of(self.plan.window());
            }
        }
    }

    #[inline]
    fn warm_up(&mut self) {
        if self.now - self.start >= self.clock.ticks_of(self.plan.warmup()) {
            self.warm = Some(Warm { at: self.now, ended: self.ended });
        }
    }

    /// Returns the result.
    ///
    /// # Errors
    /// If no counted call ended.
    pub fn finish(self) -> Result<Outcome, String> {
        let warm = self.warm.as_ref().ok_or("no call ended after the warm-up")?;
        let (last_at, last_ended) = self.last;
        let calls = last_ended - warm.ended.min(last_ended);
        if calls == 0 {
            return Err("no call ended in the window".to_owned());
        }
        let seconds = self.clock.ns_of(last_at - warm.at) as f64 / 1e9;
        let rate = calls as f64 / seconds;
        let bytes = self.plan.workload.request_bytes();
        let quantile = |quantile| {
            (self.plan.in_flight == 1).then(|| self.latencies.value_at_quantile(quantile))
        };
        Ok(Outcome {
            calls,
            checked: self.ended,
            seconds,
            calls_per_second: rate,
            gbit_per_second: rate * bytes as f64 * 8.0 / 1e9,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            version: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(in_flight: usize) -> Plan {
        Plan { workload: Workload::Echo, in_flight, warmup_ms: 1, window_ms: 5 }
    }

    fn run(in_flight: usize) -> Outcome {
        let mut meter = Meter::start(plan(in_flight));
        while let Some(call) = meter.begin() {
            meter.end(call, true).unwrap();
        }
        assert_eq!(meter.in_flight(), 0);
        meter.finish().unwrap()
    }

    #[test]
    fn meter__counts_only_warm_calls_and_checks_all() {
        for in_flight in [1, 60] {
            let outcome = run(in_flight);
            assert!(outcome.calls > 0 && outcome.calls < outcome.checked);
            assert_eq!(outcome.p50_ns.is_some(), in_flight == 1);
        }
    }

    #[test]
    fn end__refuses_a_wrong_reply() {
        let mut meter = Meter::start(plan(1));
        let call = meter.begin().unwrap();
        assert!(meter.end(call, false).unwrap_err().contains("call 1"));
    }

    #[test]
    fn finish__is_an_error_without_calls() {
        assert!(Meter::start(plan(1)).finish().is_err());
    }
}
