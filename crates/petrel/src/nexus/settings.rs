//! Settings of a nexus, fixed while it runs.

use std::time::Duration;

use crate::control::AllowedTransports;

/// The settings that the reactor follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) insecure: bool,
    pub(super) transports: AllowedTransports,
    pub(super) heartbeat: Duration,
    /// Time for each step of another process.
    pub(super) step_timeout: Duration,
    pub(super) incarnation: u64,
}
