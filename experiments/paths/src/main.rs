//! The command: prints the measurements of one policy, or of all.
//!
//! `petrel-paths [policy=NAME] [ports=1..32] [packets=1..256] [threshold=1..256] [marking=step|slope] [seeds=11-16]
//! [disorder=32-64]`: MP-RDMA's limits Δ and L; `[fairness=FLOWS]`: Jain's index alone, by the time over which it is taken

use std::ops::RangeInclusive;
use std::process::ExitCode;

use petrel_paths::figures;
use petrel_paths::rows::{Row, Table};
use petrel_paths::{SLOPE, STEP};
use petrel_proto::path::{Disorder, PathPolicy};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(Request { policies, table, fairness }) = parse(&words) else {
        let names: Vec<&str> = PathPolicy::ALL.iter().map(|policy| policy.name()).collect();
        eprintln!("petrel-paths [policy=NAME] [ports=1..32] [packets=1..256] [threshold=1..256]");
        eprintln!(
            "    [marking=step|slope] [seeds=FIRST-LAST] [disorder=LATE-WINDOW] [fairness=1..64]"
        );
        eprintln!("policies: {}", names.join(", "));
        return ExitCode::FAILURE;
    };
    for policy in policies {
        if let Some(flows) = fairness {
            print_fairness(&Table { policy, ..table.clone() }, flows);
            continue;
        }
        print_table(&Table { policy, ..table.clone() });
        if let PathPolicy::MpRdma(_) = policy {
            print_figures(&table.seeds);
        }
    }
    ExitCode::SUCCESS
}

/// The rows to print, and their settings.
struct Request {
    policies: Vec<PathPolicy>,
    table: Table,
    /// Senders whose fairness is printed, in place of the table.
    fairness: Option<usize>,
}

/// Reads the settings. Returns `None` for an unknown name or a value out of range.
fn parse(words: &[String]) -> Option<Request> {
    let (mut policies, mut table) = (PathPolicy::ALL.to_vec(), Table::default());
    let mut fairness = None;
    let mut disorder = Disorder::WINDOW;
    for word in words {
        let (name, value) = word.split_once('=')?;
        match name {
            "policy" => policies.retain(|policy| policy.name() == value),
            "ports" => table.ports = value.parse().ok()?,
            "packets" => table.packets_most = value.parse().ok()?,
            "threshold" => table.threshold = value.parse().ok()?,
            "disorder" => {
                let (late, window) = value.split_once('-')?;
                disorder = Disorder::new(late.parse().ok()?, window.parse().ok()?)?;
            }
            "fairness" => fairness = Some(value.parse().ok()?),
            "marking" if value == "step" => table.marking = STEP,
            "marking" if value == "slope" => table.marking = SLOPE,
            "seeds" => {
                let (first, last) = value.split_once('-')?;
                table.seeds = first.parse().ok()?..=last.parse().ok()?;
            }
            _ => return None,
        }
    }
    for policy in &mut policies {
        if let PathPolicy::MpRdma(_) = policy {
            *policy = PathPolicy::MpRdma(disorder);
        }
    }
    let is_valid = (1..=32).contains(&table.ports)
        && (1..=256).contains(&table.packets_most)
        && (1..=256).contains(&table.threshold)
        && fairness.is_none_or(|flows| (1..=64).contains(&flows))
        && !table.seeds.is_empty();
    (is_valid && !policies.is_empty()).then_some(Request { policies, table, fairness })
}

fn print_fairness(table: &Table, flows: usize) {
    println!("{}, {flows} senders to one, seeds {:?}", table.policy.name(), table.seeds);
    for span_ms in [10, 40, 160] {
        let [least, mean] = table.fairness(flows, span_ms);
        println!("Jain over {span_ms:3} ms: least {least:.4}, mean {mean:.4}");
    }
}

fn print_table(table: &Table) {
    let Table { policy, ports, packets_most, seeds, .. } = table;
    println!("{}, {ports} ports, {packets_most} packets, seeds {seeds:?}", policy.name());
    println!(
        "{:34} {:>6} {:>6} {:>6} {:>6}  of 1000: needless, repeated",
        "", "Gbit/s", "least", "share", "least"
    );
    table.no_loss().iter().for_each(print_row);
    for loss in [0.005, 0.01, 0.05, 0.1] {
        print_row(&table.loss(40.0, 3, loss));
    }
    print_row(&table.loss(40.0, 4, 0.01));
    print_row(&table.loss(10.0, 4, 0.01));
    print_row(&table.unequal());
    print_row(&table.slow_path());
    table.cut().iter().for_each(print_row);
    print_cuts(table);
    for flows in [2, 4, 9, 16, 40] {
        let (row, jain, queue) = table.incast(flows);
        print_row(&row);
        println!("{:34} Jain {jain:.3}, queue {queue:.0} packets", "");
    }
}

fn print_cuts(table: &Table) {
    let runs: Vec<[f64; 3]> = table.seeds.clone().map(|seed| figures::cuts(table, seed)).collect();
    for (cut, name) in ["one path cut", "two", "three"].iter().enumerate() {
        let shares = || runs.iter().map(|run| run[cut]);
        let name = format!("4 × 10, {name}: all the time");
        let least = shares().fold(f64::INFINITY, f64::min);
        println!("{name:34} {:13} {:6.3} {least:6.3}", "", mean(shares()));
    }
}

/// Prints MP-RDMA's figures of queues, marks and disorder.
fn print_figures(seeds: &RangeInclusive<u64>) {
    for row in figures::queues(*seeds.start()) {
        let figures::QueueRow { name, share, mean_packets, deviation_packets, .. } = row;
        let predicted =
            row.predicted_packets.map(|packets| format!(" (by equations {packets:.0})"));
        let predicted = predicted.unwrap_or_default();
        println!("figure 4, {name}:");
        println!(
            "    share {share:.3}, queue {mean_packets:.1}{predicted}, deviation {deviation_packets:.1}"
        );
    }
    let ratios: Vec<Vec<f64>> = seeds.clone().map(figures::mark_ratios).collect();
    let of_path = |path| mean(ratios.iter().map(|run| run[path]));
    let means: Vec<f64> = (0..4).map(of_path).collect();
    let spread = means.iter().fold(0.0, |most: f64, mean| most.max(*mean))
        / means.iter().fold(1.0, |least: f64, mean| least.min(*mean));
    println!("figure 5, marked on 20, 40, 60, 80 Gbit/s: {means:.4?}, ratio {spread:.3}");
    let of = |late, window| Disorder::new(late, window).unwrap_or(Disorder::WINDOW);
    for network in figures::DISORDERED {
        let tail =
            |limits| mean(seeds.clone().map(|seed| network.tail_packets(seed, limits) as f64));
        let share = |limits| mean(seeds.clone().map(|seed| network.share(seed, limits)));
        let (paper, window, none) =
            (tail(Disorder::PAPER), tail(Disorder::WINDOW), tail(of(256, 256)));
        println!("figure 14, {}:", network.name);
        println!(
            "    disorder p99.9 {paper:.0} by 32, {window:.0} by 128, {none:.0} without: {:.1} times less by 32",
            none / paper
        );
        println!(
            "    share with a bitmap of 64 {:.3}, without a limit {:.3}",
            share(Disorder::PAPER),
            share(of(64, 64))
        );
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

fn print_row(row: &Row) {
    println!(
        "{:34} {:6.2} {:6.2} {:6.3} {:6.3}  {:8.2} {:8.2}",
        row.name,
        row.mean_gbit,
        row.least_gbit,
        row.mean_share(),
        row.least_share(),
        row.needless_per_mille,
        row.repeated_per_mille
    );
}
