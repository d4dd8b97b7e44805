//! The experiments of Petrel's papers: loss, incast, scale, overload and several paths.
//!
//! | module | concern |
//! | --- | --- |
//! | [`sim`] | real endpoints on a simulated network, measured in virtual time |
//! | `lossy`, `paths_veth` | packets of this machine's kernel between two network namespaces: with loss, over four links |
//! | `factors`, `congestion`, `sweep` | eRPC's optimisations, one by one; the cost of congestion controls; rate against batch size, bandwidth against size |
//! | `batch` | lookup servers with plain and with batched handlers, over the tables of `batch-bench` |
//! | `stalls` | instructions and stalled cycles of the lookups of `batch-bench` |
//! | `lookups`, `card` | HERD's cache: ways of looking items up; the comparison with Pilaf and FaRM on a modelled card |
//! | `one_sided` | the GETs of HERD, Pilaf and FaRM by verbs of a card, over real tables |
//! | `endpoints` | endpoints that take turns on one thread, for `batch` and `lookups` |
//! | `puts` | the store's puts in the network of eRPC's paper |
//! | `index`, `overload`, `pause`, `sealed` | on this machine: eRPC's index with scans; a server with too many requests; the first call after a pause; encryption |
//! | `turns` | the times of ends that take turns on one thread |
//! | `command`, `args`, `report` | the command `petrel-experiment`: tables, JSON and plots |
//!
//! `experiments/README.md` shows the results.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

mod args;
mod batch;
mod card;
mod command;
mod congestion;
mod endpoints;
mod factors;
mod index;
mod lookups;
mod lossy;
mod one_sided;
mod overload;
mod paths_veth;
mod pause;
mod puts;
mod report;
mod sealed;
pub mod sim;
mod stalls;
mod sweep;
mod turns;

use std::process::ExitCode;

use clap::Parser;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::{Outcome, text};

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "petrel-experiment", version)]
struct Cli {
    /// Print one JSON object per line instead of text for people
    #[arg(long, global = true)]
    json: bool,

    /// Show no progress bars
    #[arg(long, short, global = true)]
    quiet: bool,

    #[command(flatten)]
    experiment: args::ExperimentArgs,
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.json, cli.quiet);
    match command::run(&cli.experiment, output) {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Failure) => ExitCode::FAILURE,
        Err(failure) => report(&failure, output),
    }
}

/// Prints the failure to standard error, and with `--json` to standard output too. A reader that closes the pipe early causes no
/// failure.
fn report(failure: &Failure, output: Output) -> ExitCode {
    if failure.is_closed_pipe() {
        return ExitCode::SUCCESS;
    }
    eprintln!("petrel-experiment: {}", text::clean(&failure.to_string()));
    // If standard output is closed, standard error has the message.
    let _ = output.record(&failure.record());
    ExitCode::FAILURE
}
