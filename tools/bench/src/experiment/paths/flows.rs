//! Rows of `flows`: completion times of a class of sizes.

use petrel_sim::experiment::paths::FlowsRow;
use petrel_sim::traffic::SizeClass;

use super::super::chart::{Axis, Chart};
use super::super::report::{Row, digits, us, us_of};

impl Row for FlowsRow {
    const HEADER: &'static [&'static str] = &[
        "network", "sizes", "load", "policy", "recovery", "control", "flows of", "count",
        "mean us", "p99 us", "slowdown", "p50", "p95", "p99", "timeouts", "dropped",
    ];

    fn cells(&self) -> Vec<String> {
        let flows = &self.flows;
        vec![
            self.network.to_owned(),
            self.sizes.to_owned(),
            self.load.to_string(),
            self.setting.policy.to_string(),
            self.setting.recovery.to_owned(),
            self.setting.control(),
            flows.class.name().to_owned(),
            flows.count.to_string(),
            us(flows.duration_mean_ns),
            us_of(flows.duration_p99_ns),
            digits(flows.slowdown_mean),
            digits(flows.slowdown_p50),
            digits(flows.slowdown_p95),
            digits(flows.slowdown_p99),
            self.timeouts.to_string(),
            self.drops.to_string(),
        ]
    }

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
