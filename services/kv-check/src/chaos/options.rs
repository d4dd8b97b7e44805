//! What can be set about a run.

use std::path::PathBuf;
use std::time::Duration;

/// What can be set about a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChaosOptions {
    /// Phases begin until this is over: one at least.
    pub duration: Duration,
    /// All phases are drawn from it: settings, clients and faults. When exactly they meet is not in its hands.
    pub seed: u64,
    /// Number of the phase with which the run begins.
    pub first_phase: u64,
    /// How long things go wrong in a phase.
    pub phase_time: Duration,
    /// Where replicas have their files. What belongs to a violation is kept.
    pub directory: PathBuf,
    /// Whether the run goes on after a violation.
    pub keeps_going: bool,
}

impl ChaosOptions {
    /// A short run with this seed.
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
