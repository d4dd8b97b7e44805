//! `scale`: a hundred hosts, all to all.

use crate::sim::scale::{ScaleConfig, ScaleRow};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::chart::{Axis, Chart};
use super::rows::{Column, Row, digits, us_of};
use super::{command, flag, list_flag, set_list};
use crate::args::ScaleArgs;

pub(super) fn config(args: &ScaleArgs) -> ScaleConfig {
    let mut config = args.common.choose(ScaleConfig::quick, ScaleConfig::full);
    set_list(&mut config.threads, &args.threads);
    config.oversubscription = args.oversubscription.unwrap_or(config.oversubscription);
    config.controller = args.congestion.unwrap_or(config.controller);
    config
}

/// Raises the limit of open files to the maximum: every endpoint has a waker, which is a descriptor, and
/// most shells allow fewer than a thousand. If the maximum is too low, the experiment reports the error.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let _ = setrlimit(Resource::Nofile, raised);
}

pub(super) fn repeat(args: &ScaleArgs) -> String {
    [
        command("scale", &args.common),
        list_flag("threads", &args.threads),
        flag("oversubscription", args.oversubscription),
        flag("congestion", args.congestion),
    ]
    .concat()
}

impl Row for ScaleRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("hosts", |row| row.hosts.to_string()),
        ("threads", |row| row.threads.to_string()),
        ("control", |row| row.controller.to_string()),
        ("sessions/host", |row| row.sessions_per_host.to_string()),
        ("M/s per host", |row| digits(row.rate_per_host_mrps)),
        ("p50 us", |row| us_of(row.latency.p50_ns)),
        ("p99 us", |row| us_of(row.latency.p99_ns)),
        ("p99.9 us", |row| us_of(row.latency.p999_ns)),
        ("p99.99 us", |row| us_of(row.latency.p9999_ns)),
        ("sent again/s", |row| format!("{:.0}", row.retransmissions_per_host_s)),
        ("timeouts", |row| row.timeouts.to_string()),
        ("dropped", |row| row.drops.to_string()),
        ("limited", |row| row.sessions_limited.to_string()),
        ("calls", |row| row.calls.to_string()),
        ("digest", |row| row.digest.clone()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        vec![format!(
            "RPCs of 32 B in batches of 3, 60 in flight per endpoint, each to a random endpoint of \
             another host; all answers checked. Measured for {} us after {} us. Sent again: by each \
             host.",
            row.measured_ns / 1_000,
            row.warm_up_ns / 1_000
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::linear("endpoints on each host");
        let mut chart = Chart::new("Latency, all to all", x, Axis::log("us"));
        for row in rows {
            let (threads, latency) = (f64::from(row.threads), &row.latency);
            let lines = [
                ("p50", latency.p50_ns),
                ("p99", latency.p99_ns),
                ("p99.9", latency.p999_ns),
                ("p99.99", latency.p9999_ns),
            ];
            lines.iter().for_each(|&(name, ns)| chart.add(name, (threads, ns as f64 / 1e3)));
        }
        chart
    }
}
