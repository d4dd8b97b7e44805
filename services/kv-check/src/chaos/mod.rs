//! Chaos among real processes.
//!
//! Replicas are processes in network namespaces of their own, which a bridge joins; clients are on the bridge. Replicas
//! are killed, stopped and replaced, links go down, packets are cut off and lost by nftables. Then all of that ends,
//! the cluster has to serve again and to become whole, and what its clients were told is checked. What is drawn and
//! what is checked stands in `docs/kv-correctness.md`.
//!
//! | module | what it has |
//! | --- | --- |
//! | `way_in`, `network` | the namespaces, the bridge between them, and its rules |
//! | `replica`, `cluster` | the replicas' processes, from inside and from outside |
//! | `load`, `recorder` | clients, and what they did |
//! | `nemesis` | what goes wrong |
//! | `phase`, `whole`, `report` | from an empty cluster to the last check, and what came of it |

mod cluster;
mod load;
mod nemesis;
mod network;
mod options;
mod phase;
mod recorder;
mod replica;
mod report;
mod way_in;
mod whole;

use std::time::{Duration, Instant};

pub use options::ChaosOptions;
pub use replica::serve as serve_chaos_replica;
pub use report::{ChaosReport, ChaosSummary};

use network::Network;
use phase::Phase;

/// The shortest time for which another phase is begun.
const PHASE_MIN: Duration = Duration::from_secs(5);

/// What came of a run.
#[derive(Debug)]
pub enum ChaosOutcome {
    /// It cannot be done here, and why.
    Skipped(String),
    /// It was done by the process that this one started with the same arguments, which has told everything. Whether
    /// it kept all rules.
    Elsewhere(bool),
    /// It was done.
    Done(ChaosSummary),
}

/// Why a run cannot go on. It says nothing of the store.
#[derive(Debug)]
pub struct ChaosError(String);

impl std::fmt::Display for ChaosError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ChaosError {}

impl From<String> for ChaosError {
    fn from(why: String) -> Self {
        Self(why)
    }
}

/// Runs phases until the time is over; `tell` hears of each.
///
/// The process starts itself again with the same arguments, in namespaces of its own, and comes here again; and with
/// `replica` as arguments and some more, which go to [`serve_chaos_replica`].
///
/// # Errors
/// [`ChaosError`] when something the run needs does not work.
pub fn run_chaos(
    options: &ChaosOptions,
    replica: &[&str],
    mut tell: impl FnMut(&ChaosReport),
) -> Result<ChaosOutcome, ChaosError> {
    if !way_in::is_inside() {
        return Ok(way_in::enter()?);
    }
    way_in::end_with_parent(&options.directory);
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
    // Not if something was kept in it.
    let _ = std::fs::remove_dir(&options.directory);
    Ok(ChaosOutcome::Done(summary))
}
