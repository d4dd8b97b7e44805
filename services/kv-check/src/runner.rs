//! Runs single seeds, or many on several threads.

use std::ops::{ControlFlow, Range};

use petrel_sim::Trace;
use petrel_sim::seeds::{self, Failure, Progress, Summary};

use crate::linearizable::{self, Checker, Verdict};
use crate::world::World;

/// The report of a seed without violations.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Equal for equal runs, and practically only then.
    pub digest: u64,
    /// Counters, by name.
    pub counts: Vec<(&'static str, u64)>,
}

/// Runs seeds, with the linearizability checker if it is available.
pub struct Runner {
    checker: Option<Checker>,
}

impl Default for Runner {
    fn default() -> Self {
        Self::new()
    }
}

impl Runner {
    /// A runner with its own checker.
    pub fn new() -> Self {
        Self { checker: Checker::start() }
    }

    /// The reason why linearizability is not checked; `None` if it is.
    pub fn skipped() -> Option<&'static str> {
        linearizable::program().as_ref().err().map(String::as_str)
    }

    /// Runs the world of a seed and checks all rules. The trace has a line for each event.
    ///
    /// # Errors
    /// The first broken rule. A panic counts as one.
    pub fn run(&mut self, seed: u64, trace: Trace) -> Result<Report, Failure> {
        seeds::run_one(seed, "petrel kv sim", || self.run_world(seed, trace))
    }

    fn run_world(&mut self, seed: u64, trace: Trace) -> Result<Report, String> {
        let mut world = World::new(seed, trace)?;
        world.run()?;
        let common = world.common.clone();
        let history = common.history.borrow();
        let mut counts = counts(&world);
        if let Some(checker) = &mut self.checker {
            match checker.check(&history, common.scenario.load.has_scans)? {
                Verdict::Ok => counts.push(("histories_linearizable", 1)),
                Verdict::Illegal => return Err("the history is not linearizable".to_owned()),
                Verdict::Unknown => counts.push(("histories_too_hard", 1)),
            }
        }
        Ok(Report { seed, digest: digest(&world), counts })
    }
}

fn counts(world: &World) -> Vec<(&'static str, u64)> {
    let common = &world.common;
    let (counters, fabric) = (*common.counters.borrow(), common.fabric.stats());
    let (history, leases) = (common.history.borrow(), common.leases.borrow());
    vec![
        ("operations", history.operations.len() as u64),
        ("operations_without_an_end", history.open() as u64),
        ("operations_failed", history.failed() as u64),
        ("operations_of_kv_client", counters.kv_client_operations),
        ("attempts", counters.attempts),
        ("attempts_failed", counters.attempts_failed),
        ("refusals", counters.refusals),
        ("writes_repeated", counters.repeats),
        ("writes_abandoned", counters.abandoned),
        ("saves", counters.saves),
        ("stale_reads", counters.stale_reads),
        ("leases_ended", leases.ended()),
        ("keep_alives", leases.keep_alives),
        ("changes_watched", counters.changes_watched),
        ("watches_compacted", counters.watches_compacted),
        ("crashes", fabric.crashes),
        ("disks_lost", counters.disks_lost),
        ("partitions", fabric.partitions),
        ("pauses", fabric.pauses),
        ("stalls", fabric.stalls),
        ("transfers", counters.transfers),
        ("nodes_added", counters.nodes_added),
        ("nodes_removed", counters.nodes_removed),
        ("terms_with_a_leader", common.observer.borrow().terms()),
        ("images", counters.images),
        ("snapshots_fetched", counters.snapshots_fetched),
        ("packets", fabric.sent),
        ("virtual_ms", common.fabric.now_ns() / 1_000_000),
    ]
}

/// A digest of all packets, and of all answers to clients.
fn digest(world: &World) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    world.common.fabric.digest().hash(&mut hasher);
    format!("{:?}", world.common.history.borrow().operations).hash(&mut hasher);
    hasher.finish()
}

/// Runs seeds on `jobs` threads, at least one, until a seed fails; with `keeps_going`, until the last seed. Calls
/// `progress` after each seed.
pub fn run_seeds(
    seeds: Range<u64>,
    jobs: usize,
    keeps_going: bool,
    make: impl Fn() -> Runner + Sync,
    progress: impl Fn(Progress) -> ControlFlow<()> + Sync,
) -> Summary {
    let make = || {
        let mut runner = make();
        move |seed| runner.run(seed, Trace::off()).map(|report| report.counts)
    };
    seeds::run_many(seeds, jobs, keeps_going, make, progress)
}
