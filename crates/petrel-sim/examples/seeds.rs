//! Runs seeds of the library's worlds on one thread, and says how long they took.
//!
//! `cargo run --release -p petrel-sim --example seeds FIRST COUNT`. The exit code is 1 if a seed broke a rule.

use std::process::ExitCode;
use std::time::Instant;

use petrel_sim::Trace;
use petrel_sim::check::{Options, run_seed_traced, run_seeds};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |place: usize, other: u64| {
        arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(other)
    };
    let (first, count) = (number(1, 0), number(2, 100));
    if arguments.iter().any(|word| word == "trace") {
        let sink = |line: &str| println!("{line}");
        let trace = Trace::off().with_sink(sink);
        let result = run_seed_traced(first, &Options::default(), trace);
        println!("{:?}", result.map(|report| report.calls));
        return ExitCode::SUCCESS;
    }
    let mut options = Options::default();
    options.keep_going = true;
    let begin = Instant::now();
    let summary = run_seeds(first..first + count, 1, &options, |_| {});
    for failure in &summary.failures {
        println!("{failure}");
    }
    let (broken, took) = (summary.failures.len(), begin.elapsed());
    let rate = summary.seeds as f64 / took.as_secs_f64();
    println!("{broken} of {} seeds broke a rule; {took:.1?}, {rate:.0} a second", summary.seeds);
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
