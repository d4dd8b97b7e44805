//! Replicated puts (eRPC §7.1): three replicas as processes of their own, and clients in this one.
//!
//! The leader has a CPU for itself. Where there are fewer than four, its followers and the clients share the
//! other one, and each gives it up when it has nothing to do; an echo, answered by the leader in the same
//! place, tells what that costs without Raft. Keys are there before they are put again, and every answer is
//! checked.

mod cluster;
mod load;
mod replica;

use std::path::Path;

use petrel_kv_check::{LatencyReport, Times, simulate_latency};
use serde::Serialize;

use self::cluster::Cluster;
use self::load::{Kind, Loader};
use super::plot::{self, Bar};
use crate::Outcome;
use crate::cli::{BenchTransport, KvBenchArgs, KvReplicaArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::output::latency::LatencySummary;
use crate::units::{exact_duration, format_ns};

/// One row: so many clients, each with one call under way.
#[derive(Serialize)]
struct Row {
    bench: &'static str,
    transport: &'static str,
    clients: usize,
    per_second: f64,
    #[serde(flatten)]
    latency: Option<LatencySummary>,
    /// From the arrival of a put at the leader to its answer: of all puts so far.
    leader_p50_ns: Option<u64>,
    leader_p99_ns: Option<u64>,
    /// Answers that were not what they should be.
    wrong: u64,
}

/// The process of a replica.
pub(super) fn run_replica(args: &KvReplicaArgs) -> Result<(), Failure> {
    replica::run(args)
}

pub(super) fn run(args: &KvBenchArgs, output: Output) -> Result<Outcome, Failure> {
    if let Some(puts) = args.simulated {
        return simulate(puts, output);
    }
    let mut rows = Vec::new();
    for transport in &args.transport {
        rows.extend(measure(args, *transport, output)?);
    }
    rows.iter().try_for_each(|row| output.record(row))?;
    output.line(table(&rows, output))?;
    output.line(format!("Again:\n  {}", command(args)))?;
    if let Some(path) = &args.plot {
        draw(&rows, path)?;
    }
    let is_right = rows.iter().all(|row| row.wrong == 0);
    Ok(if is_right { Outcome::Success } else { Outcome::Failure })
}

/// Echoes and puts take their windows in turn, with the same clients.
fn measure(
    args: &KvBenchArgs,
    transport: BenchTransport,
    output: Output,
) -> Result<Vec<Row>, Failure> {
    let cluster = Cluster::start(args, transport)?;
    let mut rows = Vec::new();
    let most = args.clients.iter().copied().max().unwrap_or(1);
    let mut loader = Loader::connect(&cluster, most, args.keys)?;
    loader.write_all(output)?;
    for clients in &args.clients {
        loader.begin_row(*clients);
        let mut left = args.duration;
        while !left.is_zero() {
            let window = left.min(args.window);
            loader.run(Kind::Echo, window)?;
            loader.run(Kind::Put, window)?;
            left -= window;
        }
        let leader = cluster.leader_times(&mut loader);
        rows.extend([Kind::Echo, Kind::Put].map(|kind| {
            let tally = loader.take(kind);
            let leader = leader.filter(|_| kind == Kind::Put);
            Row {
                bench: match kind {
                    Kind::Echo => "kv-echo",
                    Kind::Put => "kv-put",
                },
                transport: transport.name(),
                clients: *clients,
                per_second: tally.per_second(),
                latency: tally.latencies.summary(),
                leader_p50_ns: leader.map(|times| times.0),
                leader_p99_ns: leader.map(|times| times.1),
                wrong: tally.wrong,
            }
        }));
    }
    cluster.check_equal(&mut loader)?;
    Ok(rows)
}

fn table(rows: &[Row], output: Output) -> comfy_table::Table {
    let mut table = output.table(&[
        "transport",
        "clients",
        "what",
        "per second",
        "p50",
        "p99",
        "leader p50",
        "p99",
        "wrong",
    ]);
    for row in rows {
        let time = |of: fn(&LatencySummary) -> u64| {
            row.latency.as_ref().map_or_else(String::new, |latency| format_ns(of(latency)))
        };
        table.add_row([
            row.transport.to_owned(),
            row.clients.to_string(),
            if row.bench == "kv-put" { "put" } else { "echo" }.to_owned(),
            format!("{:.0}", row.per_second),
            time(|latency| latency.p50_ns),
            time(|latency| latency.p99_ns),
            row.leader_p50_ns.map_or_else(String::new, format_ns),
            row.leader_p99_ns.map_or_else(String::new, format_ns),
            row.wrong.to_string(),
        ]);
    }
    table
}

/// Draws medians of puts over those of the echoes beside them.
fn draw(rows: &[Row], path: &Path) -> Result<(), Failure> {
    let mut bars = Vec::new();
    for pair in rows.chunks(2) {
        if let [Row { latency: Some(echo), .. }, Row { latency: Some(put), .. }] = pair {
            let ratio = put.p50_ns as f64 / echo.p50_ns.max(1) as f64;
            let label = format!("{}, {} clients", pair[0].transport, pair[0].clients);
            bars.push(Bar::new(label, ratio, None));
        }
    }
    plot::draw_bars(path, "Replicated puts", "median of puts over that of echoes", &bars)
}

/// The command that repeats it.
fn command(args: &KvBenchArgs) -> String {
    let transports: Vec<_> = args.transport.iter().map(|transport| transport.name()).collect();
    let clients: Vec<_> = args.clients.iter().map(usize::to_string).collect();
    let realtime = if args.realtime { " --realtime" } else { "" };
    format!(
        "petrel bench kv --transport {} --clients {} --keys {} --duration {} --window {}{realtime}",
        transports.join(","),
        clients.join(","),
        args.keys,
        exact_duration(args.duration),
        exact_duration(args.window),
    )
}

/// The paper's network instead of this machine's.
fn simulate(puts: usize, output: Output) -> Result<Outcome, Failure> {
    let report = simulate_latency(1, puts).map_err(Failure::because)?;
    output.record(&report)?;
    output.line(simulated_table(&report, output))?;
    output.line(costs(&report))?;
    output.line(format!("Again:\n  petrel bench kv --simulated {puts}"))?;
    Ok(Outcome::Success)
}

fn simulated_table(report: &LatencyReport, output: Output) -> comfy_table::Table {
    let mut table = output.table(&["simulated", "p50", "p99", "round trips"]);
    let mut row = |name: &str, times: &Times| {
        let ratio = times.p50_ns as f64 / report.echo.p50_ns as f64;
        let times = [format_ns(times.p50_ns), format_ns(times.p99_ns)];
        let [p50, p99] = times;
        table.add_row([name.to_owned(), p50, p99, format!("{ratio:.2}")]);
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
