//! Whether the tests would notice: `petrel-probe planted` breaks the library on purpose, in known ways, and looks which
//! tests find it; `petrel-probe mutants` does so with small changes of any line, and `petrel-probe reach` tells which
//! lines each kind of test comes to (`docs/testing.md`).

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

/// Results of type `T`, or why there are none.
type Outcome<T = ExitCode> = Result<T, Failure>;
