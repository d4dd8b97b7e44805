//! `incast`: many senders, one receiver.

use crate::sim::Latency;
use crate::sim::incast::{IncastConfig, IncastRow};

use super::chart::{Axis, Chart};
use super::rows::{Column, Row, digits, us, us_of};
use super::{command, list_flag, set_list};
use crate::args::IncastArgs;
use petrel_bench::measure::statistics::format_ratio;

pub(super) fn config(args: &IncastArgs) -> IncastConfig {
    let mut config = args.common.choose(IncastConfig::quick, IncastConfig::full);
    set_list(&mut config.senders, &args.senders);
    set_list(&mut config.controllers, &args.congestion);
    if args.background { config.with_background() } else { config }
}

pub(super) fn repeat(args: &IncastArgs) -> String {
    let background = if args.background { " --background" } else { "" };
    [
        command("incast", &args.common),
        list_flag("senders", &args.senders),
        list_flag("congestion", &args.congestion),
        background.to_owned(),
    ]
    .concat()
}

/// Returns a percentile of the calls between the other hosts, if these make any.
fn of_others(row: &IncastRow, which: fn(&Latency) -> u64) -> String {
    row.background.as_ref().map_or(String::new(), |latency| us_of(which(latency)))
}

impl Row for IncastRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("senders", |row| row.senders.to_string()),
        ("control", |row| row.controller.to_string()),
        ("Gbit/s", |row| digits(row.goodput_gbit)),
        ("of port", |row| format!("{:.3}", row.share)),
        ("p50 us", |row| us_of(row.probe.p50_ns)),
        ("p99 us", |row| us_of(row.probe.p99_ns)),
        ("session p50", |row| us_of(row.session_rtt.p50_ns)),
        ("session p99", |row| us_of(row.session_rtt.p99_ns)),
        ("queue us", |row| us(row.queue_mean_ns)),
        ("at most", |row| us(row.queue_max_ns)),
        ("dropped", |row| row.drops.to_string()),
        ("sent again", |row| row.retransmissions.to_string()),
        ("timeouts", |row| row.timeouts.to_string()),
        ("Jain", |row| format!("{:.3}", row.jain)),
        ("near/far", |row| format_ratio(row.near_over_far)),
        ("others p50", |row| of_others(row, |latency| latency.p50_ns)),
        ("others p99", |row| of_others(row, |latency| latency.p99_ns)),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        let text = "p50, p99: calls of 32 B from each sender to the receiver, in a session of their \
                    own. Session: the smoothed round trips of the sessions with the requests. Queue: \
                    what waits before the receiver's port, on average and at most. Near/far: what a \
                    sender under the receiver's leaf sends, over one under another.";
        let mut remarks = vec![
            format!(
                "Large requests back to back from each sender into one port of 25 Gbit/s, measured \
                 for {} ms after {} ms; all answers checked.",
                row.measured_ns / 1_000_000,
                row.warm_up_ns / 1_000_000
            ),
            text.to_owned(),
        ];
        if row.background.is_some() {
            let text = "Others: calls of 64 kB both ways between the hosts that do not receive.";
            remarks.push(text.to_owned());
        }
        remarks
    }

    fn chart(rows: &[Self]) -> Chart {
        let title = match rows.iter().any(|row| row.background.is_some()) {
            true => "64 kB RPCs of other hosts beside an incast",
            false => "Round trips in an incast",
        };
        let mut chart = Chart::new(title, Axis::linear("senders"), Axis::log("us"));
        for row in rows {
            let (name, senders) = (row.controller.name(), f64::from(row.senders));
            let shown = row.background.as_ref().unwrap_or(&row.probe);
            chart.add(&format!("{name}, p50"), (senders, shown.p50_ns as f64 / 1e3));
            chart.add(&format!("{name}, p99"), (senders, shown.p99_ns as f64 / 1e3));
        }
        chart
    }
}
