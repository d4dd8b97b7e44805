//! Rows about goodput: `loss`, `unequal`, `permutation`, `fabric` and `incast`.

use petrel_sim::experiment::paths::ThroughputRow;

use super::super::chart::{Axis, Chart};
use super::super::report::{Row, digits};

impl Row for ThroughputRow {
    const HEADER: &'static [&'static str] = &[
        "network", "case", "policy", "recovery", "control", "Gbit/s", "of links", "relative",
        "least", "most", "Jain", "sent", "again", "needless", "timeouts", "dropped",
    ];

    fn cells(&self) -> Vec<String> {
        let (least, most) = self.session_range_gbit();
        vec![
            self.network.to_owned(),
            self.case.clone(),
            self.setting.policy.to_string(),
            self.setting.recovery.to_owned(),
            self.setting.control(),
            digits(self.goodput_gbit),
            format!("{:.3}", self.share),
            format!("{:.3}", self.relative),
            digits(least),
            digits(most),
            format!("{:.3}", self.jain),
            self.packets.to_string(),
            self.retransmissions.to_string(),
            self.needless.to_string(),
            self.timeouts.to_string(),
            self.drops.to_string(),
        ]
    }

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
