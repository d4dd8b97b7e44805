//! Endpoints that take turns on one thread.

use petrel::endpoint::{EndpointConfig, IdlePolicy};
use petrel_command::args::BenchTransport;

/// Returns the configuration of a measured endpoint: never asleep.
pub(crate) fn polling(transport: BenchTransport, accepts: bool) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.transports = transport.only();
    config.idle = IdlePolicy::Poll;
    config.sessions.accept = accepts;
    config
}
