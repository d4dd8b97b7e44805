//! The programs to run against a mutant: the cheapest first.

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::crates::LIBRARY;

/// A program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Step {
    pub(super) name: &'static str,
    /// Crates whose mutants meet the step.
    pub(super) crates: &'static [&'static str],
    pub(super) package: &'static str,
    pub(super) target: &'static str,
    pub(super) arguments: &'static [&'static str],
    /// Whether the step uses sockets, threads and time: then a failure is repeated before it counts.
    pub(super) is_real: bool,
}

const fn step(name: &'static str, package: &'static str, target: &'static str) -> Step {
    Step { name, crates: LIBRARY, package, target, arguments: &[], is_real: false }
}

const fn real(name: &'static str, package: &'static str, target: &'static str) -> Step {
    Step { is_real: true, ..step(name, package, target) }
}

const fn of(crates: &'static [&'static str], step: Step) -> Step {
    Step { crates, ..step }
}

impl Step {
    /// Returns true if the step has a separate build.
    pub(super) fn is_of_threads(&self) -> bool {
        self.target == "threads"
    }

    pub(super) fn package_name(&self) -> String {
        match self.package {
            "petrel" => "petrel-rpc".to_owned(),
            "cache" | "index" | "kv" | "kv-check" => format!("petrel-{}", self.package),
            name => name.to_owned(),
        }
    }
}

/// The steps to run, of those of the chosen crates.
#[derive(Debug, Args)]
pub(super) struct Chosen {
    /// Run this step alone; may be repeated. The default is all steps but the worlds of threads
    #[arg(long = "step", value_name = "NAME",
        value_parser = PossibleValuesParser::new(STEPS.map(|step| step.name)))]
    steps: Vec<String>,

    /// Also run worlds of threads under a model checker, which takes a second build
    #[arg(long)]
    threads: bool,
}

impl Chosen {
    pub(super) fn has(&self, step: &Step) -> bool {
        let is_named = self.steps.iter().any(|name| name == step.name);
        match step.is_of_threads() {
            true => is_named || self.threads,
            false => is_named || self.steps.is_empty(),
        }
    }
}

/// The step that compares a run's events with a record of an earlier run.
pub(super) const RECORD: &str = "record";

const BATCH: &[&str] = &["petrel-batch"];
const CACHE: &[&str] = &["petrel-cache"];
const INDEX: &[&str] = &["petrel-index"];
const KV: &[&str] = &["petrel-kv"];

/// All steps, in the order in which they run. A mutant skips the steps that never execute its place.
pub(super) const STEPS: [Step; 23] = [
    step("proto unit", "petrel-proto", "lib"),
    step("transport unit", "petrel-transport", "lib"),
    step("petrel unit", "petrel", "lib"),
    Step { arguments: &["0", "100"], ..step("100 seeds", "petrel-sim", "worlds") },
    Step { arguments: &["0", "100"], ..step("100 nexus seeds", "petrel-sim", "nexus_worlds") },
    step("threads", "petrel", "threads"),
    step("proto congestion", "petrel-proto", "congestion"),
    step("proto corpus", "petrel-proto", "corpus"),
    real("transport all", "petrel-transport", "all"),
    real("petrel all", "petrel", "all"),
    real("memory returned", "petrel", "memory_returned"),
    real("descriptors", "petrel", "nexus_descriptors"),
    real("attacks", "petrel", "attacks"),
    of(BATCH, step("batch unit", "petrel-batch", "lib")),
    of(BATCH, step("batch all", "petrel-batch", "all")),
    of(CACHE, step("cache unit", "cache", "lib")),
    of(CACHE, real("cache all", "cache", "all")),
    of(INDEX, step("index unit", "index", "lib")),
    of(INDEX, real("index all", "index", "all")),
    of(KV, step("kv unit", "kv", "lib")),
    of(KV, Step { arguments: &["0", "60", "first"], ..step("60 kv seeds", "kv-check", "seeds") }),
    of(KV, real("kv all", "kv", "all")),
    // The last step: a mutant found by the record alone has broken no rule, and the report shows the
    // number of these mutants.
    Step { arguments: &["record"], ..step(RECORD, "petrel-sim", "all") },
];
