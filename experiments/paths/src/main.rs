//! The command: prints the measurements of one policy, or of all.
//!
//! `petrel-paths [policy=NAME] [ports=1..32] [packets=1..256] [threshold=1..256] [marking=step|slope] [seeds=11-16]`

use std::process::ExitCode;

use petrel_paths::rows::{Row, Table};
use petrel_paths::{SLOPE, STEP};
use petrel_proto::path::PathPolicy;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((policies, table)) = parse(&words) else {
        let names: Vec<&str> = PathPolicy::ALL.iter().map(|policy| policy.name()).collect();
        eprintln!("petrel-paths [policy=NAME] [ports=1..32] [packets=1..256] [threshold=1..256]");
        eprintln!("    [marking=step|slope] [seeds=FIRST-LAST]");
        eprintln!("policies: {}", names.join(", "));
        return ExitCode::FAILURE;
    };
    for policy in policies {
        print_table(&Table { policy, ..table.clone() });
    }
    ExitCode::SUCCESS
}

/// Reads the settings. Returns `None` for an unknown name or a value out of range.
fn parse(words: &[String]) -> Option<(Vec<PathPolicy>, Table)> {
    let (mut policies, mut table) = (PathPolicy::ALL.to_vec(), Table::default());
    for word in words {
        let (name, value) = word.split_once('=')?;
        match name {
            "policy" => policies.retain(|policy| policy.name() == value),
            "ports" => table.ports = value.parse().ok()?,
            "packets" => table.packets_most = value.parse().ok()?,
            "threshold" => table.threshold = value.parse().ok()?,
            "marking" if value == "step" => table.marking = STEP,
            "marking" if value == "slope" => table.marking = SLOPE,
            "seeds" => {
                let (first, last) = value.split_once('-')?;
                table.seeds = first.parse().ok()?..=last.parse().ok()?;
            }
            _ => return None,
        }
    }
    let is_valid = (1..=32).contains(&table.ports)
        && (1..=256).contains(&table.packets_most)
        && (1..=256).contains(&table.threshold)
        && !table.seeds.is_empty();
    (is_valid && !policies.is_empty()).then_some((policies, table))
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
    for flows in [2, 4, 9, 16, 40] {
        let (row, jain, queue) = table.incast(flows);
        print_row(&row);
        println!("{:34} Jain {jain:.3}, queue {queue:.0} packets", "");
    }
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
