//! Rows of `flows`: completion times of a class of sizes.

use crate::sim::paths::FlowsRow;
use crate::sim::traffic::SizeClass;

use super::super::chart::{Axis, Chart};
use super::super::rows::{Column, Row, digits, us, us_of};

impl Row for FlowsRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("network", |row| row.network.to_owned()),
        ("sizes", |row| row.sizes.to_owned()),
        ("load", |row| row.load.to_string()),
        ("policy", |row| row.setting.policy.to_string()),
        ("recovery", |row| row.setting.recovery.to_owned()),
        ("control", |row| row.setting.control()),
        ("flows of", |row| row.flows.class.name().to_owned()),
        ("count", |row| row.flows.count.to_string()),
        ("mean us", |row| us(row.flows.duration_mean_ns)),
        ("p99 us", |row| us_of(row.flows.duration_p99_ns)),
        ("slowdown", |row| digits(row.flows.slowdown_mean)),
        ("p50", |row| digits(row.flows.slowdown_p50)),
        ("p95", |row| digits(row.flows.slowdown_p95)),
        ("p99", |row| digits(row.flows.slowdown_p99)),
        ("timeouts", |row| row.timeouts.to_string()),
        ("dropped", |row| row.drops.to_string()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        vec![format!(
            "Flows from each host to random others, Poisson; those that began within {} ms. Slowdown: the \
             time, over that of the flow alone in the network. Timeouts and drops are of all classes; all \
             answers checked.",
            row.measured_ns as f64 / 1e6
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let y = Axis::linear("mean slowdown");
        let mut chart = Chart::new("Completion of flows", Axis::linear("load"), y);
        for row in rows.iter().filter(|row| row.flows.class != SizeClass::All) {
            let name = format!(
                "{}, {}, {}",
                row.setting.policy,
                row.setting.recovery,
                row.flows.class.name()
            );
            chart.add(&name, (row.load, row.flows.slowdown_mean));
        }
        chart
    }
}
