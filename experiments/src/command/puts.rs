//! `puts`: latency of the store's puts in the network of eRPC's paper (§7.1).

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::{Column, Output};
use petrel_command::units::format_ns;

use crate::args::PutsArgs;
use crate::puts::{LatencyReport, simulate_latency};

/// Runs the experiment, and prints its figures.
pub(super) fn run(args: &PutsArgs, output: Output) -> Result<Outcome, Failure> {
    let puts = args.puts as usize;
    let report = simulate_latency(1, puts).map_err(Failure::because)?;
    output.record(&report)?;
    let echo_ns = report.echo.p50_ns;
    let rows = [
        ("echo", echo_ns, echo_ns),
        ("put, at the client", report.client.p50_ns, echo_ns),
        ("put, at the leader", report.leader.p50_ns, echo_ns),
    ];
    output.line(output.rows(&COLUMNS, 1, &rows))?;
    output.line(costs(&report))?;
    output.line(format!("Again:\n  petrel-experiment puts --puts {puts}"))?;
    Ok(Outcome::Success)
}

/// Medians only: the charged costs are constants, so a higher percentile carries no information.
const COLUMNS: [Column<(&str, u64, u64)>; 3] = [
    ("simulated", |(name, ..)| (*name).to_owned()),
    ("p50", |(_, p50_ns, _)| format_ns(*p50_ns)),
    ("round trips", |(_, p50_ns, echo_ns)| format!("{:.2}", *p50_ns as f64 / *echo_ns as f64)),
];

fn costs(report: &LatencyReport) -> String {
    let costs = report.costs;
    format!(
        "Charged beyond an echo's cost, in ns (and afterwards): propose {} ({}), append {} ({}), commit {} ({}), the late answer {}",
        costs.propose_ns,
        costs.propose_after_ns,
        costs.append_ns,
        costs.append_after_ns,
        costs.commit_ns,
        costs.commit_after_ns,
        costs.late_ns,
    )
}
