//! What can be set about a client.

use std::time::Duration;

use petrel::client::{ClientConfig, Judge};
use petrel::overload::{BackoffConfig, RetryBudgetConfig};

use super::judge::judge;

/// What can be set about a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KvClientConfig {
    /// How long an operation may take, with all its attempts: 10 s, several elections.
    /// [`KvClient::within`](super::KvClient::within) sets it for single operations.
    pub timeout: Duration,
    /// How long an attempt may take before the operation is tried elsewhere: 2 s. A leader that is cut off
    /// from the others steps down earlier than that, and one that hangs is noticed later. Each further attempt of
    /// the operation has twice as long.
    pub attempt_timeout: Duration,
    /// Pauses while no replica is known to lead, each after all members were asked: 1 ms to 100 ms. An election takes
    /// some hundreds of milliseconds; an operation that pauses goes on at once when another one has found the leader.
    pub backoff: BackoffConfig,
    /// Pauses between attempts to connect to a member: 10 ms to 1 s.
    pub connect_backoff: BackoffConfig,
    /// How often the cluster is asked who the members are: every 10 s.
    pub refresh: Duration,
}

impl Default for KvClientConfig {
    fn default() -> Self {
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
        }
    }
}

impl KvClientConfig {
    /// The calls below. Only their time ends them: the cluster is the one place where the answer is, and pauses bound
    /// what attempts add to its load.
    pub(super) fn calls(&self) -> ClientConfig {
        let mut config = ClientConfig::default();
        config.timeout = self.timeout;
        config.attempts_max = u32::MAX;
        config.retry_backoff = self.backoff;
        config.connect_backoff = self.connect_backoff;
        let always =
            RetryBudgetConfig { per_thousand: 0, reserve_per_s: u32::MAX, saved_max: u32::MAX };
        config.retry_budget = always;
        // The leader has queues of its own for what it proposes.
        config.concurrency = None;
        config.judge = Some(Judge::new(judge));
        config
    }
}
