//! `petrel bench`: the library beside the bare medium, in alternating windows.
//!
//! | module | concern |
//! | --- | --- |
//! | `measurement` | latency, rate and bandwidth: which ends, which bare medium |
//! | `stage`, `far` | threads and CPUs, and the ends in their places |
//! | `ends` | what an end is; a window of calls |
//! | `library`, `load` | the library's ends; the calls and the check of their replies |
//! | `bare` | the bare media |
//! | `pairs`, `probe` | windows in turn; which of them count |
//! | `window`, `statistics`, `figure` | what was counted, and what follows from it |
//! | `target` | what a figure must reach |
//! | `table` | figures for people |

mod bare;
mod ends;
mod far;
mod figure;
mod library;
mod load;
mod measurement;
mod pairs;
mod probe;
mod stage;
mod statistics;
mod table;
mod target;
mod window;

use crate::Outcome;
use crate::cli::{BenchArgs, BenchCommand, EndsArgs, WindowArgs};
use crate::failure::Failure;
use crate::output::Output;

pub(crate) use self::figure::{Figure, Quantity};
pub(crate) use self::measurement::Measurement;
pub(crate) use self::stage::Cores;
pub(crate) use self::table::{footer, table};

/// Measures and prints.
pub(crate) fn run(args: &BenchArgs, output: Output) -> Result<Outcome, Failure> {
    let figures = run_all(&measurements(args), output)?;
    output.line(table(&figures, output))?;
    output.line(footer(&figures))?;
    Ok(outcome(&figures))
}

/// Makes the measurements one after the other, with a progress bar each; prints them as JSON.
pub(crate) fn run_all(
    measurements: &[Measurement],
    output: Output,
) -> Result<Vec<Figure>, Failure> {
    measurements.iter().map(|measurement| run_one(measurement, output)).collect()
}

fn run_one(measurement: &Measurement, output: Output) -> Result<Figure, Failure> {
    let title = format!("{} over {}", measurement.quantity.name(), measurement.transport.name());
    let mut progress = None;
    let figure = measurement.run(|done, total| {
        let bar = || output.progress(total.into(), &format!("{title} (windows)"));
        progress.get_or_insert_with(bar).set(done.into());
    })?;
    output.record(&figure)?;
    Ok(figure)
}

/// Failure if a call of any measurement failed or was answered wrongly.
pub(crate) fn outcome(figures: &[Figure]) -> Outcome {
    match figures.iter().all(Figure::is_flawless) {
        true => Outcome::Success,
        false => Outcome::Failure,
    }
}

fn measurements(args: &BenchArgs) -> Vec<Measurement> {
    let (quantity, size, in_flight, batch, ends, windows) = match &args.what {
        BenchCommand::Latency(args) => {
            (Quantity::Latency, args.size, args.in_flight, 1, &args.ends, &args.windows)
        }
        BenchCommand::Rate(args) => {
            let batch = args.batch.min(args.in_flight);
            (Quantity::Rate, args.size, args.in_flight, batch, &args.ends, &args.windows)
        }
        BenchCommand::Bandwidth(args) => {
            (Quantity::Bandwidth, args.size, args.in_flight, 1, &args.ends, &args.windows)
        }
    };
    let EndsArgs { transport, cores, connect, endpoint } = ends;
    let WindowArgs { duration, window, .. } = windows;
    let measurement = |transport| Measurement {
        quantity,
        transport,
        cores: Cores::available(if *cores == 1 { Cores::One } else { Cores::Two }),
        size,
        in_flight,
        batch,
        duration: *duration,
        window: *window,
        connect: connect.clone().map(|server| (server, *endpoint)),
    };
    transport.iter().map(|transport| measurement(*transport)).collect()
}
