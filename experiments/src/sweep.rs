//! Sweeps: the rate against the calls started together (eRPC figure 4), and the bandwidth against the size of
//! the requests (eRPC figure 6). Every point is a measurement of its own beside the bare medium.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::interrupt;
use petrel_command::output::Output;

use petrel_bench::measure::figure::{Figure, Quantity};
use petrel_bench::measure::measurement::{Beside, Measurement, SessionPlan};
use petrel_bench::measure::test_bed::Cores;
use petrel_bench::report::figures::Figures;

use crate::args::{SweepArgs, SweepKind};
use crate::report::chart::{self, Axis, Chart};

/// Calls in flight of a sweep over batches: eRPC's figure has 60 (§6.2).
const IN_FLIGHT: u16 = 60;

/// Bytes of the small calls.
const SMALL_BYTES: usize = 32;

/// Calls started together, by default.
const BATCHES: [u16; 7] = [1, 3, 5, 8, 11, 16, 32];

/// Sizes of requests, by default. The baseline over shared memory copies chunks of 8 KiB.
const SIZES: [usize; 6] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20];

/// Runs a sweep, and prints its figures.
pub(crate) fn run(args: &SweepArgs, output: Output) -> Result<Outcome, Failure> {
    // Before any thread starts.
    interrupt::note()?;
    let mut report = Figures::new(output);
    for measurement in measurements(args) {
        report.measure(&measurement, |figure| figure)?;
    }
    if let Some(path) = args.plot.as_deref() {
        chart::draw(path, &plot(args.what, report.all()))?;
        output.line(format!("Plot: {}", path.display()))?;
    }
    report.show()
}

fn measurements(args: &SweepArgs) -> Vec<Measurement> {
    let base = |transport| Measurement {
        quantity: args.what.quantity(),
        transport,
        cores: Cores::requested(args.cores),
        size: SMALL_BYTES,
        in_flight: 1,
        batch: 1,
        pace: args.windows.pace(),
        plan: SessionPlan::DEFAULT,
        beside: Beside::Bare,
        connect: None,
    };
    let points = |transport| -> Vec<Measurement> {
        match args.what {
            SweepKind::Batch => {
                let point = |batch| Measurement { in_flight: IN_FLIGHT, batch, ..base(transport) };
                BATCHES.into_iter().map(point).collect()
            }
            SweepKind::Size => {
                let sizes = SIZES.into_iter().filter(|size| *size <= args.size_max);
                sizes.map(|size| Measurement { size, ..base(transport) }).collect()
            }
        }
    };
    args.transport.iter().flat_map(|transport| points(*transport)).collect()
}

/// Returns the lines of both sides, by transport.
fn plot(what: SweepKind, figures: &[Figure]) -> Chart {
    let mut chart = match what {
        SweepKind::Batch => Chart::new(
            "Small calls, 60 in flight, against the calls started together",
            Axis::linear("calls started together"),
            Axis::linear("million calls per second"),
        ),
        SweepKind::Size => Chart::new(
            "Large requests, one outstanding, against their size",
            Axis::log("bytes"),
            Axis::linear("Gbit/s"),
        ),
    };
    for figure in figures {
        let setting = &figure.setting;
        let x = match what {
            SweepKind::Batch => f64::from(setting.batch),
            SweepKind::Size => setting.size_bytes as f64,
        };
        chart.add(&format!("Petrel over {}", setting.transport), (x, figure.value));
        if let Some(bare) = figure.bare {
            chart.add(&format!("bare {}", setting.transport), (x, bare));
        }
    }
    chart
}

impl SweepKind {
    fn quantity(self) -> Quantity {
        match self {
            Self::Batch => Quantity::Rate,
            Self::Size => Quantity::Bandwidth,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use petrel_bench::args::WindowArgs;
    use petrel_command::args::BenchTransport;

    fn args(what: SweepKind, size_max: usize) -> SweepArgs {
        let [duration, window] = [Duration::from_secs(1), Duration::from_millis(5)];
        let windows = WindowArgs { duration, window, realtime: false };
        let transport = vec![BenchTransport::Udp, BenchTransport::Shm];
        SweepArgs { what, transport, size_max, cores: 2, windows, plot: None }
    }

    #[test]
    fn measurements__differ_by_the_swept_value_alone() {
        let batches = measurements(&args(SweepKind::Batch, SIZES[0]));
        assert_eq!(batches.len(), 2 * BATCHES.len());
        for (measurement, batch) in batches.iter().zip(BATCHES.into_iter().cycle()) {
            assert_eq!((measurement.batch, measurement.in_flight), (batch, IN_FLIGHT));
            assert_eq!((measurement.size, measurement.quantity), (SMALL_BYTES, Quantity::Rate));
        }
        let sizes = measurements(&args(SweepKind::Size, 128 << 10));
        let swept: Vec<_> = sizes.iter().map(|measurement| measurement.size).collect();
        assert_eq!(swept, [SIZES[..3].to_vec(), SIZES[..3].to_vec()].concat());
        assert!(sizes.iter().all(|measurement| measurement.quantity == Quantity::Bandwidth));
    }
}
