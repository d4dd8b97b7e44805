//! The production nexus in virtual time: whole worlds of control planes from one seed, and what must hold in each.
//!
//! Each process of a world has a nexus as it ships (`petrel::nexus`): reactor, timers, tables and queues. Below it,
//! `petrel::nexus::net::Network` is a simulated one: connections that hang, break or fall silent, short reads and
//! writes, full buffers, processes that are killed, hosts without power, threads that stand still, and descriptors that
//! run out. Above it, endpoints ask for links, sessions and groups; beside them are strangers who break the protocol,
//! flood or fall silent. Each seed turns about half of all this off. Checked are, by the specification
//! (`docs/wire-protocol.md` §8) and the public documentation,
//!
//! - **answers**: whatever an endpoint asks for is answered once, within the steps that others may take, and nothing
//!   is said of a link that is not up;
//! - **life**: a peer is called dead only if no byte of it has come for three of its heartbeats, be the nexus's own thread
//!   late or not; one that is dead or cut off is called dead within a bound; signs of life go out in time;
//! - **agreement**: in the end both sides hold the same sessions and links;
//! - **counters**: they are the number of what was told and done;
//! - **service**: where strangers alone go wrong, and there is room, honest processes get what they ask for;
//! - **memory**: what waits to be sent, partial messages and connections stay below their limits;
//! - **nothing is left**: all tables agree with each other at all times, and are empty when their causes have ended:
//!   connections, links, early links, proposals, tickets, exchanges, requests, shares and deadlines.
//!
//! ```
//! let report = petrel_sim::nexus::run_seed(7)?;
//! assert!(report.turns > 0);
//! assert_eq!(petrel_sim::nexus::run_seed(7)?.digest, report.digest);
//! # Ok::<(), petrel_sim::seeds::Failure>(())
//! ```

mod actor;
mod deeds;
mod end;
mod net;
mod report;
mod rules;
mod scenario;
mod stranger;
mod world;

use std::ops::Range;

pub use report::Report;

use crate::seeds::{self, Failure, Progress, Summary};
use crate::trace::Trace;
use world::World;

/// Runs the world of a seed and checks everything.
///
/// # Errors
/// The first rule that was broken. A panic counts as one.
pub fn run_seed(seed: u64) -> Result<Report, Failure> {
    run_seed_traced(seed, Trace::off())
}

/// The same, with a trace: a line for each turn, message and deed.
///
/// # Errors
/// As [`run_seed`].
pub fn run_seed_traced(seed: u64, trace: Trace) -> Result<Report, Failure> {
    seeds::run_one(seed, "petrel sim", || run_world(seed, trace).0)
}

/// The same for those that report failures themselves and have more to write to the trace.
pub(crate) fn run_world(seed: u64, trace: Trace) -> (Result<Report, String>, Trace) {
    let mut world = World::new(seed, trace);
    let result = world.run();
    (result.map_err(|violation| format!("nexus world: {violation}")), world.into_trace())
}

/// Runs seeds on `jobs` threads, at least one. `progress` is told after each.
pub fn run_seeds(
    seeds: Range<u64>,
    jobs: usize,
    keeps_going: bool,
    progress: impl Fn(Progress) + Sync,
) -> Summary {
    let run = |seed| run_seed(seed).map(|report| report.iter().collect::<Vec<_>>());
    seeds::run_many(seeds, jobs, keeps_going, || run, progress)
}
