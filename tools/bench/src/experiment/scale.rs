//! `scale`: a hundred hosts, all to all.

use petrel_sim::experiment::scale::{ScaleConfig, ScaleRow};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::chart::{Axis, Chart};
use super::report::{Row, digits, us_of};
use super::{command, flag, list_flag};
use crate::args::ScaleArgs;

pub(super) fn config(args: &ScaleArgs) -> ScaleConfig {
    let seed = args.common.seed;
    let mut config =
        if args.common.quick { ScaleConfig::quick(seed) } else { ScaleConfig::full(seed) };
    if !args.threads.is_empty() {
        config.threads.clone_from(&args.threads);
    }
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
    const HEADER: &'static [&'static str] = &[
        "hosts",
        "threads",
        "control",
        "sessions/host",
        "M/s per host",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "p99.99 us",
        "sent again/s",
        "timeouts",
        "dropped",
        "limited",
        "calls",
        "digest",
    ];

    fn cells(&self) -> Vec<String> {
        let latency = &self.latency;
        vec![
            self.hosts.to_string(),
            self.threads.to_string(),
            self.controller.to_string(),
            self.sessions_per_host.to_string(),
            digits(self.rate_per_host_mrps),
            us_of(latency.p50_ns),
            us_of(latency.p99_ns),
            us_of(latency.p999_ns),
            us_of(latency.p9999_ns),
            format!("{:.0}", self.retransmissions_per_host_s),
            self.timeouts.to_string(),
            self.drops.to_string(),
            self.sessions_limited.to_string(),
            self.calls.to_string(),
            self.digest.clone(),
        ]
    }

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
