//! Rows of `fair` and `pinned`: sessions that come and go.

use crate::sim::paths::{FairRow, PinnedRow};

use super::super::chart::{Axis, Chart};
use super::super::rows::{Column, Row, digits};

impl Row for FairRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("policy", |row| row.setting.policy.to_string()),
        ("recovery", |row| row.setting.recovery.to_owned()),
        ("control", |row| row.setting.control()),
        ("a session", |row| row.change.to_owned()),
        ("sessions", |row| row.sessions.to_string()),
        ("Gbit/s", |row| digits(row.goodput_gbit)),
        ("of the link", |row| format!("{:.3}", row.share)),
        ("Jain", |row| format!("{:.4}", row.jain)),
        ("least", |row| digits(row.session_gbit.iter().copied().fold(f64::INFINITY, f64::min))),
        ("most", |row| digits(row.session_gbit.iter().copied().fold(0.0, f64::max))),
    ];

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
    const COLUMNS: &'static [Column<Self>] = &[
        ("policy", |row| row.setting.policy.to_string()),
        ("share before", |row| format!("{:.3}", row.share_before)),
        ("share after", |row| format!("{:.3}", row.share_after)),
        ("left after ms", |row| {
            row.left_after_ns.map_or("never".to_owned(), |ns| digits(ns as f64 / 1e6))
        }),
        ("three others", |row| format!("{:.3}", row.others)),
        ("pinned session", |row| format!("{:.3}", row.pinned)),
    ];

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
