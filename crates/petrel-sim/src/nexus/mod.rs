//! The production nexus in virtual time: worlds of control planes drawn from a seed, and the rules for all of them.
//!
//! Every process of a world has a production nexus (`petrel::nexus`): reactor, timers, tables and queues.
//! Below it, `petrel::nexus::net::Network` is simulated: connections that hang, break or fall silent, short
//! reads and writes, full buffers, killed processes, hosts without power, stopped threads, and exhausted
//! descriptors. Above it, endpoints request links, sessions and groups. Foreign peers break the protocol,
//! flood or fall silent. Every seed disables about half of these events. The checker verifies, by the
//! specification (`docs/wire-protocol.md` §8) and the public documentation,
//!
//! - **answers**: every request of an endpoint is answered once, within the time limits of the steps, and
//!   no message names a link that is not up;
//! - **liveness**: a server is declared dead only after three of its heartbeats without a byte, and a client
//!   after 144, whether or not the nexus's own thread is late; a dead or unreachable peer is declared dead
//!   within a bound, sooner if an endpoint has raised a doubt; PINGs go out in time;
//! - **agreement**: at the end both sides have the same sessions and links;
//! - **counters**: exact counts of messages and actions;
//! - **service**: if only foreign peers misbehave, and there is room, honest processes get everything they
//!   request;
//! - **memory**: unsent bytes, partial messages and connections stay below their limits;
//! - **nothing is left**: all tables are consistent at all times, and empty when their causes have ended:
//!   connections, links, early links, proposals, tickets, exchanges, requests, shares and deadlines.
//!
//! ```
//! let report = petrel_sim::nexus::run_seed(7)?;
//! assert!(report.turns > 0);
//! assert_eq!(petrel_sim::nexus::run_seed(7)?.digest, report.digest);
//! # Ok::<(), petrel_sim::seeds::Failure>(())
//! ```

mod actor;
mod end;
mod events;
mod foreign_peer;
mod link;
mod report;
mod rules;
mod scenario;
mod world;

use std::ops::{ControlFlow, Range};

pub use report::Report;

use crate::seeds::{self, Failure, Progress, Summary};
use crate::trace::Trace;
use world::World;

/// Runs the world of a seed and checks all rules.
///
/// # Errors
/// The first broken rule. A panic counts as one.
pub fn run_seed(seed: u64) -> Result<Report, Failure> {
    run_seed_traced(seed, Trace::off())
}

/// Like [`run_seed`], with a trace: a line for each turn, message and action.
///
/// # Errors
/// Like [`run_seed`].
pub fn run_seed_traced(seed: u64, trace: Trace) -> Result<Report, Failure> {
    seeds::run_one(seed, "petrel sim", || run_world(seed, trace).0)
}

/// Like [`run_seed_traced`], for callers that report failures themselves and append to the trace.
pub(crate) fn run_world(seed: u64, trace: Trace) -> (Result<Report, String>, Trace) {
    let mut world = World::new(seed, trace);
    let result = world.run();
    (result.map_err(|violation| format!("nexus world: {violation}")), world.into_trace())
}

/// Runs seeds on `jobs` threads (minimum 1). `progress` is called after every seed, and may stop the run.
pub fn run_seeds(
    seeds: Range<u64>,
    jobs: usize,
    keeps_going: bool,
    progress: impl Fn(Progress) -> ControlFlow<()> + Sync,
) -> Summary {
    let run = |seed| run_seed(seed).map(|report| report.iter().collect::<Vec<_>>());
    seeds::run_many(seeds, jobs, keeps_going, || run, progress)
}
