//! The settings of a client.

use std::time::Duration;

use petrel::client::{ClientConfig, Judge};
use petrel::overload::{BackoffConfig, RetryBudgetConfig};

use super::judge::judge;

/// The settings of a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KvClientConfig {
    /// Timeout of an operation, with all its attempts: 10 s, several elections.
    /// [`KvClient::within`](super::KvClient::within) sets the timeout of single operations.
    pub timeout: Duration,
    /// Timeout of an attempt, after which the operation tries another replica: 2 s. An isolated leader steps down
    /// earlier, and a hanging leader is noticed later. Every further attempt of the operation has twice the time.
    pub attempt_timeout: Duration,
    /// Pauses while no leader is known, each after a round of all members: 1 ms to 100 ms. An election takes some
    /// hundreds of milliseconds. A pausing operation continues at once when another operation finds the leader.
    pub backoff: BackoffConfig,
    /// Pauses between attempts to connect to a member: 10 ms to 1 s.
    pub connect_backoff: BackoffConfig,
    /// Interval at which the client asks for the members: 10 s.
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
    /// The settings of the client below. Only their deadline ends calls: no other service has the answer, and pauses
    /// bound the load of attempts.
    pub(super) fn calls(&self) -> ClientConfig {
        let mut config = ClientConfig::default();
        config.timeout = self.timeout;
        config.attempts_max = u32::MAX;
        config.attempt_timeout = Some(self.attempt_timeout);
        config.retry_backoff = self.backoff;
        config.connect_backoff = self.connect_backoff;
        let always =
            RetryBudgetConfig { per_thousand: 0, reserve_per_s: u32::MAX, saved_max: u32::MAX };
        config.retry_budget = always;
        config.judge = Some(Judge::new(judge));
        config
    }
}
