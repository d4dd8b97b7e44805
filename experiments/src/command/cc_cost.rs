//! `cc-cost`: the cost of congestion control without congestion.

use crate::sim::cc_cost::{CostConfig, CostRow, run as run_cost};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::units::format_bytes;

use super::chart::{Axis, Chart};
use super::report::{Column, Row, digits, us_of};
use super::{command, simulate};
use petrel_bench::args::{BenchTransport, InstructionsArgs};

use crate::args::CcCostArgs;
use petrel_bench::run_instructions;

/// Runs the experiment and prints its figures.
pub(super) fn run(args: &CcCostArgs, output: Output) -> Result<Outcome, Failure> {
    let config = args.common.choose(CostConfig::quick, CostConfig::full);
    let repeat = command("cc-cost", &args.common);
    let outcome = simulate(&args.common, output, &repeat, |on_row| run_cost(&config, on_row))?;
    // Counting takes a minute.
    if args.common.quick {
        return Ok(outcome);
    }
    let transport = vec![BenchTransport::Udp];
    run_instructions(&InstructionsArgs { transport }, output)
}

impl Row for CostRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("request", |row| format_bytes(row.request_bytes as u64)),
        ("in flight", |row| row.in_flight.to_string()),
        ("control", |row| row.controller.to_string()),
        ("calls/s", |row| digits(row.calls_per_s)),
        ("relative", |row| format!("{:.4}", row.relative)),
        ("p50 us", |row| us_of(row.latency.p50_ns)),
        ("p99 us", |row| us_of(row.latency.p99_ns)),
        ("calls", |row| row.calls.to_string()),
        ("bypassed", |row| row.acks_bypassed.to_string()),
        ("heard", |row| row.updates.to_string()),
        ("limited", |row| row.sessions_limited.to_string()),
    ];

    fn remarks(_rows: &[Self]) -> Vec<String> {
        let text = "Virtual time charges nothing for congestion control: what is shown is whether it \
                    holds anything back. What it takes of a real core are instructions, which \
                    follow unless --quick is given.";
        vec![text.to_owned()]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::log("bytes of a request");
        let y = Axis::linear("rate relative to no control");
        let mut chart = Chart::new("Congestion control without congestion", x, y);
        for row in rows {
            chart.add(row.controller.name(), (row.request_bytes as f64, row.relative));
        }
        chart
    }
}
