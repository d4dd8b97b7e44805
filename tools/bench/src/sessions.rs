//! Many sessions: the slowdown of calls that use a different session every time.
//!
//! A server endpoint, a client endpoint, and up to 20 000 sessions between them; every call uses a
//! random session. The baseline is the same load on a single session with as many slots as calls in
//! flight, to avoid waits for slots.

use std::cell::Cell;
use std::rc::Rc;

use petrel_command::failure::Failure;

use super::ends::Side;
use super::figure::{Baseline, Figure, Setting};
use super::load::Choice;
use super::measurement::{CALLS_PER_SESSION, Measurement, Shape};
use super::test_bed::{Cores, TestBed};

/// The measured numbers of sessions, up to the requested maximum.
const STEPS: [usize; 5] = [1, 100, 1_000, 10_000, 20_000];

/// The measurement.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    /// The calls, on one session or many.
    pub(super) calls: Measurement,
    /// The largest number of sessions.
    pub(super) count: usize,
    /// Whether the smaller numbers are measured as well.
    pub(super) has_steps: bool,
}

impl Sessions {
    /// Measures every step; `done` gets its figure. `watch` gets the progress over all steps and pairs
    /// of windows.
    pub(super) fn run(
        &self,
        mut watch: impl FnMut(u32, u32),
        mut done: impl FnMut(Figure) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let measurement = &self.calls;
        let test_bed = TestBed::new(measurement.cores, measurement.pace.is_realtime)?;
        let limit = Rc::new(Cell::new(self.count));
        let many = Shape {
            sessions: self.count,
            slots: CALLS_PER_SESSION,
            choice: Choice::Random,
            limit: Rc::clone(&limit),
            ..measurement.shape()
        };
        let one = Shape { sessions: 1, slots: measurement.slots(1), ..measurement.shape() };
        let mut many = measurement.library(&test_bed, &many)?;
        let mut one = measurement.library(&test_bed, &one)?;
        let steps = self.steps();
        for (step, count) in (0..).zip(&steps) {
            limit.set(*count);
            let one: &mut dyn Side = one.as_mut();
            let beside = Some((one, Baseline::OneSession));
            let describe = |setting| self.describe(setting, *count);
            let figure = measurement.compare(
                &test_bed,
                (many.as_mut(), beside),
                describe,
                |pairs, total| {
                    watch(step * total + pairs, steps.len() as u32 * total);
                },
            )?;
            done(figure)?;
        }
        Ok(())
    }

    fn steps(&self) -> Vec<usize> {
        let smaller = STEPS.into_iter().filter(|step| self.has_steps && *step < self.count);
        smaller.chain([self.count]).collect()
    }

    fn describe(&self, setting: Setting, sessions: usize) -> Setting {
        Setting { bench: "sessions", sessions, command: self.command(), ..setting }
    }

    /// Returns the command that repeats the measurement.
    pub(super) fn command(&self) -> String {
        let Measurement { transport, cores, size, in_flight, batch, pace, .. } = &self.calls;
        let (transport, count) = (transport.name(), self.count);
        let cores = if *cores == Cores::One { " --cores 1" } else { "" };
        format!(
            "petrel bench sessions --transport {transport} --sessions {count} --size {size} \
             --in-flight {in_flight} --batch {batch}{cores}{}",
            pace.flags(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::args::BenchTransport;
    use crate::figure::Quantity;
    use crate::pairs::Pace;

    #[test]
    fn steps__end_with_the_requested_number() {
        let pace = Pace { duration: Duration::ZERO, window: Duration::ZERO, is_realtime: false };
        let calls = Measurement {
            quantity: Quantity::Rate,
            transport: BenchTransport::Shm,
            cores: Cores::One,
            size: 32,
            in_flight: 60,
            batch: 3,
            pace,
            connect: None,
        };
        let sessions = |count, has_steps| Sessions { calls: calls.clone(), count, has_steps };
        assert_eq!(sessions(20_000, true).steps(), STEPS);
        assert_eq!(sessions(500, true).steps(), [1, 100, 500]);
        assert_eq!(sessions(500, false).steps(), [500]);
        assert_eq!(sessions(1, true).steps(), [1]);
    }
}
