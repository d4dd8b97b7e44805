//! Faults among real processes.
//!
//! Replicas are processes in network namespaces, joined by a bridge; clients are on the bridge. Replicas are killed,
//! stopped and replaced, links go down, and nftables rules cut off and drop packets. Then all faults end, and the
//! cluster has to serve again and to recover. The answers to clients are checked. `docs/kv-correctness.md` lists
//! the parameters and the rules.
//!
//! | module | contents |
//! | --- | --- |
//! | `namespaces`, `network` | the namespaces, the bridge between them, and its rules |
//! | `replica`, `cluster` | the replicas' processes, from inside and from outside |
//! | `load`, `recorder` | clients, and the record of their operations |
//! | `leases`, `watches` | users of leases and of a watch |
//! | `nemesis` | faults |
//! | `phase`, `recovery`, `report` | from an empty cluster to the last check, and the results |

mod cluster;
mod leases;
mod load;
mod namespaces;
mod nemesis;
mod network;
mod options;
mod phase;
mod recorder;
mod recovery;
mod replica;
mod report;
mod watches;

use std::time::{Duration, Instant};

pub use options::ChaosOptions;
pub use replica::serve as serve_chaos_replica;
pub use report::{ChaosReport, ChaosSummary};

use network::Network;
use phase::Phase;

/// The shortest remaining time for another phase.
const PHASE_MIN: Duration = Duration::from_secs(5);

/// The outcome of a run.
#[derive(Debug)]
pub enum ChaosOutcome {
    /// The run is not possible on this machine, with the reason.
    Skipped(String),
    /// A child process with the same arguments has done the run and printed everything. True if all rules were kept.
    DoneByChild(bool),
    /// The run is done.
    Done(ChaosSummary),
}

/// The reason why a run cannot continue. The error says nothing about the store.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ChaosError(String);

impl From<String> for ChaosError {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl From<petrel_netns::Error> for ChaosError {
    fn from(error: petrel_netns::Error) -> Self {
        Self(error.to_string())
    }
}

/// Runs phases until the time is over, and calls `tell` after each.
///
/// The process starts its program again with equal arguments, in new namespaces, and the child calls the function, too.
/// The child starts the program with `replica` and further arguments, for [`serve_chaos_replica`].
///
/// # Errors
/// [`ChaosError`] if a prerequisite of the run does not work.
pub fn run_chaos(
    options: &ChaosOptions,
    replica: &[&str],
    mut tell: impl FnMut(&ChaosReport),
) -> Result<ChaosOutcome, ChaosError> {
    if !namespaces::is_inside() {
        return Ok(namespaces::enter()?);
    }
    namespaces::end_with_parent(&options.directory);
    let begin = Instant::now();
    let network = Network::make(network::HOSTS)?;
    let mut summary = ChaosSummary::default();
    for number in options.first_phase.. {
        let report = Phase::draw(options, number).run(&network, replica, &options.directory)?;
        tell(&report);
        summary.add(&report);
        let is_over = begin.elapsed() + PHASE_MIN > options.duration;
        if is_over || (!report.is_fine() && !options.keeps_going) {
            break;
        }
    }
    summary.seconds = begin.elapsed().as_secs_f64();
    // Fails if the directory still has the files of a violation.
    let _ = std::fs::remove_dir(&options.directory);
    Ok(ChaosOutcome::Done(summary))
}
