//! Measures lookups as functions: `cargo run --release -p petrel-batch-bench -- cuckoo chase` prints a table per lookup.

use clap::{Parser, ValueEnum};
use petrel_batch_bench::{Lookup, Pace, measure};

/// Measure batches of lookups beside other ways to look up
#[derive(Debug, Parser)]
struct Arguments {
    /// The lookups, in turn; all of them by default
    #[arg(value_enum)]
    lookups: Vec<Lookup>,

    /// Rounds; all forms run in a round
    #[arg(long, default_value_t = 41)]
    rounds: usize,

    /// Divides the sizes of all structures, for a quick look
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    smaller: u32,
}

fn main() {
    let arguments = Arguments::parse();
    let pace =
        Pace { rounds: arguments.rounds, smaller: arguments.smaller as usize, counted: None };
    let lookups = match &*arguments.lookups {
        [] => Lookup::value_variants(),
        lookups => lookups,
    };
    for lookup in lookups {
        println!("{}", measure(*lookup, &pace));
    }
}
