//! Measures whether the tests notice defects. `petrel-probe planted` breaks the library on purpose, in
//! known ways, and reports the tests that find the defects. `petrel-probe mutants` does the same with
//! small changes of any line. `petrel-probe reach` reports the lines that every kind of test executes
//! (`docs/testing.md`).

mod build;
mod child;
mod failure;
mod mutants;
mod planted;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Whether the tests of Petrel would notice a defect
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Planted(planted::PlantedArgs),
    Mutants(mutants::MutantsArgs),
    Reach(mutants::ReachArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.command {
        Command::Planted(args) => planted::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Reach(args) => mutants::run_reach(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("petrel-probe: {failure}");
            ExitCode::from(2)
        }
    }
}

/// Results of type `T`, or the reason why they are missing.
type Outcome<T = ExitCode> = Result<T, Failure>;
