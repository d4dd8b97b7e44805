//! `loss --veth` and `small-loss --veth`: packets of this machine's kernel, with random drops.

use std::time::Duration;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::output::latency::LatencySummary;
use petrel_command::units::exact_duration;
use petrel_proto::Recovery;
use serde::Serialize;

use super::chart::{Axis, Chart};
use super::rows::{Column, Row, digits, probability, us, us_of};
use super::{OnRow, show};
use crate::args::{CommonArgs, LossArgs, SmallLossArgs, VethArgs};
use petrel_bench::measure::pairs::Pace;

use crate::lossy::{LossFigure, LossPlan, LossyCalls, run_lossy};

/// The loss rates of the simulated experiment.
const LOSSES_PPB: [u32; 8] = [0, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
const LOSSES_QUICK_PPB: [u32; 2] = [0, 10_000_000];

/// Duration of a figure, long enough for one or two losses at one in a million packets.
const DURATION: Duration = Duration::from_secs(6);
const DURATION_QUICK: Duration = Duration::from_millis(600);

/// Longest window. Disturbances of a machine last longer than two windows, or hit both.
const WINDOW: Duration = Duration::from_millis(300);

/// Large requests.
#[derive(Serialize)]
#[serde(transparent)]
struct LargeRow(LossFigure);

/// Small calls.
#[derive(Serialize)]
#[serde(transparent)]
struct SmallRow(LossFigure);

pub(super) fn run_large(args: &LossArgs, output: Output) -> Result<Outcome, Failure> {
    let recoveries = vec![Recovery::Selective, Recovery::GoBackN];
    let plan = plan(LossyCalls::Large, recoveries, &args.common, &args.veth);
    let run = |on_row: OnRow<'_, _>| rows(&plan, output, LargeRow, on_row);
    show(&args.common, output, run, &repeat("loss", &args.common, &args.veth))
}

pub(super) fn run_small(args: &SmallLossArgs, output: Output) -> Result<Outcome, Failure> {
    let plan = plan(LossyCalls::Small, vec![Recovery::Selective], &args.common, &args.veth);
    let run = |on_row: OnRow<'_, _>| rows(&plan, output, SmallRow, on_row);
    show(&args.common, output, run, &repeat("small-loss", &args.common, &args.veth))
}

fn plan(
    calls: LossyCalls,
    recoveries: Vec<Recovery>,
    common: &CommonArgs,
    args: &VethArgs,
) -> LossPlan {
    let (losses, duration) = match common.quick {
        true => (&LOSSES_QUICK_PPB[..], DURATION_QUICK),
        false => (&LOSSES_PPB[..], DURATION),
    };
    let losses_ppb = match args.loss.is_empty() {
        true => losses.to_vec(),
        false => args.loss.iter().map(|share| share.per_billion()).collect(),
    };
    let duration = args.duration.unwrap_or(duration);
    let pace = Pace { duration, window: WINDOW, is_realtime: args.realtime };
    LossPlan { calls, recoveries, losses_ppb, pace }
}

/// Returns every figure as a row.
fn rows<R>(
    plan: &LossPlan,
    output: Output,
    row: fn(LossFigure) -> R,
    on_row: OnRow<'_, R>,
) -> Result<Vec<R>, Failure> {
    let figures = run_lossy(plan, output, &mut |figure| on_row(&row(figure.clone())))?;
    Ok(figures.into_iter().map(row).collect())
}

fn repeat(name: &str, common: &CommonArgs, args: &VethArgs) -> String {
    let quick = if common.quick { " --quick" } else { "" };
    let losses = super::list_flag("loss", &args.loss);
    let duration = super::flag("duration", args.duration.map(exact_duration));
    let realtime = if args.realtime { " --realtime" } else { "" };
    format!("petrel-experiment {name} --veth{quick}{losses}{duration}{realtime}")
}

impl Row for LargeRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("recovery", |row| row.0.recovery.to_owned()),
        ("loss", |row| probability(row.0.loss)),
        ("goodput", |row| digits(row.0.with.goodput_gbit)),
        ("without", |row| digits(row.0.without.goodput_gbit)),
        ("relative", |row| format!("{:.3}", row.0.relative)),
        ("quartiles", |row| format!("{:.3}-{:.3}", row.0.spread.q1, row.0.spread.q3)),
        ("requests", |row| row.0.with.answered.to_string()),
        ("packets", |row| row.0.with.arrived.to_string()),
        ("lost", |row| row.0.with.dropped.to_string()),
        ("us per lost", |row| row.0.cost_ns_per_loss.map_or(String::new(), us)),
        ("sent again", |row| row.0.with.retransmissions.to_string()),
        ("needlessly", |row| row.0.with.duplicates.to_string()),
        ("timeouts", |row| row.0.with.timeouts.to_string()),
        ("probes", |row| row.0.with.probes.to_string()),
        ("no room", |row| row.0.with.dropped_by_kernel.to_string()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let text = "Requests of 8 MiB, one outstanding, and answers of 16 B, all checked; goodput in \
                    Gbit/s: medians of windows with and without loss in turn.";
        [vec![text.to_owned()], remarks(rows.iter().map(|row| &row.0))].concat()
    }

    fn chart(rows: &[Self]) -> Chart {
        let y = Axis::linear("goodput relative to none lost");
        let x = Axis::log("packets lost");
        let mut chart = Chart::new("8 MiB requests under loss, UDP of the kernel", x, y);
        for LargeRow(row) in rows {
            chart.add(row.recovery, (row.loss, row.relative));
        }
        chart
    }
}

/// Returns a percentile in microseconds, if a call was answered.
fn us_if(latency: &Option<LatencySummary>, which: fn(&LatencySummary) -> u64) -> String {
    latency.as_ref().map_or(String::new(), |latency| us_of(which(latency)))
}

impl Row for SmallRow {
    const COLUMNS: &'static [Column<Self>] = &[
        ("loss", |row| probability(row.0.loss)),
        ("p50 us", |row| us_if(&row.0.with.latency, |latency| latency.p50_ns)),
        ("p99 us", |row| us_if(&row.0.with.latency, |latency| latency.p99_ns)),
        ("p99.9 us", |row| us_if(&row.0.with.latency, |latency| latency.p999_ns)),
        ("max us", |row| us_if(&row.0.with.latency, |latency| latency.max_ns)),
        ("p50 without", |row| us_if(&row.0.without.latency, |latency| latency.p50_ns)),
        ("p99 without", |row| us_if(&row.0.without.latency, |latency| latency.p99_ns)),
        ("p99.9 without", |row| us_if(&row.0.without.latency, |latency| latency.p999_ns)),
        ("max without", |row| us_if(&row.0.without.latency, |latency| latency.max_ns)),
        ("rate relative", |row| format!("{:.3}", row.0.relative)),
        ("calls", |row| row.0.with.answered.to_string()),
        ("packets", |row| row.0.with.arrived.to_string()),
        ("lost", |row| row.0.with.dropped.to_string()),
        ("sent again", |row| row.0.with.retransmissions.to_string()),
        ("timeouts", |row| row.0.with.timeouts.to_string()),
        ("probes", |row| row.0.with.probes.to_string()),
        ("no room", |row| row.0.with.dropped_by_kernel.to_string()),
    ];

    fn remarks(rows: &[Self]) -> Vec<String> {
        let Some(SmallRow(row)) = rows.first() else { return Vec::new() };
        let text = format!(
            "RPCs of 32 B, {} in flight over as many sessions, all answers checked; windows with and \
             without loss in turn.",
            row.in_flight
        );
        [vec![text], remarks(rows.iter().map(|row| &row.0))].concat()
    }

    fn chart(rows: &[Self]) -> Chart {
        let x = Axis::linear("1: p50, 2: p99, 3: p99.9, 4: longest");
        let mut chart =
            Chart::new("Latency of 32 B RPCs under loss, UDP of the kernel", x, Axis::log("us"));
        for SmallRow(row) in rows {
            let Some(latency) = &row.with.latency else { continue };
            let name = format!("loss {}", probability(row.loss));
            let percentiles = [latency.p50_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
            for (place, ns) in (1..).zip(percentiles) {
                chart.add(&name, (f64::from(place), ns as f64 / 1e3));
            }
        }
        chart
    }
}

/// Returns the remarks for all these tables.
fn remarks<'a>(rows: impl Iterator<Item = &'a LossFigure>) -> Vec<String> {
    let none = rows.filter(|row| row.loss > 0.0 && row.with.dropped == 0).count();
    let text = "UDP between two network namespaces of this machine, a packet per datagram; nftables \
                throws each packet away with this probability, either way.";
    let mut remarks = vec![text.to_owned()];
    if none > 0 {
        let figures = if none == 1 { "1 figure stands" } else { &format!("{none} figures stand") };
        remarks
            .push(format!("{figures} for no lost packet at all: --duration gives it more time."));
    }
    remarks
}
