//! The work of handlers: some computation, and an answer that depends on the request.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Steps per timed sample.
const SAMPLE_STEPS: u64 = 1_000_000;

/// The computing speed of this machine.
#[derive(Clone, Copy)]
pub(super) struct Work {
    steps_per_us: f64,
}

/// The computation of a handler, in steps: a wait for time would also pass while others have the CPU.
#[derive(Clone, Copy)]
pub(super) struct Job {
    steps: u64,
}

impl Work {
    /// Times the computation; the fastest of some samples was not disturbed.
    pub(super) fn calibrate() -> Self {
        let sample = |_| {
            let begin = Instant::now();
            compute(SAMPLE_STEPS);
            begin.elapsed()
        };
        let fastest = (0..10).map(sample).min().unwrap_or_default();
        Self { steps_per_us: SAMPLE_STEPS as f64 / (fastest.as_secs_f64() * 1e6) }
    }

    /// Returns a computation of this length.
    pub(super) fn of(self, length: Duration) -> Job {
        Job { steps: (self.steps_per_us * length.as_secs_f64() * 1e6).round() as u64 }
    }
}

impl Job {
    /// Computes, and returns the answer to a request.
    pub(super) fn execute(self, request: &[u8]) -> [u8; 8] {
        compute(self.steps);
        // A request of another length gets a wrong answer, which the caller detects.
        let number = request.try_into().map_or(0, u64::from_le_bytes);
        answer(number).to_le_bytes()
    }
}

/// Returns the right answer.
pub(super) fn answer(number: u64) -> u64 {
    (number ^ (number >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn compute(steps: u64) {
    let mut state = black_box(1u64);
    for _ in 0..steps {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    black_box(state);
}
