//! `overload`: a server with more requests than it can execute.

use std::time::Duration;

use crate::sim::overload::{OverloadConfig, OverloadRow};
use petrel_command::units::exact_duration;

use super::chart::{Axis, Chart};
use super::rows::{Column, Row, digits, us_of};
use super::{command, flag, list_flag, set_list};
use crate::args::OverloadArgs;

pub(super) fn config(args: &OverloadArgs) -> OverloadConfig {
    let mut config = args.common.choose(OverloadConfig::quick, OverloadConfig::full);
    if !args.load.is_empty() {
        config.loads_percent = args.load.iter().map(|&percent| percent.into()).collect();
    }
    set_list(&mut config.policies, &args.policy);
    set_list(&mut config.services, &args.service);
    config.clients = args.clients.unwrap_or(config.clients);
    config.workers = args.workers.unwrap_or(config.workers);
    set_ns(&mut config.target_ns, args.target);
    set_ns(&mut config.service_ns, args.mean);
    set_ns(&mut config.slo_ns, args.slo);
    config
}

fn set_ns(ns: &mut u64, time: Option<Duration>) {
    if let Some(time) = time {
        *ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }
}

pub(super) fn repeat(args: &OverloadArgs) -> String {
    let policies: Vec<_> = args.policy.iter().map(|policy| policy.name()).collect();
    let services: Vec<_> = args.service.iter().map(|service| service.name()).collect();
    [
        command("overload", &args.common),
        list_flag("load", &args.load),
        list_flag("policy", &policies),
        flag("target", args.target.map(exact_duration)),
        list_flag("service", &services),
        flag("mean", args.mean.map(exact_duration)),
        flag("slo", args.slo.map(exact_duration)),
        flag("clients", args.clients),
        flag("workers", args.workers),
    ]
    .concat()
}

impl Row for OverloadRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("service", |row| row.service.to_owned()),
        ("policy", |row| row.policy.to_owned()),
        ("back-pressure", |row| if row.back_pressure { "on" } else { "off" }.to_owned()),
        ("load", |row| format!("{:.1}", row.load)),
        ("goodput k/s", |row| digits(row.goodput_per_s / 1e3)),
        ("of best", |row| format!("{:.3}", row.of_best)),
        ("of capacity", |row| format!("{:.3}", row.of_capacity)),
        ("p50 us", |row| us_of(row.latency.p50_ns)),
        ("p99 us", |row| us_of(row.latency.p99_ns)),
        ("p99.9 us", |row| us_of(row.latency.p999_ns)),
        ("late", |row| row.late.to_string()),
        ("refused", |row| row.refused.to_string()),
        ("expired", |row| row.expired.to_string()),
        ("held back", |row| row.held_back.to_string()),
        ("executed", |row| row.executed.to_string()),
        ("wasted", |row| row.wasted.to_string()),
        ("busy", |row| format!("{:.3}", row.busy)),
    ];

    fn remarks(_rows: &[Self]) -> Vec<String> {
        let text = "Goodput: answers within the objective, all checked. Latency: of the calls that \
                    were answered, from when they were asked for. Wasted: run, and late.";
        vec![text.to_owned()]
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::linear("load, over capacity");
        let mut chart =
            Chart::new("Goodput under overload", x, Axis::linear("goodput, over capacity"));
        // With all series, the chart would have more lines than colours.
        let is_shown = |row: &&Self| !row.back_pressure || row.policy == "default";
        for row in rows.iter().filter(is_shown) {
            let back_pressure = if row.back_pressure { ", back-pressure" } else { "" };
            let name = format!("{}, {}{back_pressure}", row.service, row.policy);
            chart.add(&name, (row.load, row.of_capacity));
        }
        chart
    }
}
