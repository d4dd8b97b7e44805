//! Runs the nexus worlds of seeds until one breaks a rule, and then ends with exit code 1.
//!
//! `cargo run --release -p petrel-sim --example nexus_worlds FIRST COUNT`, or `SEED trace` for one seed
//! with a trace.

use std::process::ExitCode;

use petrel_sim::Trace;
use petrel_sim::nexus::{run_seed_traced, run_seeds};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |place: usize, other: u64| {
        arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(other)
    };
    let first = number(1, 0);
    if arguments.get(2).is_some_and(|text| text == "trace") {
        let result = run_seed_traced(first, Trace::off().with_sink(|line| println!("{line}")));
        println!("{result:?}");
        return if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let summary = run_seeds(first..first + number(2, 100), 1, arguments.len() > 3, |_| {
        std::ops::ControlFlow::Continue(())
    });
    for failure in &summary.failures {
        println!("{failure}");
    }
    for (name, count) in &summary.totals {
        println!("{name:40} {count}");
    }
    println!("{} of {} seeds broke a rule", summary.failures.len(), summary.seeds);
    if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
