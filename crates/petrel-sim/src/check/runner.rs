//! Runs seeds, one by one or many on several threads.

use std::fmt::Write as _;
use std::ops::Range;

use petrel_proto::wire::Frame;

use super::report::Report;
use super::world::World;
use crate::seeds::{self, Failure, Progress, Summary};
use crate::trace::Trace;
use crate::{nexus, party};

/// One seed in so many has a party beside its other worlds.
const SEEDS_PER_PARTY: u64 = 8;

/// One in so many seeds has a world of nexuses, which costs as much as a quarter of one of endpoints.
const SEEDS_PER_NEXUS: u64 = 2;

/// How seeds are run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Whether [`run_seeds`] goes on after a failure.
    pub keep_going: bool,
    /// Whether each world has all features, none is large, and each frame of every endpoint is a packet, as the worlds of the seeds on the regression list had. Otherwise
    /// half of the worlds go without about half of them, so that each feature is also met without the others.
    pub has_everything: bool,
}

/// Runs the world of a seed, of every second seed [that of nexuses](crate::nexus) too, and of every eighth
/// [the party](crate::party), and checks everything.
///
/// # Errors
/// The first rule that was broken. A panic counts as one.
pub fn run_seed(seed: u64, options: &Options) -> Result<Report, Failure> {
    run_seed_traced(seed, options, Trace::off())
}

/// The same, with a trace that shows what every frame says. Give it a sink
/// ([`Trace::with_sink`]) to see the lines.
///
/// # Errors
/// As [`run_seed`].
pub fn run_seed_traced(seed: u64, options: &Options, trace: Trace) -> Result<Report, Failure> {
    let trace = if trace.is_on() { trace.with_decoder(describe) } else { trace };
    let command = if options.has_everything { "petrel sim --everything" } else { "petrel sim" };
    seeds::run_one(seed, command, || {
        let has_nexus = options.has_everything || seed.is_multiple_of(SEEDS_PER_NEXUS);
        let (nexus, trace) = if has_nexus {
            let (nexus, trace) = nexus::run_world(seed, trace);
            (nexus?, trace)
        } else {
            (nexus::Report::default(), trace)
        };
        let has_party = !options.has_everything && seed.is_multiple_of(SEEDS_PER_PARTY);
        let party = if has_party { party::run_world(seed)? } else { party::Report::default() };
        let report = World::new(seed, options, trace)?.run(seed)?;
        let digest = report.digest ^ nexus.digest.rotate_left(1) ^ party.digest.rotate_left(2);
        Ok(Report { nexus, party, digest, ..report })
    })
}

fn describe(frame: &[u8], line: &mut String) {
    // Writing to a string cannot fail.
    let _ = match Frame::parse(frame) {
        Ok(frame) => write!(line, "{frame}"),
        Err(error) => write!(line, "{error}"),
    };
}

/// Runs seeds on `jobs` threads, at least one. `progress` is told after each.
pub fn run_seeds(
    seeds: Range<u64>,
    jobs: usize,
    options: &Options,
    progress: impl Fn(Progress) + Sync,
) -> Summary {
    let run = |seed| run_seed(seed, options).map(|report| report.iter().collect::<Vec<_>>());
    seeds::run_many(seeds, jobs, options.keep_going, || run, progress)
}
