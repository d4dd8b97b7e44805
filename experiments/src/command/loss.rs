//! `loss`: large requests under random loss.

use std::time::Duration;

use crate::sim::loss::{LossConfig, LossRow};
use petrel_command::units::exact_duration;

use super::chart::{Axis, Chart};
use super::rows::{Column, Row, digits, probability, us};
use super::{command, flag, list_flag, set_list};
use crate::args::LossArgs;

pub(super) fn config(args: &LossArgs) -> LossConfig {
    let mut config = args.common.choose(LossConfig::quick, LossConfig::full);
    set_list(&mut config.gbit, &args.gbit);
    config.controller = args.congestion.unwrap_or(config.controller);
    if !args.rto_min.is_empty() {
        config.rto_min_ns = args.rto_min.iter().map(|least| least.as_nanos() as u64).collect();
    }
    config.requests_max = args.requests.unwrap_or(config.requests_max);
    config
}

pub(super) fn repeat(args: &LossArgs) -> String {
    let rto_min: Vec<String> = args.rto_min.iter().copied().map(exact_duration).collect();
    [
        command("loss", &args.common),
        list_flag("gbit", &args.gbit),
        flag("congestion", args.congestion),
        list_flag("rto-min", &rto_min),
        flag("requests", args.requests),
    ]
    .concat()
}

fn rto_min(row: &LossRow) -> String {
    exact_duration(Duration::from_nanos(row.rto_min_ns))
}

/// Figures with fewer lost packets get a remark.
const LOSSES_FEW: u64 = 30;

impl Row for LossRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("Gbit/s", |row| row.gbit.to_string()),
        ("recovery", |row| row.recovery.to_owned()),
        ("least RTO", |row| rto_min(row)),
        ("control", |row| row.controller.to_string()),
        ("loss", |row| probability(row.loss)),
        ("goodput", |row| digits(row.goodput_gbit)),
        ("relative", |row| format!("{:.3}", row.relative)),
        ("requests", |row| row.requests.to_string()),
        ("lost", |row| row.losses.to_string()),
        (
            "us per lost",
            |row| if row.losses == 0 { String::new() } else { us(row.cost_ns_per_loss) },
        ),
        ("sent again", |row| row.retransmissions.to_string()),
        ("timeouts", |row| row.timeouts.to_string()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let text = "Requests of 8 MiB, one outstanding, and answers of 32 B, all checked; goodput in \
                    Gbit/s. Each packet on the client's link is lost with this probability, either \
                    way.";
        let mut remarks = vec![text.to_owned()];
        let few = rows.iter().filter(|row| row.loss > 0.0 && row.losses < LOSSES_FEW).count();
        if few > 0 {
            remarks.push(format!(
                "{few} figures stand for fewer than {LOSSES_FEW} lost packets: what one costs is \
                 better taken from the rows with more."
            ));
        }
        remarks
    }

    fn chart(rows: &[Self]) -> Chart {
        let y = Axis::linear("goodput relative to none lost");
        let mut chart = Chart::new("8 MiB requests under loss", Axis::log("packets lost"), y);
        for row in rows {
            let name = format!("{}, {}, {} Gbit/s", row.recovery, rto_min(row), row.gbit);
            chart.add(&name, (row.loss, row.relative));
        }
        chart
    }
}
