//! The `petrel` command: try, measure and simulate Petrel, and diagnose a host.
//!
//! The files are named after the subcommands. [`cli`] defines the arguments, [`output`] the printing of
//! results, [`units`] the notation of sizes and durations. [`server`] and [`client`] are the two ends
//! that subcommands create; [`methods`] are the server's methods, [`load`] the client's calls. [`bench`]
//! has its own ends, and drives their event loops itself.
//!
//! Exit codes of every subcommand: 0 for success, 1 for failure, 2 for wrong usage.

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

/// The outcome of a subcommand that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The result is good.
    Success,
    /// The work was done, but the printed result is bad.
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

/// Prints the failure to standard error, and with `--json` to standard output too. A reader that closes
/// the pipe early, for instance `head`, causes no failure and no message.
fn report(failure: &Failure, output: Output) -> ExitCode {
    if failure.is_closed_pipe() {
        return ExitCode::SUCCESS;
    }
    eprintln!("petrel: {}", text::clean(&failure.to_string()));
    // If standard output is closed, standard error has the message.
    let _ = output.record(&failure.record());
    ExitCode::FAILURE
}
