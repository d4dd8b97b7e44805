//! Rows about goodput: `loss`, `unequal`, `permutation`, `fabric` and `incast`.

use crate::sim::paths::ThroughputRow;

use super::super::chart::{Axis, Chart};
use super::super::rows::{Column, Row, digits};

impl Row for ThroughputRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("network", |row| row.network.to_owned()),
        ("case", |row| row.case.clone()),
        ("policy", |row| row.setting.policy.to_string()),
        ("recovery", |row| row.setting.recovery.to_owned()),
        ("control", |row| row.setting.control()),
        ("Gbit/s", |row| digits(row.goodput_gbit)),
        ("of links", |row| format!("{:.3}", row.share)),
        ("relative", |row| format!("{:.3}", row.relative)),
        ("least", |row| digits(row.session_range_gbit().0)),
        ("most", |row| digits(row.session_range_gbit().1)),
        ("Jain", |row| format!("{:.3}", row.jain)),
        ("sent", |row| row.packets.to_string()),
        ("again", |row| row.retransmissions.to_string()),
        ("needless", |row| row.needless.to_string()),
        ("timeouts", |row| row.timeouts.to_string()),
        ("dropped", |row| row.drops.to_string()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        let text = "Of links: the goodput, over that of the links if full. Relative: over that of the first \
                    case. Least, most: a session of any run. Needless: packets that the receiver had.";
        vec![
            format!(
                "Requests of 1 MiB back to back, two in flight; goodput of all sessions together, averaged \
                 over {} runs of {} ms (at most 4 with several paths); all answers checked.",
                rows.iter().map(|row| row.runs).max().unwrap_or(row.runs),
                row.measured_ns as f64 / 1e6
            ),
            text.to_owned(),
        ]
    }

    fn chart(rows: &[Self]) -> Chart {
        match rows.first().map(|row| row.experiment) {
            Some("loss") => by_level(rows, "Loss on three of four paths", "loss, %"),
            Some("incast") => by_level(rows, "Incast", "senders"),
            Some("unequal") => {
                by_level(rows, "Paths 10/10/10/10, 20/10/5/5, 10/10/10/0.25", "case")
            }
            Some("permutation") => by_session(rows, "A permutation of 25 hosts"),
            _ => by_session(rows, "Sessions across a fabric"),
        }
    }
}

fn by_level(rows: &[ThroughputRow], title: &'static str, level: &'static str) -> Chart {
    let mut chart = Chart::new(title, Axis::linear(level), Axis::linear("Gbit/s"));
    for row in rows {
        chart.add(&name_of(row), (row.level, row.goodput_gbit));
    }
    chart
}

fn by_session(rows: &[ThroughputRow], title: &'static str) -> Chart {
    let x = Axis::linear("sessions, the slowest first");
    let mut chart = Chart::new(title, x, Axis::linear("Gbit/s of a session"));
    for row in rows {
        for (number, &gbit) in (1u32..).zip(&row.session_gbit) {
            chart.add(&name_of(row), (f64::from(number), gbit));
        }
    }
    chart
}

fn name_of(row: &ThroughputRow) -> String {
    format!("{}, {}", row.setting.policy, row.setting.recovery)
}
