//! `petrel bench`: latency, rate and bandwidth, one measurement for each transport.

use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table};

use crate::Outcome;
use crate::cli::{BenchArgs, BenchCommand, BenchCommon};
use crate::failure::Failure;
use crate::measure::{Figure, Measurement, Quantity};
use crate::output::Output;
use crate::output::latency::LatencySummary;
use crate::units::format_bytes;

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
    let total_ms = measurement.duration.as_millis() as u64;
    let mut progress = output.progress(total_ms, &format!("{title} (ms)"));
    let figure = measurement.run(|elapsed: Duration| {
        progress.set(total_ms.min(elapsed.as_millis() as u64));
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
    let (quantity, size, in_flight, common) = match &args.what {
        BenchCommand::Latency(args) => (Quantity::Latency, args.size, args.in_flight, &args.common),
        BenchCommand::Rate(args) => (Quantity::Rate, args.size, args.in_flight, &args.common),
        BenchCommand::Bandwidth(args) => {
            (Quantity::Bandwidth, args.size, args.in_flight, &args.common)
        }
    };
    let BenchCommon { transport, duration, connect, endpoint } = common;
    let measurement = |transport| Measurement {
        quantity,
        transport,
        size,
        in_flight,
        duration: *duration,
        connect: connect.clone().map(|server| (server, *endpoint)),
    };
    transport.iter().map(|transport| measurement(*transport)).collect()
}

/// A row for each figure.
pub(crate) fn table(figures: &[Figure], output: Output) -> Table {
    let head = ["bench", "over", "message", "in flight", "result"];
    let header: Vec<&str> =
        head.into_iter().chain(LatencySummary::HEADER).chain(["checked", "resent"]).collect();
    let mut table = output.table(&header);
    figures.iter().for_each(|figure| {
        table.add_row(row(figure));
    });
    table
}

fn row(figure: &Figure) -> Vec<Cell> {
    let latency = figure.latency.map_or_else(Default::default, |latency| latency.cells());
    let words = [figure.bench.name().to_owned(), figure.transport.to_owned()];
    let numbers = [
        format_bytes(figure.size_bytes as u64),
        figure.in_flight.to_string(),
        format!("{} {}", three_digits(figure.value), figure.unit),
    ];
    let counts = [figure.checked, figure.retransmissions].map(|count| count.to_string());
    let right = |text| Cell::new(text).set_alignment(CellAlignment::Right);
    let numbers = numbers.into_iter().chain(latency).chain(counts).map(right);
    words.into_iter().map(Cell::new).chain(numbers).collect()
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v < 0.1 => 4,
        v if v < 1.0 => 3,
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// What went wrong, if anything; and how to do it again.
pub(crate) fn footer(figures: &[Figure]) -> String {
    let mut lines = Vec::new();
    for figure in figures {
        let what = format!("{} over {}", figure.bench.name(), figure.transport);
        if figure.mismatched > 0 {
            lines.push(format!("{what}: {} REPLIES WERE WRONG", figure.mismatched));
        }
        lines.extend(figure.failures.iter().map(|failures| format!("{what}: {failures}")));
    }
    lines.push(cpus(figures));
    lines.push("Again:".to_owned());
    lines.extend(figures.iter().map(|figure| format!("  {}", figure.command)));
    lines.join("\n")
}

fn cpus(figures: &[Figure]) -> String {
    match figures.first().and_then(|figure| figure.cores) {
        Some([client, server]) => {
            format!("Both ends on this host: client on CPU {client}, server on CPU {server}.")
        }
        None => "Neither end is bound to a CPU.".to_owned(),
    }
}
