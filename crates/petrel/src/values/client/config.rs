//! Settings of a client.

use std::time::Duration;

use super::{Balance, Judge};
use crate::overload::{BackoffConfig, ConcurrencyLimitConfig, RetryBudgetConfig};

/// Settings of a client.
///
/// ```
/// use std::time::Duration;
///
/// use petrel::client::ClientConfig;
///
/// # let server = petrel::Server::bind("127.0.0.1:0").serve(|_| (), |endpoint| {
/// #     endpoint.on(1, |_, cx, request| request.reply(cx, b"value"));
/// # });
/// # let server = server.start()?;
/// let mut config = ClientConfig::default();
/// config.timeout = Duration::from_secs(2);
/// config.attempts_max = 2;
/// let client = petrel::Client::builder().config(config).connect_wait(server.local_addr())?;
/// assert_eq!(client.call(1, "key").wait()?, b"value");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientConfig {
    /// Timeout of a call with all attempts, if the call's options have none: 10 s.
    pub timeout: Duration,
    /// Attempts of one call, including the first and hedges; at least 1, and 4 by default.
    pub attempts_max: u32,
    /// Timeout of an attempt of an [idempotent](crate::client::Call::idempotent) call. The client then retries the call, at
    /// a second server if possible, and the next attempt has twice the time. `None`, the default: an attempt may take all
    /// of the call's time. Only this timeout notices a server that hangs while the process lives.
    pub attempt_timeout: Option<Duration>,
    /// Pauses before a retry: 1 ms at first, twice as long each time, 200 ms at most.
    pub retry_backoff: BackoffConfig,
    /// Retries and hedges allowed per successful call: a tenth, plus ten per second.
    pub retry_budget: RetryBudgetConfig,
    /// Pauses before reopening a session: 1 ms at first, a quarter longer each time, 2 s at most.
    pub connect_backoff: BackoffConfig,
    /// Limit of outstanding calls per server, adapted to refusals: none until the server refuses a call for lack of a resource. `None`
    /// for no limit at all: the session's slots bound the server's load, and further calls wait.
    pub concurrency: Option<ConcurrencyLimitConfig>,
    /// The name of the wanted [service](crate::Server::service). A server with another name, or none, gets no calls: an address may have
    /// passed to another service. `None` by default: any server is called.
    pub service: Option<String>,
    /// How a server is chosen; [`Balance::LeastBusy`] by default.
    pub balance: Balance,
    /// Interprets responses, for services whose servers may redirect: by default the caller gets every response.
    pub judge: Option<Judge>,
}

impl Default for ClientConfig {
    /// Ten seconds and four attempts; retries and reconnects start after a millisecond. Reconnects come at most two
    /// seconds apart, each pause a quarter longer. After an outage, a server is thus found again within a quarter of
    /// the outage's length.
    fn default() -> Self {
        let pauses = |first_ms, max_ms, growth_percent| BackoffConfig {
            first: Duration::from_millis(first_ms),
            max: Duration::from_millis(max_ms),
            growth_percent,
        };
        Self {
            timeout: Duration::from_secs(10),
            attempts_max: 4,
            attempt_timeout: None,
            retry_backoff: pauses(1, 200, 200),
            retry_budget: RetryBudgetConfig::default(),
            connect_backoff: pauses(1, 2_000, 125),
            concurrency: Some(ConcurrencyLimitConfig::default()),
            service: None,
            balance: Balance::default(),
            judge: None,
        }
    }
}
