//! The distance of two CPUs: a cache line travels back and forth between them.
//!
//! On virtual machines the host moves CPUs: a round trip takes 100 ns at one time and 500 ns a minute
//! later. Polling shared memory is then five times slower, so every window records the distance.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use peers_common::process;
use serde::Serialize;

use crate::cli::Cpus;

/// Duration of a probe.
const PROBE: Duration = Duration::from_millis(5);

/// Fewest batches of a probe: another program may use the CPUs most of the time.
const BATCHES_MIN: usize = 64;

/// Round trips between two readings of the clock, so a reading weighs little.
const BATCH: u64 = 16;

/// A value between the observed 105 ns and 500 ns.
const NEAR_NS_MAX: f64 = 250.0;

/// An unshared pair of cache lines: CPUs fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// The distance of the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Distance {
    Near,
    Far,
}

impl Distance {
    pub(crate) fn of(round_trip_ns: f64) -> Self {
        if round_trip_ns <= NEAR_NS_MAX { Self::Near } else { Self::Far }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// Returns the median time of a round trip between the two CPUs, in nanoseconds.
pub(crate) fn round_trip_ns(cpus: Cpus) -> io::Result<f64> {
    let (line, stop) = (Line::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let echoes = scope.spawn(|| {
            let pinned = process::pin(cpus.server);
            if pinned.is_ok() {
                echo(&line, &stop);
            }
            // From here on no thread answers.
            stop.store(true, Ordering::Relaxed);
            pinned
        });
        let measured = scope.spawn(|| {
            let median = process::pin(cpus.client).map(|()| measure(&line, &stop));
            stop.store(true, Ordering::Relaxed);
            median
        });
        let median = measured.join().unwrap_or_else(|_| Err(ended()));
        echoes.join().unwrap_or_else(|_| Err(ended()))?;
        median
    })
}

fn ended() -> io::Error {
    io::Error::other("a thread of the probe has ended by an internal error")
}

/// Answers every odd number with the next even number.
fn echo(line: &Line, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let number = line.0.load(Ordering::Acquire);
        if number % 2 == 1 {
            line.0.store(number + 1, Ordering::Release);
        }
    }
}

fn measure(line: &Line, stop: &AtomicBool) -> f64 {
    let started = Instant::now();
    let mut times = Vec::new();
    let mut number = 0;
    while times.len() < BATCHES_MIN || started.elapsed() < PROBE {
        let first = Instant::now();
        for _ in 0..BATCH {
            line.0.store(number + 1, Ordering::Release);
            number += 2;
            while line.0.load(Ordering::Acquire) != number {
                if stop.load(Ordering::Relaxed) {
                    return f64::INFINITY;
                }
            }
        }
        times.push(first.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    crate::summary::median(&mut times).unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_ns__is_measured_between_two_cpus() {
        if let [server, client, ..] = process::usable().unwrap()[..] {
            let ns = round_trip_ns(Cpus { server, client }).unwrap();
            assert!(ns > 0.0 && ns.is_finite());
        }
    }

    #[test]
    fn round_trip_ns__is_an_error_on_a_cpu_that_is_not_there() {
        assert!(round_trip_ns(Cpus { server: 0, client: 1_000_000 }).is_err());
        assert!(round_trip_ns(Cpus { server: 1_000_000, client: 0 }).is_err());
    }
}
