//! What can be set about a client.

use std::time::Duration;

use petrel::overload::BackoffConfig;

/// What can be set about a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KvClientConfig {
    /// How long an operation may take, with all its attempts: 10 s, several elections.
    /// [`KvClient::within`](super::KvClient::within) sets it for single operations.
    pub timeout: Duration,
    /// How long one attempt may take before the operation is tried elsewhere: 2 s. A leader that is cut off
    /// from the others steps down earlier than that, and one that hangs is noticed later. Each further attempt of
    /// the operation has twice as long.
    pub attempt_timeout: Duration,
    /// Pauses while nobody knows who leads, each after all members were asked: 1 ms to 100 ms. An election takes
    /// some hundreds of milliseconds; who waits learns at once when another operation has found the leader.
    pub backoff: BackoffConfig,
    /// Pauses between attempts to connect to a member: 10 ms to 1 s.
    pub connect_backoff: BackoffConfig,
    /// How often each member is asked who the members are: every 10 s.
    pub refresh: Duration,
    /// Where the random numbers for the pauses begin.
    pub seed: u64,
}

impl KvClientConfig {
    /// The defaults. Clients that begin with different seeds pause for different times.
    pub fn new(seed: u64) -> Self {
        let backoff = |first, max| BackoffConfig {
            first: Duration::from_millis(first),
            max: Duration::from_millis(max),
            ..BackoffConfig::default()
        };
        Self {
            timeout: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(2),
            backoff: backoff(1, 100),
            connect_backoff: backoff(10, 1_000),
            refresh: Duration::from_secs(10),
            seed,
        }
    }
}
