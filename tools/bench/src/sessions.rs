//! Many sessions: the slowdown of calls that use a different session every time.
//!
//! A server endpoint, a client endpoint, and up to 20 000 sessions between them; every call uses a
//! random session, without and with an announcement ahead (`Context::prefetch_session`). The baseline is the same load
//! on a single session. Settings are defaults: the server agrees to fewer slots for each session, the more there are.

mod args;
mod memory;

use std::rc::Rc;

use petrel_command::Outcome;
use petrel_command::args::BenchTransport;
use petrel_command::failure::Failure;
use petrel_command::output::Output;

pub(crate) use self::args::{IdleArgs, SessionsArgs, parse_sessions};
pub use self::memory::private_bytes;
pub(crate) use self::memory::run_client;

use crate::measure::ends::Side;
use crate::measure::figure::{Baseline, Figure, Setting};
use crate::measure::load::{Choice, Selection};
use crate::measure::measurement::{Measurement, SessionPlan, Shape};
use crate::measure::test_bed::{Cores, TestBed};
use crate::report::figures::Figures;

/// The measured numbers of sessions, up to the requested maximum.
const STEPS: [usize; 5] = [1, 100, 1_000, 10_000, 20_000];

/// Without announcements, and with them.
const BOTH_HINTS: &[bool] = &[false, true];

/// Runs `petrel bench sessions`, and prints the figures.
pub(super) fn run(args: &SessionsArgs, output: Output) -> Result<Outcome, Failure> {
    let mut report = Figures::new(output);
    for transport in &args.transport {
        let calls = args.calls.rate(*transport, args.cores, &args.windows, SessionPlan::DEFAULT);
        let hints = BOTH_HINTS;
        let sessions = Sessions { calls, count: args.sessions, hints, has_steps: true };
        sessions.add_to(&mut report, |figure| figure)?;
        add_memory(&mut report, *transport, args.sessions, |figure| figure)?;
    }
    report.show()
}

/// Adds the figures of the memory of idle sessions.
pub(super) fn add_memory(
    report: &mut Figures,
    transport: BenchTransport,
    sessions: usize,
    judge: impl Fn(Figure) -> Figure,
) -> Result<(), Failure> {
    if report.is_interrupted() {
        return Ok(());
    }
    let figures = match memory::run(transport, sessions) {
        // The signal of Ctrl-C has ended the measured process, too.
        Err(_) if report.is_interrupted() => return Ok(()),
        measured => measured?,
    };
    figures.into_iter().try_for_each(|figure| report.add(judge(figure)))
}

#[derive(Clone, Debug)]
pub(super) struct Sessions {
    /// The calls, on one session or many.
    pub(super) calls: Measurement,
    /// The largest number of sessions.
    pub(super) count: usize,
    /// Whether calls are announced: without, with, or both in turn.
    pub(super) hints: &'static [bool],
    /// Whether the smaller numbers are measured as well.
    pub(super) has_steps: bool,
}

impl Sessions {
    /// Measures every step, and adds its figure.
    pub(super) fn add_to(
        &self,
        report: &mut Figures,
        judge: impl Fn(Figure) -> Figure,
    ) -> Result<(), Failure> {
        if report.is_interrupted() {
            return Ok(());
        }
        let measurement = &self.calls;
        let mut watch =
            report.progress_bar(&format!("sessions over {}", measurement.transport.name()));
        let test_bed = TestBed::new(measurement.cores, measurement.pace.is_realtime)?;
        let selection = Selection::all();
        let many = Shape {
            sessions: self.count,
            choice: Choice::Random,
            selection: Rc::clone(&selection),
            ..measurement.shape()
        };
        let one = Shape { sessions: 1, ..measurement.shape() };
        let mut many = measurement.library(&test_bed, &many)?;
        let mut one = measurement.library(&test_bed, &one)?;
        let steps = self.steps();
        for (step, &(count, is_announced)) in (0..).zip(&steps) {
            selection.limit.set(count);
            selection.is_announced.set(is_announced);
            let one: &mut dyn Side = one.as_mut();
            let beside = Some((one, Baseline::OneSession));
            let describe = |setting| self.describe(setting, (count, is_announced));
            let figure = measurement.compare(
                &test_bed,
                (many.as_mut(), beside),
                describe,
                |pairs, total| {
                    watch(step * total + pairs, steps.len() as u32 * total);
                },
            )?;
            report.add(judge(figure))?;
        }
        Ok(())
    }

    /// Returns the measured numbers of sessions, and whether calls are announced.
    fn steps(&self) -> Vec<(usize, bool)> {
        let smaller = STEPS.into_iter().filter(|step| self.has_steps && *step < self.count);
        let counts = smaller.chain([self.count]);
        counts.flat_map(|count| self.hints.iter().map(move |hint| (count, *hint))).collect()
    }

    fn describe(&self, setting: Setting, (sessions, is_announced): (usize, bool)) -> Setting {
        let (bench, announced) = ("sessions", Some(is_announced));
        Setting { bench, sessions, announced, command: self.command(), ..setting }
    }

    /// Returns the command that repeats the measurement.
    fn command(&self) -> String {
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
    use crate::measure::figure::Quantity;
    use crate::measure::measurement::Beside;
    use crate::measure::pairs::Pace;
    use petrel_command::args::BenchTransport;

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
            plan: SessionPlan::DEFAULT,
            beside: Beside::Bare,
            connect: None,
        };
        let steps = |count, hints, has_steps| {
            Sessions { calls: calls.clone(), count, hints, has_steps }.steps()
        };
        assert_eq!(steps(20_000, &[false], true), STEPS.map(|step| (step, false)));
        assert_eq!(steps(500, &[true], true), [1, 100, 500].map(|step| (step, true)));
        assert_eq!(steps(500, BOTH_HINTS, false), [(500, false), (500, true)]);
        assert_eq!(steps(1, &[false], true), [(1, false)]);
    }
}
