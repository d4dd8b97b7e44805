//! `petrel health`: whether a server can serve, as an exit code for monitoring.

use petrel::client::ClientConfig;
use petrel::endpoint::{AllowedTransports, Health};
use petrel_command::Outcome;
use petrel_command::client::connect_service;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use serde::Serialize;

use crate::cli::HealthArgs;

#[derive(Serialize)]
struct Answer {
    health: &'static str,
}

/// Asks once, and prints the server's answer.
pub(crate) fn run(args: &HealthArgs, output: Output) -> Result<Outcome, Failure> {
    let both = AllowedTransports { udp: true, shm: true };
    let mut config = ClientConfig::default();
    // A monitor asks again later, and needs the answer now.
    (config.timeout, config.attempts_max) = (args.timeout, 1);
    let client = connect_service(&args.address, args.endpoint, both, &config)?;
    let health = client.health(args.method.map(|method| method.0)).wait()?;
    let (word, outcome) = match health {
        Health::Serving => ("serving", Outcome::Success),
        Health::NotServing => ("not serving", Outcome::Failure),
        Health::Unknown => ("unknown: the server has no such method", Outcome::Failure),
    };
    output.record(&Answer { health: name(health) })?;
    output.line(word)?;
    Ok(outcome)
}

/// Returns the name that `grpc.health.v1` uses.
fn name(health: Health) -> &'static str {
    match health {
        Health::Serving => "SERVING",
        Health::NotServing => "NOT_SERVING",
        Health::Unknown => "SERVICE_UNKNOWN",
    }
}
