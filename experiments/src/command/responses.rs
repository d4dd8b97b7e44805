//! `responses`: responses of several packets.

use crate::sim::responses::ResponsesRow;

use super::chart::{Axis, Chart};
use super::rows::{Column, Row, us_of};

/// Calls of a load.
pub(super) const CALLS: [u64; 2] = [200, 2_000];

impl Row for ResponsesRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("packets", |row| row.packets.to_string()),
        ("request us", |row| us_of(row.request_ns)),
        ("response, asked for, us", |row| us_of(row.asked_ns)),
        ("added", |row| format!("{:.3}", row.added(row.asked_ns))),
        ("response, granted, us", |row| us_of(row.granted_ns)),
        ("added", |row| format!("{:.3}", row.added(row.granted_ns))),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        vec![format!(
            "Medians of {} calls, one after the other, over a switch and links of 25 Gbit/s. Added: over a request of as many packets with \
             a small answer, which needs no permission.",
            row.calls
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let title = "Latency that a response of several packets adds";
        let mut chart = Chart::new(title, Axis::linear("packets"), Axis::linear("share"));
        for row in rows {
            let x = row.packets as f64;
            chart.add("asked for, as eRPC does", (x, row.added(row.asked_ns)));
            chart.add("granted by the request", (x, row.added(row.granted_ns)));
        }
        chart
    }
}
