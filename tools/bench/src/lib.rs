//! The benchmarks of the command: `petrel bench` has the library beside the baseline, in alternating
//! windows; `index` is `petrel index bench`, and `demo` is `petrel demo`.
//!
//! | module | concern |
//! | --- | --- |
//! | `measurement` | latency, rate and bandwidth: the ends and the baseline of each |
//! | `defaults` | a user's figures: two processes, nothing set |
//! | `pause` | the first call after a pause |
//! | `sweep` | rate against batch size, bandwidth against request size |
//! | `sessions`, `memory` | many sessions: their calls, their memory |
//! | `instructions` | instructions per RPC, by callgrind |
//! | `veth` | two network namespaces in place of loopback |
//! | `factors` | the worth of the optimisations |
//! | `congestion` | the cost of congestion controls without congestion |
//! | `batch` | lookup servers with plain and with batched handlers |
//! | `cache` | the cache beside an echo, and HERD's comparison on a modelled card |
//! | `regions` | operations on regions beside calls |
//! | `overload` | a server with more requests than it can execute |
//! | `attacks` | the cost of hostile peers for honest clients of the same server |
//! | `all`, `target` | the figures that Petrel must reach |
//! | `process` | this command as another process |
//! | `test_bed`, `server_thread` | threads, CPUs and addresses, and the creation of the ends |
//! | `ends` | the traits of the ends; a window of calls |
//! | `library`, `load` | the library's ends; the calls and the check of their replies |
//! | `baseline` | the baselines |
//! | `pairs`, `probe` | alternating windows; the selection of valid windows |
//! | `window`, `statistics`, `figure` | the counts, and the figures computed from them |
//! | `table`, `plot` | figures for human readers |
//! | `command` | `petrel bench`: the measurements of each subcommand |
//!
//! Without the feature `full` the crate is `petrel demo` alone.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]
// The demonstration alone uses a part of the measurements.
#![cfg_attr(not(feature = "full"), allow(dead_code))]

pub mod args;
mod baseline;
pub mod demo;
pub mod ends;
pub mod figure;
pub mod library;
pub mod load;
pub mod measurement;
pub mod pairs;
mod probe;
pub mod server_thread;
pub mod statistics;
mod table;
mod target;
pub mod test_bed;
pub mod window;

#[cfg(feature = "full")]
mod all;
#[cfg(feature = "full")]
mod attacks;
#[cfg(feature = "full")]
mod batch;
#[cfg(feature = "full")]
#[cfg(feature = "full")]
pub mod cache;
#[cfg(feature = "full")]
pub mod chart;
#[cfg(feature = "full")]
mod command;
#[cfg(feature = "full")]
mod congestion;
#[cfg(feature = "full")]
mod defaults;
#[cfg(feature = "full")]
mod factors;
#[cfg(feature = "full")]
pub mod index;
#[cfg(feature = "full")]
mod instructions;
#[cfg(feature = "full")]
mod kv;
#[cfg(feature = "full")]
mod memory;
#[cfg(feature = "full")]
pub mod overload;
#[cfg(feature = "full")]
mod pause;
#[cfg(feature = "full")]
mod plot;
#[cfg(feature = "full")]
mod process;
#[cfg(feature = "full")]
mod regions;
#[cfg(feature = "full")]
pub mod report;
#[cfg(feature = "full")]
mod sessions;
#[cfg(feature = "full")]
mod sweep;
#[cfg(feature = "full")]
#[cfg(feature = "full")]
mod turns;
#[cfg(feature = "full")]
pub mod veth;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::output::progress::Progress;

#[cfg(feature = "full")]
pub(crate) use self::attacks::AttackKind;
#[cfg(feature = "full")]
pub(crate) use self::command::Report;
#[cfg(feature = "full")]
pub use self::command::run;
#[cfg(feature = "full")]
pub use self::command::run_instructions;
pub(crate) use self::figure::{Figure, Quantity};
#[cfg(feature = "full")]
pub(crate) use self::instructions::Workload as CountedWorkload;
pub(crate) use self::measurement::{Measurement, SessionPlan};
pub(crate) use self::pairs::Pace;
pub(crate) use self::table::{footer, table};
pub(crate) use self::test_bed::Cores;

/// Runs the measurements in turn, with a progress bar each, and prints the figures as JSON.
fn run_all(measurements: &[Measurement], output: Output) -> Result<Vec<Figure>, Failure> {
    let run = |measurement: &Measurement| {
        let figure = measurement.run(progress_bar(output, &measurement.title()))?;
        output.record(&figure)?;
        Ok(figure)
    };
    measurements.iter().map(run).collect()
}

/// Returns a failure if a call of any measurement failed or was answered wrongly.
fn outcome(figures: &[Figure]) -> Outcome {
    match figures.iter().all(Figure::is_valid) {
        true => Outcome::Success,
        false => Outcome::Failure,
    }
}

/// A progress bar over pairs of windows; hidden until the first pair is done.
pub fn progress_bar(output: Output, title: &str) -> impl FnMut(u32, u32) + Send + use<> {
    let title = format!("{title} (windows)");
    let mut progress: Option<Progress> = None;
    move |done, total| {
        progress.get_or_insert_with(|| output.progress(total.into(), &title)).set(done.into());
    }
}
