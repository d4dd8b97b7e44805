//! The library between two network namespaces that lose packets, beside itself without loss.
//!
//! The equivalent of `petrel-experiment loss` with real packets: a rule in either namespace drops
//! some of the kernel's packets. Windows with and without loss alternate over the same sessions. Every
//! pair yields a ratio, and the median of the ratios is the figure.

mod figure;
mod filter;

use std::cell::RefCell;
use std::time::Duration;

use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_proto::Recovery;

use self::figure::check;
use petrel_bench::measure::ends::Side;
use petrel_bench::measure::figure::Quantity;
use petrel_bench::measure::library::Adjust;
use petrel_bench::measure::load::{Choice, Exchange};
use petrel_bench::measure::measurement::{Beside, Measurement, SessionPlan, Shape};
use petrel_bench::measure::pairs::{Pace, Schedule, alternate};
use petrel_bench::measure::test_bed::{Cores, TestBed};
use petrel_bench::measure::veth;
use petrel_bench::measure::window::Window;
use petrel_bench::report::progress_bar;
use petrel_command::args::BenchTransport;

pub(crate) use self::figure::LossFigure;

/// The request of eRPC's Table 4: 8 MiB.
const LARGE_BYTES: usize = 8 << 20;

const SMALL_BYTES: usize = 32;
/// Small calls in flight, and their sessions.
const SMALL_CALLS: u16 = 8;

/// The kind of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossyCalls {
    /// Requests of 8 MiB, one outstanding.
    Large,
    /// RPCs of 32 B, 8 in flight.
    Small,
}

/// The plan of a measurement: every kind of recovery with every loss.
pub(crate) struct LossPlan {
    pub(crate) calls: LossyCalls,
    pub(crate) recoveries: Vec<Recovery>,
    /// Loss probabilities, in parts per billion.
    pub(crate) losses_ppb: Vec<u32>,
    /// The pace of every figure.
    pub(crate) pace: Pace,
}

/// Runs the plan; `on_figure` gets every figure as soon as available.
pub(crate) fn run_lossy(
    plan: &LossPlan,
    output: Output,
    on_figure: &mut (dyn FnMut(&LossFigure) + Send),
) -> Result<Vec<LossFigure>, Failure> {
    veth::between(veth::MTU, plan.pace.is_realtime, |test_bed| {
        plan.run(&test_bed?, output, on_figure)
    })
}

impl LossPlan {
    fn run(
        &self,
        test_bed: &TestBed,
        output: Output,
        on_figure: &mut dyn FnMut(&LossFigure),
    ) -> Result<Vec<LossFigure>, Failure> {
        // If rules cannot be set, the measurement fails before anything else starts.
        filter::set(test_bed, 0)?;
        let mut figures = Vec::new();
        for &recovery in &self.recoveries {
            let side = RefCell::new(self.side(test_bed, recovery)?);
            for &loss_ppb in &self.losses_ppb {
                let figure = self.measure(test_bed, &side, (recovery, loss_ppb), output)?;
                on_figure(&figure);
                figures.push(figure);
            }
        }
        Ok(figures)
    }

    /// Creates the two ends, with sessions between them.
    fn side(&self, test_bed: &TestBed, recovery: Recovery) -> Result<Box<dyn Side>, Failure> {
        // Sessions are opened without loss.
        filter::set(test_bed, 0)?;
        let measurement = self.measurement();
        // All other settings are defaults.
        let adjust: Adjust = match recovery {
            Recovery::GoBackN => |config| config.protocol.recovery = Recovery::GoBackN,
            _ => |config| config.protocol.recovery = Recovery::Selective,
        };
        let shape = Shape { adjust, ..measurement.shape() };
        let shape = match self.calls {
            LossyCalls::Large => Shape { exchange: Exchange::Samples, ..shape },
            LossyCalls::Small => {
                Shape { sessions: SMALL_CALLS.into(), choice: Choice::Random, ..shape }
            }
        };
        measurement.library(test_bed, &shape)
    }

    fn measure(
        &self,
        test_bed: &TestBed,
        side: &RefCell<Box<dyn Side>>,
        (recovery, loss_ppb): (Recovery, u32),
        output: Output,
    ) -> Result<LossFigure, Failure> {
        let schedule = Schedule::new(self.pace);
        let mut with = Lossy { test_bed, side, loss_ppb };
        let mut without = Lossy { test_bed, side, loss_ppb: 0 };
        let loss = f64::from(loss_ppb) / f64::from(filter::WHOLE);
        let mut watch = progress_bar(output, &format!("{}, loss {loss:e}", figure::name(recovery)));
        let pairs = alternate(schedule, &mut with, Some(&mut without), None, |done| {
            watch(done, schedule.pairs);
        })?;
        check(&pairs)?;
        LossFigure::new(self, test_bed, (recovery, loss), pairs)
    }

    fn measurement(&self) -> Measurement {
        let (quantity, size, in_flight) = match self.calls {
            LossyCalls::Large => (Quantity::Bandwidth, LARGE_BYTES, 1),
            LossyCalls::Small => (Quantity::Latency, SMALL_BYTES, SMALL_CALLS),
        };
        Measurement {
            quantity,
            transport: BenchTransport::Udp,
            cores: Cores::Two,
            size,
            in_flight,
            batch: 1,
            pace: self.pace,
            plan: SessionPlan::Raised,
            beside: Beside::Bare,
            connect: None,
        }
    }
}

/// The library with packet loss.
struct Lossy<'a> {
    test_bed: &'a TestBed,
    side: &'a RefCell<Box<dyn Side>>,
    loss_ppb: u32,
}

impl Side for Lossy<'_> {
    fn window(&mut self, length: Duration) -> Result<Window, Failure> {
        filter::set(self.test_bed, self.loss_ppb)?;
        let mut window = self.side.borrow_mut().window(length)?;
        window.packets = filter::count(self.test_bed)?;
        Ok(window)
    }
}
