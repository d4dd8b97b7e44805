//! The `petrel` command: try Petrel, measure it, simulate it, and find out what a host offers it.
//!
//! One file per subcommand, named after it; [`cli`] says what each accepts, [`output`] how results
//! are printed, [`units`] how sizes and durations are written. [`server`] and [`client`] are the two
//! ends that the subcommands set up, [`methods`] what the one answers, [`load`] how the other calls.
//! [`bench`] has ends of its own, which it gives turns itself.
//!
//! Exit codes, the same for every subcommand: 0 it succeeded, 1 it failed, 2 it was called wrongly.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

mod bench;
mod call;
mod cli;
mod client;
mod cores;
mod demo;
mod doctor;
mod failure;
mod health;
mod index;
mod interrupt;
mod kv;
mod load;
mod log;
mod manual;
mod methods;
mod output;
mod payload;
mod ping;
mod seeds;
mod serve;
mod server;
mod sim;
mod stats;
mod text;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::failure::Failure;
use crate::output::Output;

/// How a subcommand ended that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// What was asked for holds.
    Success,
    /// The work was done and its result is bad, as the printed result says.
    Failure,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log::start(cli.global.log);
    let output = Output::new(cli.global.json, cli.global.quiet);
    match run(&cli.command, output) {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Failure) => ExitCode::FAILURE,
        Err(failure) => report(&failure, output),
    }
}

fn run(command: &Command, output: Output) -> Result<Outcome, Failure> {
    match command {
        Command::Demo(args) => demo::run(args, output),
        Command::Serve(args) => serve::run(args, output),
        Command::Ping(args) => ping::run(args, output),
        Command::Call(args) => call::run(args, output),
        Command::Stats(args) => stats::run(args, output),
        Command::Health(args) => health::run(args, output),
        Command::Kv(args) => kv::run(args, output),
        Command::Bench(args) => bench::run(args, output),
        Command::Index(args) => index::run(args, output),
        Command::Sim(args) => sim::run(args, output),
        Command::Doctor(args) => Ok(doctor::run(args, output)?),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::man(args),
    }
}

/// Says on standard error why there is no result, and with `--json` on standard output too. A
/// reader that has seen enough and closed the pipe, such as `head`, is no failure and needs no
/// words.
fn report(failure: &Failure, output: Output) -> ExitCode {
    if failure.is_closed_pipe() {
        return ExitCode::SUCCESS;
    }
    eprintln!("petrel: {}", text::clean(&failure.to_string()));
    // Where standard output takes nothing, standard error has said it.
    let _ = output.record(&failure.record());
    ExitCode::FAILURE
}
