//! `small-loss`: small RPCs under random loss.

use crate::sim::small_loss::{SmallLossConfig, SmallLossRow};

use super::chart::{Axis, Chart};
use super::rows::{Column, Row, digits, probability, us_of};
use super::{command, flag};
use crate::args::SmallLossArgs;

pub(super) fn config(args: &SmallLossArgs) -> SmallLossConfig {
    let mut config = args.common.choose(SmallLossConfig::quick, SmallLossConfig::full);
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
    const COLUMNS: &'static [Column<Self>] = &[
        ("control", |row| row.controller.to_string()),
        ("loss", |row| probability(row.loss)),
        ("p50 us", |row| us_of(row.latency.p50_ns)),
        ("p99 us", |row| us_of(row.latency.p99_ns)),
        ("p99.9 us", |row| us_of(row.latency.p999_ns)),
        ("p99.99 us", |row| us_of(row.latency.p9999_ns)),
        ("max us", |row| us_of(row.latency.max_ns)),
        ("M/s", |row| digits(row.rate_mrps)),
        ("calls", |row| row.calls.to_string()),
        ("lost", |row| row.losses.to_string()),
        ("sent again", |row| row.retransmissions.to_string()),
        ("timeouts", |row| row.timeouts.to_string()),
        ("limited", |row| row.sessions_limited.to_string()),
    ];

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
