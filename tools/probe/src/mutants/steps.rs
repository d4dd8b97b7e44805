//! The programs to run against a mutant: the cheapest first, up to the first that fails.

/// A program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Step {
    /// The name in the report.
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    pub(super) target: &'static str,
    pub(super) arguments: &'static [&'static str],
    /// Whether the step uses sockets, threads and time: then a failure is repeated before it counts.
    pub(super) is_real: bool,
}

const fn step(name: &'static str, package: &'static str, target: &'static str) -> Step {
    Step { name, package, target, arguments: &[], is_real: false }
}

const fn real(name: &'static str, package: &'static str, target: &'static str) -> Step {
    Step { name, package, target, arguments: &[], is_real: true }
}

impl Step {
    /// Returns true if the step has a separate build.
    pub(super) fn is_of_threads(&self) -> bool {
        self.target == "threads"
    }
}

/// The step that compares a run's events with a record of an earlier run.
pub(super) const RECORD: &str = "record";

/// All steps, in the order in which they run. A mutant skips the steps that never execute its place.
pub(super) const STEPS: [Step; 14] = [
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
    // The last step: a mutant found by the record alone has broken no rule, and the report shows the
    // number of these mutants.
    Step { arguments: &["record"], ..step(RECORD, "petrel-sim", "all") },
];
