//! Runs seeds until one breaks a rule, and then ends with exit code 1: for libraries with planted defects.
//!
//! `cargo run -p petrel-sim --example worlds FIRST COUNT [JOBS]`
//!
//! With a number of threads, all seeds run, whether one breaks a rule or not, and the totals of all counters follow, with the
//! number of seeds that met each.

use std::process::ExitCode;
use std::thread;

use petrel_sim::check::{Options, run_seeds};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |place: usize, other: u64| {
        arguments.get(place).and_then(|text| text.parse().ok()).unwrap_or(other)
    };
    let (first, count) = (number(1, 0), number(2, 100));
    let jobs: Option<usize> = arguments.get(3).and_then(|text| text.parse().ok());
    let all = thread::available_parallelism().map_or(1, Into::into);
    let mut options = Options::default();
    options.keep_going = jobs.is_some();
    let summary = run_seeds(first..first + count, jobs.unwrap_or(all), &options, |_| {
        std::ops::ControlFlow::Continue(())
    });
    if jobs.is_some() {
        for (name, total) in &summary.totals {
            println!("{name} {total}, in {} seeds", summary.met[name]);
        }
    }
    for failure in &summary.failures {
        println!("{failure}");
    }
    println!("{} of {} seeds broke a rule", summary.failures.len(), summary.seeds);
    if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
