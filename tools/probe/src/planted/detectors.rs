//! The tests for the planted defects.

use std::fmt;

use petrel_planted::Defect;

/// Packages whose tests take part.
pub(super) const PACKAGES: [&str; 8] = [
    "petrel-proto",
    "petrel-transport",
    "petrel-rpc",
    "petrel-sim",
    "petrel-cache",
    "petrel-index",
    "petrel-kv",
    "petrel-kv-check",
];

/// A program that may find a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Unit tests of the package in this directory whose names contain the text.
    Unit(&'static str, &'static str),
    /// Tests of the program `tests/all` whose names contain the text.
    Test(&'static str, &'static str),
    /// This number of seeds of the library's simulator.
    Seeds(u64),
    /// This number of seeds of the replicated store's simulator.
    StoreSeeds(u64),
    /// Seeds of threads under a model checker: as many as one run has.
    Threads,
}

use Step::{Seeds, StoreSeeds, Test, Threads, Unit};

/// Returns the steps that search for a defect, the cheapest first.
///
/// # Panics
/// If the table of defects has another kind of step.
pub(super) fn steps_of(defect: &Defect) -> Vec<Step> {
    defect.detectors.split(", ").map(step).collect()
}

fn step(text: &'static str) -> Step {
    let count = |count: &str| count.parse().ok();
    let step = match text.split(' ').collect::<Vec<_>>()[..] {
        ["unit", package, filter] => Some(Unit(package, filter)),
        ["test", package, filter] => Some(Test(package, filter)),
        ["seeds", number] => count(number).map(Seeds),
        ["store-seeds", number] => count(number).map(StoreSeeds),
        ["threads"] => Some(Threads),
        _ => None,
    };
    step.unwrap_or_else(|| panic!("no detector of a planted defect: {text}"))
}

impl Step {
    /// Returns the package's directory, the program, and its arguments.
    pub(super) fn program(&self) -> (&'static str, &'static str, Vec<String>) {
        let seeds = |count: u64| vec!["0".to_owned(), count.to_string(), "first".to_owned()];
        match *self {
            Unit(package, filter) => (package, "lib", vec![filter.to_owned()]),
            Test(package, filter) => (package, "all", vec![filter.to_owned()]),
            Seeds(count) => ("petrel-sim", "worlds", seeds(count)),
            StoreSeeds(count) => ("kv-check", "seeds", seeds(count)),
            Threads => ("petrel", "threads", vec!["worlds__".to_owned()]),
        }
    }

    /// Returns true if a passed run has tested anything: a filter that matches no test passes as well.
    pub(super) fn has_run(&self, log: &str) -> bool {
        match self {
            Unit(..) | Test(..) | Threads => {
                !log.contains("running 0 tests") && log.contains("test result: ok")
            }
            Seeds(count) | StoreSeeds(count) => log.contains(&format!("0 of {count} seeds")),
        }
    }

    /// Returns the line that names the test or the seed that failed first.
    pub(super) fn first_sign(&self, log: &str) -> String {
        let sign = |line: &&str| match self {
            Threads => line.starts_with("again: "),
            Unit(..) | Test(..) => line.ends_with("... FAILED") || line.contains("panicked at"),
            Seeds(_) | StoreSeeds(_) => line.starts_with("seed "),
        };
        let line = log.lines().find(sign).unwrap_or("it ended by itself, without a word");
        line.chars().take(160).collect()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unit(package, filter) => write!(f, "unit tests of {package}: {filter}"),
            Test(package, filter) => write!(f, "tests of {package}: {filter}"),
            Seeds(count) => write!(f, "{count} seeds"),
            StoreSeeds(count) => write!(f, "{count} seeds of the store"),
            Threads => write!(f, "seeds of threads"),
        }
    }
}

#[cfg(test)]
mod tests {
    use petrel_planted::defects;

    use super::*;

    #[test]
    fn steps_of__each_defect_in_the_table() {
        assert!(defects().all(|defect| !steps_of(&defect).is_empty()));
    }

    #[test]
    fn has_run__not_where_no_test_has_the_name() {
        let step = Unit("kv", "store::");
        assert!(step.has_run("running 3 tests\ntest result: ok. 3 passed"));
        assert!(!step.has_run("running 0 tests\ntest result: ok. 0 passed"));
        assert!(Seeds(20).has_run("0 of 20 seeds broke a rule"));
        assert!(!Seeds(20).has_run("0 of 2 seeds broke a rule"));
    }

    #[test]
    fn first_sign__names_the_test_or_the_seed() {
        let log = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n";
        assert_eq!(Test("petrel", "channel").first_sign(log), "test b ... FAILED");
        assert_eq!(Seeds(5).first_sign("seed 3: a call\nreplay: it"), "seed 3: a call");
    }
}
