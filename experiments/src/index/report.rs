//! The figures computed from the windows, as a table and as JSON.

use petrel_command::failure::Failure;
use petrel_command::output::latency::{LatencySummary, format_percentile};
use petrel_command::output::{Column, Output};
use petrel_command::units::{exact_duration, format_rate};
use serde::Serialize;

use super::IndexArgs;
use super::{KINDS, Kind, Series};
use petrel_bench::measure::statistics::{Spread, median, spread};
use petrel_command::args::BenchTransport;

/// The figures of a transport.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    bench: &'static str,
    transport: &'static str,
    keys: u32,
    clients: u16,
    outstanding: u16,
    scans_percent: u8,
    workers: u16,
    prefetches: bool,
    /// CPUs of the clients and of the dispatch thread; or their shared CPU and the workers' CPU.
    cpus: Option<[usize; 2]>,
    windows: usize,
    rows: Vec<Row>,
    /// The median over the rounds of lookups per second divided by echoes per second.
    pub(super) lookups_of_echoes: f64,
    lookups_of_echoes_spread: Option<Spread>,
    /// `lookups_of_echoes` with clients and dispatch endpoint on one CPU.
    lookups_of_echoes_one_cpu: f64,
    lookups_of_echoes_one_cpu_spread: Option<Spread>,
    /// The lookups' p99 with scans in the dispatch thread, divided by the p99 with scans in workers.
    p99_dispatch_over_workers: Option<f64>,
    pub(super) wrong: u64,
    command: String,
}

/// The figures of a kind of window.
#[derive(Clone, Debug, Serialize)]
struct Row {
    kind: &'static str,
    /// Lookups or echoes per second: the median of the windows.
    rate_per_s: f64,
    rate_spread: Option<Spread>,
    checked: u64,
    scans: u64,
    /// Scans refused by the workers' queue.
    refused: u64,
    latency: Option<LatencySummary>,
    scan_latency: Option<LatencySummary>,
}

impl Report {
    pub(super) fn new(
        args: &IndexArgs,
        transport: BenchTransport,
        cpus: Option<[usize; 2]>,
        all: &[Series; KINDS.len()],
    ) -> Self {
        let series_of =
            |kind| &all[KINDS.iter().position(|other| *other == kind).expect("it is one of them")];
        let two_cpus = ratios(series_of(Kind::Lookups), series_of(Kind::Echo));
        let one_cpu = ratios(series_of(Kind::LookupsOneThread), series_of(Kind::EchoOneThread));
        let p99 = |kind| Some(series_of(kind).latencies[0].summary()?.p99_ns as f64);
        let p99s = p99(Kind::ScansInDispatch).zip(p99(Kind::ScansInWorkers));
        Self {
            bench: "index",
            transport: transport.name(),
            keys: args.keys,
            clients: args.clients,
            outstanding: args.outstanding,
            scans_percent: args.scans,
            workers: args.workers,
            prefetches: !args.no_prefetch,
            cpus,
            windows: two_cpus.len(),
            rows: KINDS.iter().zip(all).map(|(kind, series)| Row::new(*kind, series)).collect(),
            lookups_of_echoes: median(two_cpus.iter().copied()).unwrap_or_default(),
            lookups_of_echoes_spread: spread(two_cpus),
            lookups_of_echoes_one_cpu: median(one_cpu.iter().copied()).unwrap_or_default(),
            lookups_of_echoes_one_cpu_spread: spread(one_cpu),
            p99_dispatch_over_workers: p99s.map(|(dispatch, workers)| dispatch / workers),
            wrong: all.iter().map(|series| series.wrong).sum(),
            command: command(args),
        }
    }
}

/// Returns the ratios, window by window.
fn ratios(lookups: &Series, echoes: &Series) -> Vec<f64> {
    lookups.rates.iter().zip(&echoes.rates).map(|(lookups, echoes)| lookups / echoes).collect()
}

impl Row {
    fn new(kind: Kind, series: &Series) -> Self {
        Self {
            kind: kind.name(),
            rate_per_s: median(series.rates.iter().copied()).unwrap_or_default(),
            rate_spread: spread(series.rates.iter().copied()),
            checked: series.lookups + series.scans + series.echoes,
            scans: series.scans,
            refused: series.refused,
            latency: series.latencies[0].summary(),
            scan_latency: series.latencies[1].summary(),
        }
    }
}

fn command(args: &IndexArgs) -> String {
    let transports: Vec<_> = args.transport.iter().map(|transport| transport.name()).collect();
    format!(
        "petrel-experiment index --transport {} --keys {} --clients {} --outstanding {} --scans {} \
         --workers {} --worker-spin {} --rounds {} --window {}{}",
        transports.join(","),
        args.keys,
        args.clients,
        args.outstanding,
        args.scans,
        args.workers,
        exact_duration(args.worker_spin),
        args.rounds,
        exact_duration(args.window),
        if args.no_prefetch { " --no-prefetch" } else { "" },
    )
}

/// Prints the tables.
pub(super) fn show(reports: &[Report], args: &IndexArgs, output: Output) -> Result<(), Failure> {
    let columns: [Column<(&Report, &Row)>; 10] = [
        ("over", |(report, _)| report.transport.to_owned()),
        ("what", |(_, row)| row.kind.to_owned()),
        ("per second", |(_, row)| format_rate(row.rate_per_s, "")),
        ("p50", |(_, row)| format_percentile(&row.latency, |latency| latency.p50_ns)),
        ("p99", |(_, row)| format_percentile(&row.latency, |latency| latency.p99_ns)),
        ("p99.9", |(_, row)| format_percentile(&row.latency, |latency| latency.p999_ns)),
        ("scan p50", |(_, row)| format_percentile(&row.scan_latency, |latency| latency.p50_ns)),
        ("scan p99", |(_, row)| format_percentile(&row.scan_latency, |latency| latency.p99_ns)),
        ("refused", |(_, row)| row.refused.to_string()),
        ("checked", |(_, row)| row.checked.to_string()),
    ];
    let rows = reports.iter().flat_map(|report| report.rows.iter().map(move |row| (report, row)));
    let rows: Vec<_> = rows.collect();
    output.line(output.rows(&columns, 2, &rows))?;
    for report in reports {
        output.line(report.verdict())?;
    }
    output.line(format!("Again:\n  {}", command(args)))?;
    Ok(())
}

impl Report {
    fn verdict(&self) -> String {
        let two_cpus = share(self.lookups_of_echoes, self.lookups_of_echoes_spread);
        let one_cpu = share(self.lookups_of_echoes_one_cpu, self.lookups_of_echoes_one_cpu_spread);
        let p99 = self.p99_dispatch_over_workers.map_or(String::new(), |ratio| {
            format!("; workers make the p99 of lookups {ratio:.2} times lower")
        });
        format!(
            "{}: lookups at {two_cpus} of the echo's rate, {one_cpu} where clients and dispatch share a CPU{p99}; \
             {} wrong answers",
            self.transport, self.wrong
        )
    }
}

fn share(median: f64, spread: Option<Spread>) -> String {
    let quartiles = spread.map(|spread| format!(" ({:.2} to {:.2})", spread.q1, spread.q3));
    format!("{median:.2}{}", quartiles.unwrap_or_default())
}
