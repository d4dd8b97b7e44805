//! Lookups in structures larger than the cache: one after another, in batches that `#[batched]` wrote, in groups with prefetches by
//! hand, and as futures.
//!
//! `cargo run --release -p petrel-batch-bench -- cuckoo chase` prints a table per lookup. The forms run in turn, in each round with
//! inputs that no form had before, and each result is checked. A row has the median of the rounds.

mod chase;
mod cuckoo;
mod futures;
mod harness;
mod ipv4;
mod ipv6;
mod memory;
mod names;
mod patterns;
mod random;
mod switch;

use clap::{Parser, ValueEnum};

use self::harness::{Pace, Report};

/// A lookup to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Lookup {
    /// A 2-8 cuckoo hash table of 100 million entries in 1 GiB
    Cuckoo,
    /// 100 dependent accesses in 1 GiB
    Chase,
    /// 4 dependent accesses in 1 GiB
    #[value(name = "chase-4")]
    ChaseFour,
    /// The longest prefix of an IPv4 address among 500 000, by DIR-24-8
    Ipv4,
    /// The longest prefix of an IPv6 address among 200 000 of 48 to 64 bits, by a trie
    Ipv6,
    /// The port of an Ethernet address among 60 million
    Switch,
    /// The longest prefix of a name among 10 million
    Ndn,
    /// The patterns that occur in a packet of 256 bytes, by the automaton of Aho and Corasick
    Patterns,
}

/// Measure batches of lookups beside other ways to look up
#[derive(Debug, Parser)]
struct Arguments {
    /// The lookups, in turn; all of them by default
    #[arg(value_enum)]
    lookups: Vec<Lookup>,

    /// Rounds, in each of which all forms run
    #[arg(long, default_value_t = 41)]
    rounds: usize,

    /// Divides the sizes of all structures, for a quick look
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    smaller: u32,
}

fn main() {
    let arguments = Arguments::parse();
    let pace = Pace { rounds: arguments.rounds, smaller: arguments.smaller as usize };
    let lookups = match &*arguments.lookups {
        [] => Lookup::value_variants(),
        lookups => lookups,
    };
    for lookup in lookups {
        println!("{}", measure(*lookup, &pace));
    }
}

fn measure(lookup: Lookup, pace: &Pace) -> Report {
    match lookup {
        Lookup::Cuckoo => cuckoo::measure(pace),
        Lookup::Chase => chase::measure(pace, 100),
        Lookup::ChaseFour => chase::measure(pace, 4),
        Lookup::Ipv4 => ipv4::measure(pace),
        Lookup::Ipv6 => ipv6::measure(pace),
        Lookup::Switch => switch::measure(pace),
        Lookup::Ndn => names::measure(pace),
        Lookup::Patterns => patterns::measure(pace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups__all_forms_give_the_right_results() {
        let pace = Pace { rounds: 1, smaller: 256 };
        for lookup in Lookup::value_variants() {
            // A wrong result panics.
            assert!(measure(*lookup, &pace).to_string().contains("1 rounds"));
        }
    }
}
