//! The settings of a run.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChaosOptions {
    /// Time after which no further phase begins; the first phase always runs.
    pub duration: Duration,
    /// The seed of all phases: settings, clients and faults. It does not determine their exact timing.
    pub seed: u64,
    /// The number of the first phase.
    pub first_phase: u64,
    /// The fault window of a phase.
    pub phase_time: Duration,
    /// The directory of the replicas' files. The files of a violation are kept.
    pub directory: PathBuf,
    /// Whether the run continues after a violation.
    pub keeps_going: bool,
}

impl ChaosOptions {
    /// The settings of a short run with this seed.
    pub fn new(seed: u64) -> Self {
        Self {
            duration: Duration::from_secs(60),
            seed,
            first_phase: 0,
            phase_time: Duration::from_secs(40),
            directory: std::env::temp_dir().join(format!("petrel-kv-chaos-{seed}")),
            keeps_going: false,
        }
    }
}
