//! The paper's network, simulated in place of this machine's.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::units::format_ns;
use petrel_kv_check::{LatencyReport, Times, simulate_latency};

pub(super) fn simulate(puts: usize, output: Output) -> Result<Outcome, Failure> {
    let report = simulate_latency(1, puts).map_err(Failure::because)?;
    output.record(&report)?;
    output.line(table(&report, output))?;
    output.line(costs(&report))?;
    output.line(format!("Again:\n  petrel bench kv --simulated {puts}"))?;
    Ok(Outcome::Success)
}

/// Shows medians only: the charged costs are constants, so a higher percentile carries no information.
fn table(report: &LatencyReport, output: Output) -> comfy_table::Table {
    let mut table = output.table(&["simulated", "p50", "round trips"]);
    let mut row = |name: &str, times: &Times| {
        let ratio = times.p50_ns as f64 / report.echo.p50_ns as f64;
        table.add_row([name.to_owned(), format_ns(times.p50_ns), format!("{ratio:.2}")]);
    };
    row("echo", &report.echo);
    row("put, at the client", &report.client);
    row("put, at the leader", &report.leader);
    table
}

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
