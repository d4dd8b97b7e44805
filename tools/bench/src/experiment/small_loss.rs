//! `small-loss`: small RPCs under random loss.

use petrel_sim::experiment::small_loss::{SmallLossConfig, SmallLossRow};

use super::chart::{Axis, Chart};
use super::report::{Row, digits, probability, us_of};
use super::{command, flag};
use crate::args::SmallLossArgs;

pub(super) fn config(args: &SmallLossArgs) -> SmallLossConfig {
    let seed = args.common.seed;
    let mut config =
        if args.common.quick { SmallLossConfig::quick(seed) } else { SmallLossConfig::full(seed) };
    config.controller = args.congestion.unwrap_or(config.controller);
    config.calls = args.calls.unwrap_or(config.calls);
    config
}

pub(super) fn repeat(args: &SmallLossArgs) -> String {
    [
        command("small-loss", &args.common),
        flag("congestion", args.congestion),
        flag("calls", args.calls),
    ]
    .concat()
}

impl Row for SmallLossRow {
    const HEADER: &'static [&'static str] = &[
        "control",
        "loss",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "p99.99 us",
        "max us",
        "M/s",
        "calls",
        "lost",
        "sent again",
        "timeouts",
        "limited",
    ];

    fn cells(&self) -> Vec<String> {
        let latency = &self.latency;
        vec![
            self.controller.to_string(),
            probability(self.loss),
            us_of(latency.p50_ns),
            us_of(latency.p99_ns),
            us_of(latency.p999_ns),
            us_of(latency.p9999_ns),
            us_of(latency.max_ns),
            digits(self.rate_mrps),
            self.calls.to_string(),
            self.losses.to_string(),
            self.retransmissions.to_string(),
            self.timeouts.to_string(),
            self.sessions_limited.to_string(),
        ]
    }

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        vec![format!(
            "RPCs of 32 B, {} in flight over {} sessions, all answers checked. Each packet on the \
             client's link is lost with this probability, either way.",
            row.in_flight, row.sessions
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::linear("1: p50, 2: p99, 3: p99.9, 4: p99.99");
        let mut chart = Chart::new("Latency of 32 B RPCs under loss", x, Axis::log("us"));
        for row in rows {
            let name = format!("loss {}", probability(row.loss));
            let latency = &row.latency;
            let percentiles = [latency.p50_ns, latency.p99_ns, latency.p999_ns, latency.p9999_ns];
            for (position, ns) in (1..).zip(percentiles) {
                chart.add(&name, (f64::from(position), ns as f64 / 1e3));
            }
        }
        chart
    }
}
