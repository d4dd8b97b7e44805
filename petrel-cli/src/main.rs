//! The `petrel` command: try Petrel, measure it, simulate it, and find out what a host offers it.
//!
//! One file per subcommand, named after it; [`cli`] says what each accepts, [`output`] how results
//! are printed, [`units`] how sizes and durations are written.
//!
//! Exit codes, the same for every subcommand: 0 it succeeded, 1 it failed, 2 it was called wrongly.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]
#![allow(dead_code, reason = "arguments and output of subcommands that are not wired up yet")]

mod cli;
mod doctor;
mod output;
mod units;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
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
    let output = Output::new(cli.global.json, cli.global.quiet);
    match run(&cli.command, output) {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Failure) => ExitCode::FAILURE,
        Err(error) => report(&error),
    }
}

fn run(command: &Command, output: Output) -> io::Result<Outcome> {
    match command {
        Command::Doctor(args) => doctor::run(args, output),
    }
}

/// Says on standard error why there is no result. A reader that has seen enough and closed the
/// pipe, such as `head`, is no failure and needs no words.
fn report(error: &io::Error) -> ExitCode {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return ExitCode::SUCCESS;
    }
    eprintln!("petrel: {error}");
    ExitCode::FAILURE
}
