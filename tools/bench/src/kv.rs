//! The replicated store as applications use it: three processes of `petrel kv serve`, and the store's client.
//!
//! Only the flags change settings: the replicas' idle policy is the default, and the kernel places the threads. Raw
//! calls to the replicas share the windows of the client's operations. They show the cost of the calls, and by
//! difference the cost of the client. Keys exist before they are put again, and every answer is checked.

mod args;
mod clients;
mod cluster;
mod etcd;
mod load;
mod workload;

use std::collections::BTreeMap;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::latency::LatencySummary;
use petrel_command::output::{Column, Output};
use petrel_command::text::again;
use petrel_command::units::format_ns;
use serde::Serialize;

pub(crate) use self::args::KvBenchArgs;
use self::clients::Clients;
use self::cluster::Cluster;
use self::load::Loader;
use self::workload::{Counts, Kind};
use crate::measure::statistics::format_ratio;
use petrel_command::args::BenchTransport;

/// A result row, for one number of outstanding operations.
#[derive(Serialize)]
struct Row {
    bench: &'static str,
    what: &'static str,
    transport: &'static str,
    clients: usize,
    per_second: f64,
    p50_ns: u64,
    p99_ns: u64,
    /// Median latency divided by the latency of the raw put in the shared windows.
    p50_over_raw_put: Option<f64>,
    /// Rate divided by the rate of etcd's puts, and etcd's median divided by this row's median.
    rate_over_etcd: Option<f64>,
    etcd_p50_over: Option<f64>,
    /// Wrong answers.
    wrong: u64,
}

pub(super) fn run(args: &KvBenchArgs, output: Output) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for transport in &args.transport {
        rows.extend(measure(args, *transport, output)?);
    }
    if let Some(program) = &args.etcd {
        compare(&mut rows, &etcd::measure(program, args)?);
    }
    rows.iter().try_for_each(|row| output.record(row))?;
    output.line(output.rows(&COLUMNS, COLUMNS.len(), &rows))?;
    output.line(format!("Again:\n  {}", again()))?;
    let is_right = rows.iter().all(|row| row.wrong == 0);
    Ok(if is_right { Outcome::Success } else { Outcome::Failure })
}

/// Runs the windows of all kinds of operations in turn.
fn measure(
    args: &KvBenchArgs,
    transport: BenchTransport,
    output: Output,
) -> Result<Vec<Row>, Failure> {
    let cluster = Cluster::start(args, transport)?;
    let mut endpoint = cluster.client_endpoint()?;
    let most = args.clients.iter().copied().max().unwrap_or(1);
    let mut loader = Loader::connect(&mut endpoint, &cluster, most, args.keys)?;
    loader.write_all(&mut endpoint, output)?;
    let mut clients = Clients::connect(&mut endpoint, &cluster, most, args.keys)?;
    let mut rows = Vec::new();
    for count in &args.clients {
        let mut counts_by_kind: BTreeMap<Kind, Counts> = BTreeMap::new();
        let mut left = args.duration;
        while !left.is_zero() {
            let window = left.min(args.window);
            for kind in Kind::all(*count) {
                let counts = if kind.is_raw() {
                    loader.run(&mut endpoint, kind, *count, window)?
                } else {
                    clients.run(&mut endpoint, kind, *count, window)?
                };
                counts_by_kind.entry(kind).or_default().add(&counts);
            }
            left -= window;
        }
        rows.extend(rows_of(transport, *count, &counts_by_kind));
    }
    cluster.check_equal(&mut endpoint)?;
    Ok(rows)
}

fn rows_of(
    transport: BenchTransport,
    clients: usize,
    counts_by_kind: &BTreeMap<Kind, Counts>,
) -> Vec<Row> {
    let summary = |counts: &Counts| counts.latencies.summary();
    let raw_put = counts_by_kind.get(&Kind::RawPut).and_then(summary);
    let row = |(kind, counts): (&Kind, &Counts)| {
        let latency = summary(counts)?;
        let over = |raw: &LatencySummary| latency.p50_ns as f64 / raw.p50_ns.max(1) as f64;
        Some(Row {
            bench: "kv",
            what: kind.name(),
            transport: transport.name(),
            clients,
            per_second: counts.per_second(),
            p50_ns: latency.p50_ns,
            p99_ns: latency.p99_ns,
            p50_over_raw_put: raw_put.as_ref().map(over),
            rate_over_etcd: None,
            etcd_p50_over: None,
            wrong: counts.wrong,
        })
    };
    counts_by_kind.iter().filter_map(row).collect()
}

/// Appends etcd's rows, and writes the ratios into the other rows.
fn compare(rows: &mut Vec<Row>, etcd: &[etcd::EtcdRow]) {
    for row in rows.iter_mut() {
        if let Some(other) = etcd.iter().find(|other| other.clients == row.clients) {
            row.rate_over_etcd = Some(row.per_second / other.puts_per_s);
            row.etcd_p50_over = Some(other.p50_us * 1e3 / row.p50_ns.max(1) as f64);
        }
    }
    rows.extend(etcd.iter().map(|other| Row {
        bench: "kv",
        what: "put, etcd",
        transport: "tcp",
        clients: other.clients,
        per_second: other.puts_per_s,
        p50_ns: (other.p50_us * 1e3) as u64,
        p99_ns: (other.p99_us * 1e3) as u64,
        p50_over_raw_put: None,
        rate_over_etcd: None,
        etcd_p50_over: None,
        wrong: 0,
    }));
}

const COLUMNS: [Column<Row>; 10] = [
    ("transport", |row| row.transport.to_owned()),
    ("clients", |row| row.clients.to_string()),
    ("what", |row| row.what.to_owned()),
    ("per second", |row| format!("{:.0}", row.per_second)),
    ("p50", |row| format_ns(row.p50_ns)),
    ("p99", |row| format_ns(row.p99_ns)),
    ("p50 / raw put's", |row| format_ratio(row.p50_over_raw_put)),
    ("rate / etcd's", |row| format_ratio(row.rate_over_etcd)),
    ("etcd's p50 / p50", |row| format_ratio(row.etcd_p50_over)),
    ("wrong", |row| row.wrong.to_string()),
];
