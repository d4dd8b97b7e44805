//! What can be set about a client.

use std::net::SocketAddr;
use std::time::Duration;

use super::balance::Balance;
use super::judge::Judge;
use crate::control::EndpointId;
use crate::overload::{BackoffConfig, ConcurrencyLimitConfig, RetryBudgetConfig};

/// A server that a client may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Control address of its process.
    pub address: SocketAddr,
    /// The endpoint there.
    pub endpoint: EndpointId,
    /// How much of the load it gets beside others; 1 by default.
    pub weight: u32,
}

impl Target {
    /// The same server, which gets so much of the load beside others.
    ///
    /// # Panics
    /// When it is 0.
    #[must_use]
    pub fn weighing(self, weight: u32) -> Self {
        assert!(weight > 0, "a server without any load is no target");
        Self { weight, ..self }
    }

    /// Whether it is the same server, whatever its weight.
    pub(crate) fn is_server(&self, other: &Self) -> bool {
        (self.address, self.endpoint) == (other.address, other.endpoint)
    }
}

impl From<SocketAddr> for Target {
    /// The process's endpoint 0.
    fn from(address: SocketAddr) -> Self {
        Self { address, endpoint: EndpointId(0), weight: 1 }
    }
}

impl From<(SocketAddr, EndpointId)> for Target {
    fn from((address, endpoint): (SocketAddr, EndpointId)) -> Self {
        Self { address, endpoint, weight: 1 }
    }
}

/// What can be set about a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientConfig {
    /// How long a call may take, with all its attempts, if its options do not say: 10 s.
    pub timeout: Duration,
    /// Attempts of one call, the first and hedges included; at least 1, and 4 by default.
    pub attempts_max: u32,
    /// Pauses before a call is tried again: 1 ms at first, twice as long each time, 200 ms at most.
    pub retry_backoff: BackoffConfig,
    /// How many retries and hedges there may be for the calls that succeed: a tenth, and ten a second besides.
    pub retry_budget: RetryBudgetConfig,
    /// Pauses before a session is opened again: 1 ms at first, a quarter longer each time, 2 s at most.
    pub connect_backoff: BackoffConfig,
    /// How many calls may be outstanding to each server, by what it refuses: from 8, up to 256. `None` for no limit of
    /// this kind: the session's slots bound what the server sees, and further calls wait.
    pub concurrency: Option<ConcurrencyLimitConfig>,
    /// Which server is asked; [`Balance::LeastBusy`] by default.
    pub balance: Balance,
    /// What answers mean, where a server may answer that another has to be asked: by default the caller gets each answer.
    pub judge: Option<Judge>,
}

impl Default for ClientConfig {
    /// Ten seconds and four attempts, retries and connects after a millisecond at first, connects at most two seconds apart and
    /// by a quarter later each time: a server that was away for some time is found again after a quarter of it more at most.
    fn default() -> Self {
        let pauses = |first_ms, max_ms, growth_percent| BackoffConfig {
            first: Duration::from_millis(first_ms),
            max: Duration::from_millis(max_ms),
            growth_percent,
        };
        Self {
            timeout: Duration::from_secs(10),
            attempts_max: 4,
            retry_backoff: pauses(1, 200, 200),
            retry_budget: RetryBudgetConfig::default(),
            connect_backoff: pauses(1, 2_000, 125),
            concurrency: Some(ConcurrencyLimitConfig::default()),
            balance: Balance::default(),
            judge: None,
        }
    }
}
