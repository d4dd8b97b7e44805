//! Lookups in structures larger than the cache, in all forms: one after another, in batches that `#[batched]` wrote, in
//! groups with prefetches by hand, and as futures.
//!
//! [`measure`] measures a lookup as a function. The forms run in turn, in each round with inputs that no form had before, and each
//! result is checked. A row has the median of the rounds. [`served`] has lookups for servers: `petrel-experiment batch`
//! measures them.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

mod chase;
mod cuckoo;
mod futures;
mod harness;
mod ipv4;
mod ipv6;
pub mod memory;
mod names;
mod patterns;
mod random;
pub mod served;
mod switch;

use clap::ValueEnum;

pub use self::harness::{COUNTED_WIDTH, Counted, Form, PARTS, Pace, Report};

/// A lookup to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lookup {
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

/// Measures all forms of a lookup.
///
/// # Panics
/// If a form's results are wrong.
pub fn measure(lookup: Lookup, pace: &Pace) -> Report {
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
        let pace = Pace { rounds: 1, smaller: 256, counted: None };
        for lookup in Lookup::value_variants() {
            // A wrong result panics.
            let report = measure(*lookup, &pace);
            assert!(report.to_string().contains("1 rounds"));
            for form in Form::value_variants() {
                let counted = Some(Counted { form: *form, parts: PARTS });
                let counted = measure(*lookup, &Pace { counted, ..pace });
                assert!(
                    counted.counted_inputs(1) > 0
                        && report.counted_inputs(1) == counted.counted_inputs(1),
                    "{form:?}"
                );
            }
        }
    }
}
