//! The errors of experiments.

use petrel_proto::congestion::CongestionConfigError;

use petrel_sim::fabric::{BindError, FabricError};

/// The reason for which an experiment has no result. A wrong answer is an error, too: a figure of a system
/// with wrong answers means nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The network cannot be made.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// An endpoint refuses its settings.
    #[error("an endpoint refuses its settings: {0}")]
    Settings(&'static str),
    /// A congestion control refuses its settings.
    #[error(transparent)]
    Congestion(#[from] CongestionConfigError),
    /// A session could not be opened.
    #[error(transparent)]
    Connect(#[from] petrel::Error),
    /// The parameters contradict each other.
    #[error("{0}")]
    Parameters(String),
    /// A phase did not end.
    #[error("{what} is not over after {virtual_ms} ms of virtual time; seed {seed}")]
    Stuck {
        /// The phase.
        what: String,
        /// The time waited.
        virtual_ms: u64,
        /// The seed, to repeat the run.
        seed: u64,
    },
    /// A rule was broken: a wrong answer, a failed call, or a fault of the control plane.
    #[error("{what}; seed {seed}")]
    Broken {
        /// The observation.
        what: String,
        /// The seed, to repeat the run.
        seed: u64,
    },
}
