//! Rows of `small`: latency of small calls while a path is dead.

use crate::sim::paths::SmallRow;

use super::super::chart::{Axis, Chart};
use super::super::rows::{Column, Row, digits, us_of};

impl Row for SmallRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("dead", |row| row.case.to_owned()),
        ("policy", |row| row.setting.policy.to_string()),
        ("recovery", |row| row.setting.recovery.to_owned()),
        ("control", |row| row.setting.control()),
        ("calls", |row| row.latency.count.to_string()),
        ("p50 us", |row| us_of(row.latency.p50_ns)),
        ("p99", |row| us_of(row.latency.p99_ns)),
        ("p99.9", |row| us_of(row.latency.p999_ns)),
        ("p99.99", |row| us_of(row.latency.p9999_ns)),
        ("longest", |row| us_of(row.latency.max_ns)),
        ("over limit", |row| row.over_limit.to_string()),
        ("timeouts", |row| row.timeouts.to_string()),
        ("again", |row| row.retransmissions.to_string()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        vec![format!(
            "{} sessions with calls of 32 B, one at a time with pauses of 0.1 ms on average, in {} runs of {} ms. The \
             dead path returns at the end. Over limit: calls of more than {} us, the shortest timeout and four \
             round trips. All answers checked.",
            row.sessions,
            row.runs,
            digits(row.measured_ns as f64 / 1e6),
            us_of(row.limit_ns),
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::log("share of calls that take longer");
        let mut chart =
            Chart::new("Small calls while one of four paths is dead", x, Axis::log("us"));
        for row in rows {
            let name =
                format!("{}, {}, dead: {}", row.setting.policy, row.setting.recovery, row.case);
            let latency = &row.latency;
            let points = [
                (0.5, latency.p50_ns),
                (1e-2, latency.p99_ns),
                (1e-3, latency.p999_ns),
                (1e-4, latency.p9999_ns),
            ];
            for (share, ns) in points {
                chart.add(&name, (share, ns as f64 / 1e3));
            }
        }
        chart
    }
}
