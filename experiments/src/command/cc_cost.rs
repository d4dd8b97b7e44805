//! Rows of `cc-cost`: the cost of congestion control without congestion.

use petrel_command::units::format_bytes;

use super::chart::{Axis, Chart};
use super::rows::{Column, Row, digits, us_of};
use crate::sim::cc_cost::CostRow;

impl Row for CostRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("request", |row| format_bytes(row.request_bytes as u64)),
        ("in flight", |row| row.in_flight.to_string()),
        ("control", |row| row.controller.to_string()),
        ("calls/s", |row| digits(row.calls_per_s)),
        ("relative", |row| format!("{:.4}", row.relative)),
        ("p50 us", |row| us_of(row.latency.p50_ns)),
        ("p99 us", |row| us_of(row.latency.p99_ns)),
        ("calls", |row| row.calls.to_string()),
        ("bypassed", |row| row.acks_bypassed.to_string()),
        ("heard", |row| row.updates.to_string()),
        ("limited", |row| row.sessions_limited.to_string()),
    ];

    fn remarks(_rows: &[Self]) -> Vec<String> {
        let text = "Virtual time charges nothing for congestion control: what is shown is whether it \
                    holds anything back. `petrel bench instructions --transport udp` counts what it takes \
                    of a real core.";
        vec![text.to_owned()]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::log("bytes of a request");
        let y = Axis::linear("rate relative to no control");
        let mut chart = Chart::new("Congestion control without congestion", x, y);
        for row in rows {
            chart.add(row.controller.name(), (row.request_bytes as f64, row.relative));
        }
        chart
    }
}
