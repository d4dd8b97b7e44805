//! Rows of `cut`: goodput between two changes of the network.

use crate::sim::paths::CutRow;

use super::super::chart::{Axis, Chart};
use super::super::rows::{Column, Row, digits};

impl Row for CutRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("kind", |row| row.kind.name().to_owned()),
        ("change", |row| row.change.to_owned()),
        ("policy", |row| row.setting.policy.to_string()),
        ("recovery", |row| row.setting.recovery.to_owned()),
        ("control", |row| row.setting.control()),
        ("paths up", |row| row.paths_up.to_string()),
        ("Gbit/s", |row| digits(row.goodput_gbit)),
        ("of these", |row| format!("{:.3}", row.share)),
        ("full after ms", |row| {
            row.full_after_ns.map_or("never".to_owned(), |ns| digits(ns as f64 / 1e6))
        }),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        let between_ns = row.samples_gbit.len() as u64 * row.sample_ns;
        vec![format!(
            "One session over four paths of 10 Gbit/s, at first on path 1; a change every {} ms. Of these: the \
             goodput, over that of the paths that are up. Full: the first 2 ms with a mean of 0.95 of it. No \
             call may fail.",
            between_ns as f64 / 1e6
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let title = "Paths 1 to 3 are cut one by one, and come back";
        let mut chart = Chart::new(title, Axis::linear("ms"), Axis::linear("Gbit/s"));
        for row in rows {
            let name =
                format!("{}, {}, {}", row.setting.policy, row.setting.recovery, row.kind.name());
            for (sample, &gbit) in (1u64..).zip(&row.samples_gbit) {
                let at_ns = row.start_ns + sample * row.sample_ns;
                chart.add(&name, (at_ns as f64 / 1e6, gbit));
            }
        }
        chart
    }
}
