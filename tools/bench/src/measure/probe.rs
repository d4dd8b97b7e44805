//! The distance of the two CPUs: the time of a cache line's round trip.
//!
//! On a virtual machine two CPUs may be neighbours on a core complex for some time and far apart later,
//! for seconds or minutes. Data between the CPUs then takes five times as long, in the library and in
//! the baseline alike. If the distance changes during a window, the comparison is invalid.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use petrel_command::cores::CpuPlacement;
use petrel_command::failure::Failure;
use petrel_transport::clock;
use serde::Serialize;

use super::ends::ServerEnd;
use super::server_thread::{EndIndex, ServerThread};

const PROBE_NS: u64 = 5_000_000;

/// Round trips between two readings of the clock, so the readings weigh little.
const ROUNDS_PER_READING: u64 = 16;

/// Round trips below this time are near: the geometric mean of the observed 105 ns and 500 ns.
const NEAR_NS_MAX: u64 = 230;

/// Polls of the line between two readings of the clock.
const POLLS_PER_CLOCK_READ: u32 = 1 << 10;

/// The distance of the two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Distance {
    /// A cache line's round trip takes some 105 ns.
    Near,
    /// A round trip takes some 500 ns.
    Far,
    /// The other thread did not answer: another program ran on its CPU.
    Unknown,
}

/// The result of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    pub distance: Distance,
    /// Time of the line's round trip; `None` without an answer.
    pub round_trip_ns: Option<u64>,
}

/// The travelling cache line, alone on a pair of lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

/// The measuring side.
pub struct Probe {
    line: Arc<Line>,
    server_thread: Rc<ServerThread>,
    server: EndIndex,
    placements: [CpuPlacement; 2],
    samples: RefCell<Vec<u64>>,
}

/// The answering side: an odd number is a question, the next even number is the answer.
struct Echo(Arc<Line>);

impl Probe {
    /// Creates a probe between the calling and the second thread, on their placements.
    pub fn new(
        server_thread: Rc<ServerThread>,
        placements: [CpuPlacement; 2],
    ) -> Result<Self, Failure> {
        let line = Arc::new(Line(AtomicU64::new(0)));
        let echo = Echo(Arc::clone(&line));
        let server = server_thread.install(move || Ok(echo))?;
        Ok(Self { line, server_thread, server, placements, samples: RefCell::default() })
    }

    /// Measures the distance once.
    pub fn run(&self) -> Result<ProbeResult, Failure> {
        let [own, other] = self.placements;
        let _placement_guard = own.apply()?;
        let run = self.server_thread.run(self.server, other)?;
        let mut samples = self.samples.borrow_mut();
        samples.clear();
        self.sample(&mut samples);
        run.stop()?;
        Ok(ProbeResult::of(&mut samples))
    }

    /// Adds times of round trips, until the time of the probe is over.
    fn sample(&self, samples: &mut Vec<u64>) {
        let line = &self.line.0;
        let mut next = line.load(Ordering::Relaxed) | 1;
        let mut before_ns = clock::now_ns();
        let end_ns = before_ns + PROBE_NS;
        while before_ns < end_ns {
            for _ in 0..ROUNDS_PER_READING {
                line.store(next, Ordering::Release);
                if !answered(line, next + 1, end_ns) {
                    return;
                }
                next += 2;
            }
            let now_ns = clock::now_ns();
            samples.push((now_ns - before_ns) / ROUNDS_PER_READING);
            before_ns = now_ns;
        }
    }
}

/// Waits for an answer; returns false when the time is over.
#[inline]
fn answered(line: &AtomicU64, answer: u64, end_ns: u64) -> bool {
    loop {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if line.load(Ordering::Acquire) == answer {
                return true;
            }
        }
        if clock::now_ns() >= end_ns {
            return false;
        }
    }
}

impl ProbeResult {
    /// Uses the median: a few round trips are longer whenever either thread is interrupted.
    fn of(samples: &mut [u64]) -> Self {
        samples.sort_unstable();
        let round_trip_ns = samples.get(samples.len() / 2).copied();
        let distance = match round_trip_ns {
            None => Distance::Unknown,
            Some(ns) if ns < NEAR_NS_MAX => Distance::Near,
            Some(_) => Distance::Far,
        };
        Self { distance, round_trip_ns }
    }
}

impl ServerEnd for Echo {
    #[inline]
    fn poll_once(&mut self) {
        let value = self.0.0.load(Ordering::Acquire);
        if value % 2 == 1 {
            self.0.0.store(value + 1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_result__is_the_median() {
        for (samples, distance, round_trip_ns) in [
            (&mut [][..], Distance::Unknown, None),
            (&mut [105, 100, 9_000], Distance::Near, Some(105)),
            (&mut [500, 105, 510], Distance::Far, Some(500)),
        ] {
            assert_eq!(ProbeResult::of(samples), ProbeResult { distance, round_trip_ns });
        }
    }

    #[test]
    fn run__finds_the_distance_between_two_threads() {
        let server_thread = Rc::new(ServerThread::start().unwrap());
        let probe = Probe::new(server_thread, [CpuPlacement::default(); 2]).unwrap();
        // On a loaded machine the answer may come too late; then the next probe must still work.
        for _ in 0..3 {
            probe.run().unwrap();
            assert!(probe.line.0.load(Ordering::Relaxed) < u64::MAX / 2);
        }
    }
}
