//! Runs seeds, singly or many on several threads.

use std::fmt::Write as _;
use std::ops::{ControlFlow, Range};

use petrel_proto::wire::Frame;

use super::options::Options;
use super::report::Report;
use super::world::World;
use crate::seeds::{self, Failure, Progress, Summary};
use crate::trace::Trace;
use crate::{multicast_world, nexus};

/// Number of seeds per additional multicast world.
const SEEDS_PER_MULTICAST_WORLD: u64 = 8;

/// One seed in this number runs a nexus world, which costs a quarter of a world of endpoints.
const SEEDS_PER_NEXUS: u64 = 2;

/// Runs the world of a seed, for every second seed also a [nexus](crate::nexus) world, and for every eighth
/// seed also a [multicast](crate::multicast_world) world, and checks all rules.
///
/// # Errors
/// The first broken rule. A panic counts as one.
pub fn run_seed(seed: u64, options: &Options) -> Result<Report, Failure> {
    run_seed_traced(seed, options, Trace::off())
}

/// Like [`run_seed`], with a trace that describes every frame. Add a sink ([`Trace::with_sink`]) to the
/// trace to see the lines.
///
/// # Errors
/// Like [`run_seed`].
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
        let has_multicast_world =
            !options.has_everything && seed.is_multiple_of(SEEDS_PER_MULTICAST_WORLD);
        let multicast_world = if has_multicast_world {
            multicast_world::run_world(seed)?
        } else {
            multicast_world::Report::default()
        };
        let report = World::new(seed, options, trace)?.run(seed)?;
        let digest =
            report.digest ^ nexus.digest.rotate_left(1) ^ multicast_world.digest.rotate_left(2);
        Ok(Report { nexus, multicast_world, digest, ..report })
    })
}

/// Runs the world of a script's bytes: of endpoints alone, with a seed in the first two.
///
/// # Errors
/// Like [`run_seed`]. A replay prints the script.
pub fn run_script(script: &[u8]) -> Result<Report, Failure> {
    let [low, high, rest @ ..] = script else { return run_script(&[0; 2]) };
    let seed = u64::from(u16::from_le_bytes([*low, *high]));
    let options = Options { script: Some(rest.to_vec()), ..Options::default() };
    seeds::run_one(seed, "a script with", || World::new(seed, &options, Trace::off())?.run(seed))
}

pub(crate) fn describe(frame: &[u8], line: &mut String) {
    // Writing to a string cannot fail.
    let _ = match Frame::parse(frame) {
        Ok(frame) => write!(line, "{frame}"),
        Err(error) => write!(line, "{error}"),
    };
}

/// Runs seeds on `jobs` threads (minimum 1). `progress` is called after every seed, and may stop the run.
pub fn run_seeds(
    seeds: Range<u64>,
    jobs: usize,
    options: &Options,
    progress: impl Fn(Progress) -> ControlFlow<()> + Sync,
) -> Summary {
    let run = |seed| run_seed(seed, options).map(|report| report.iter().collect::<Vec<_>>());
    seeds::run_many(seeds, jobs, options.keep_going, || run, progress)
}
