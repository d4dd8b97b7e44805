//! Runs seeds, and reports how many of them broke a rule: for stores with planted defects.
//!
//! `cargo run --release -p petrel-kv-check --example seeds FIRST COUNT [first]`; with `first` it ends at
//! the first seed that breaks a rule. The exit code is 1 if a seed broke a rule.

use std::process::ExitCode;
use std::time::Instant;

use petrel_kv_check::{Runner, run_seeds};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |place: usize, other: u64| {
        arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(other)
    };
    let (first, count) = (number(1, 0), number(2, 100));
    let keeps_going = arguments.get(3).is_none_or(|word| word != "first");
    if let Some(why) = Runner::skipped() {
        println!("skipped: histories are not checked for linearizability: {why}");
    }
    let begin = Instant::now();
    let summary = run_seeds(first..first + count, 2, keeps_going, Runner::new, |_| {
        std::ops::ControlFlow::Continue(())
    });
    for failure in &summary.failures {
        println!("{failure}");
    }
    let broken = summary.failures.len();
    println!("{broken} of {} seeds broke a rule; {:.1?}", summary.seeds, begin.elapsed());
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
