//! `paths loss|cut|permutation --veth`: several paths over this machine's kernel.

use std::time::Duration;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::units::exact_duration;
use petrel_proto::path::PathPolicy;

use super::super::chart::{Axis, Chart};
use super::super::rows::{Column, Row, digits};
use super::super::{OnRow, flag, list_flag, show};
use crate::args::VethPathArgs;
use crate::paths_veth::{self, PathsPlan, VethRow};

/// Loss on three of four links, in parts per million.
const LOSSES_PPM: [u32; 5] = [0, 5_000, 10_000, 50_000, 100_000];
const LOSSES_QUICK_PPM: [u32; 2] = [0, 10_000];

const WINDOW: Duration = Duration::from_millis(400);
const WINDOW_QUICK: Duration = Duration::from_millis(60);
const SESSIONS: u32 = 8;

/// Runs an experiment and prints its figures.
pub(super) fn run(name: &str, args: &VethPathArgs, output: Output) -> Result<Outcome, Failure> {
    let common = &args.paths.common;
    let (window, sessions) = if common.quick { (WINDOW_QUICK, 1) } else { (WINDOW, SESSIONS) };
    let plan = PathsPlan {
        window: args.window.unwrap_or(window),
        // A session of several paths uses all links, so one session is enough where links are cut.
        sessions: args.sessions.unwrap_or(if name == "cut" { 1 } else { sessions }),
        is_realtime: args.realtime,
        beside_mptcp: args.mptcp,
    };
    let policies: Vec<PathPolicy> = match args.paths.policy.is_empty() {
        true => vec![PathPolicy::Coupled, PathPolicy::Single],
        false => args.paths.policy.iter().map(|policy| policy.0).collect(),
    };
    let columns = paths_veth::Column::of(&policies);
    let losses = if common.quick { &LOSSES_QUICK_PPM[..] } else { &LOSSES_PPM };
    let run = |on_row: OnRow<'_, VethRow>| match name {
        "loss" => paths_veth::loss(plan, &columns, losses, on_row),
        "cut" => paths_veth::cut(plan, &columns, on_row),
        _ => paths_veth::permutation(plan, &columns, on_row),
    };
    show(common, output, run, &repeat(name, args))
}

fn repeat(name: &str, args: &VethPathArgs) -> String {
    [
        format!("petrel-experiment paths {name} --veth"),
        if args.paths.common.quick { " --quick".to_owned() } else { String::new() },
        list_flag("policy", &args.paths.policy),
        flag("window", args.window.map(exact_duration)),
        flag("sessions", args.sessions),
        if args.mptcp { " --mptcp".to_owned() } else { String::new() },
        if args.realtime { " --realtime".to_owned() } else { String::new() },
    ]
    .concat()
}

impl Row for VethRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("case", |row| row.case.clone()),
        ("policy", |row| row.policy.to_owned()),
        ("recovery", |row| row.recovery.to_owned()),
        ("Mbit/s", |row| digits(row.goodput_mbit)),
        ("of links", |row| format!("{:.3}", row.share)),
        ("relative", |row| format!("{:.3}", row.relative)),
        ("least", |row| digits(row.least_mbit)),
        ("most", |row| digits(row.most_mbit)),
        ("requests", |row| row.answered.to_string()),
        ("again", |row| row.retransmissions.to_string()),
        ("needless", |row| row.duplicates.to_string()),
        ("timeouts", |row| row.timeouts.to_string()),
        ("probes", |row| row.probes.to_string()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(row) = rows.first() else { return Vec::new() };
        vec![format!(
            "UDP between two network namespaces of this machine, joined by four links of 100 Mbit/s; the kernel \
             chooses a link by ports. Requests of 256 KiB, four in flight, {} sessions of {} ms each; all \
             answers checked. Of links: of the payload that the links that are up carry. Relative: to the first \
             case.",
            row.sessions,
            digits(row.window_ns as f64 / 1e6)
        )]
    }

    fn chart(rows: &[Self]) -> Chart {
        let (title, level) = match rows.first().map(|row| row.experiment) {
            Some("loss") => ("Loss on three of four links, UDP of the kernel", "loss, %"),
            Some("cut") => ("Links are cut and come back, UDP of the kernel", "change"),
            _ => ("Four clients over four links, UDP of the kernel", "case"),
        };
        let mut chart = Chart::new(title, Axis::linear(level), Axis::linear("Mbit/s"));
        for row in rows {
            let kind =
                row.case.split_once(',').map_or(String::new(), |(kind, _)| format!(", {kind}"));
            let name = format!("{}, {}{kind}", row.policy, row.recovery);
            chart.add(&name, (row.level, row.goodput_mbit));
        }
        chart
    }
}
