//! Rows of `fair` and `pinned`: sessions that come and go.

use petrel_sim::experiment::paths::{FairRow, PinnedRow};

use super::super::chart::{Axis, Chart};
use super::super::report::{Row, digits};

impl Row for FairRow {
    const HEADER: &'static [&'static str] = &[
        "policy",
        "recovery",
        "control",
        "a session",
        "sessions",
        "Gbit/s",
        "of the link",
        "Jain",
        "least",
        "most",
    ];

    fn cells(&self) -> Vec<String> {
        let ends = self.session_gbit.iter().fold((f64::INFINITY, 0.0f64), |(least, most), gbit| {
            (least.min(*gbit), most.max(*gbit))
        });
        vec![
            self.setting.policy.to_string(),
            self.setting.recovery.to_owned(),
            self.setting.control(),
            self.change.to_owned(),
            self.sessions.to_string(),
            digits(self.goodput_gbit),
            format!("{:.3}", self.share),
            format!("{:.4}", self.jain),
            digits(ends.0),
            digits(ends.1),
        ]
    }

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        vec![format!(
            "Hosts of other leaves send to one, and begin and end one after the other, every {} ms; the second \
             half of each time is measured. Least, most: sessions that send.",
            digits(row.between_ns as f64 / 1e6)
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::linear("changes: sessions come, then go");
        let mut chart =
            Chart::new("Fairness of sessions to one receiver", x, Axis::linear("Jain's index"));
        let mut places = std::collections::BTreeMap::new();
        for row in rows {
            let name = format!("{}, {}", row.setting.policy, row.setting.recovery);
            let place = places.entry(name.clone()).or_insert(0u32);
            *place += 1;
            chart.add(&name, (f64::from(*place), row.jain));
        }
        chart
    }
}

impl Row for PinnedRow {
    const HEADER: &'static [&'static str] = &[
        "policy",
        "share before",
        "share after",
        "left after ms",
        "three others",
        "pinned session",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.setting.policy.to_string(),
            format!("{:.3}", self.share_before),
            format!("{:.3}", self.share_after),
            self.left_after_ns.map_or("never".to_owned(), |ns| digits(ns as f64 / 1e6)),
            format!("{:.3}", self.others),
            format!("{:.3}", self.pinned),
        ]
    }

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        let control = row.setting.controller;
        vec![format!(
            "A session over four paths of 10 Gbit/s; after a third of the time another one begins, whose only \
             path is the fourth ({control}). Shares are of this path: packets of the first session before, and \
             from 5 ms after; left: the first sample of {} ms below 0.05.",
            digits(row.sample_ns as f64 / 1e6)
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let title = "A session leaves a path to another one";
        let mut chart = Chart::new(title, Axis::linear("ms"), Axis::linear("Gbit/s"));
        for row in rows {
            for (sample, paths) in (1u64..).zip(&row.samples_gbit) {
                let at_ms = (sample * row.sample_ns) as f64 / 1e6;
                chart.add(&format!("{}, path 4", row.setting.policy), (at_ms, paths[3]));
            }
        }
        chart
    }
}
