//! Rows of `ordered`: goodput with a share of ordered calls.

use crate::sim::paths::OrderedRow;

use super::super::chart::{Axis, Chart};
use super::super::rows::{Column, Row, digits};

impl Row for OrderedRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("KiB", |row| (row.request_bytes >> 10).to_string()),
        ("policy", |row| row.setting.policy.to_string()),
        ("control", |row| row.setting.control()),
        ("method", |row| row.method.to_owned()),
        ("ordered %", |row| row.ordered_percent.to_string()),
        ("Gbit/s", |row| digits(row.session_gbit)),
        ("relative", |row| format!("{:.3}", row.relative)),
        ("calls", |row| row.calls.to_string()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        vec![format!(
            "A permutation of {} hosts; goodput of a session on average, over {} runs of {} ms. Stop-and-wait: the \
             caller waits for all earlier calls before the one that would be ordered. All answers checked.",
            row.sessions,
            row.runs,
            digits(row.measured_ns as f64 / 1e6)
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::linear("ordered calls, %");
        let mut chart =
            Chart::new("Ordered calls over several paths", x, Axis::linear("Gbit/s of a session"));
        for row in rows {
            let name =
                format!("{} KiB, {}, {}", row.request_bytes >> 10, row.setting.policy, row.method);
            chart.add(&name, (f64::from(row.ordered_percent), row.session_gbit));
        }
        chart
    }
}
