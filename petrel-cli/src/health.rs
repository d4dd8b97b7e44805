//! `petrel health`: whether a server can serve, as an exit code for monitoring.

use petrel::endpoint::{AllowedTransports, HEALTH_METHOD, Health, IdlePolicy};
use petrel_command::Outcome;
use petrel_command::client::{Client, ClientConfig};
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_proto::limits::MESSAGE_BYTES_DEFAULT;
use serde::Serialize;

use crate::cli::HealthArgs;

#[derive(Serialize)]
struct Answer {
    health: &'static str,
}

/// Asks once, and prints the server's answer.
pub(crate) fn run(args: &HealthArgs, output: Output) -> Result<Outcome, Failure> {
    let config = ClientConfig {
        endpoint: args.endpoint,
        transports: AllowedTransports::ALL,
        in_flight: 1,
        timeout: args.timeout,
        idle: IdlePolicy::default(),
        message_bytes_max: MESSAGE_BYTES_DEFAULT,
    };
    let mut client = Client::<()>::connect(&args.address, &config)?;
    let session = client.sessions[0];
    let of = args.method.map_or(Vec::new(), |method| method.0.to_le_bytes().to_vec());
    let answer = client.endpoint.call(session, HEALTH_METHOD, &of).timeout(args.timeout).wait()?;
    let health = match answer[..] {
        [code] => Health::from_code(code),
        _ => None,
    };
    let health = health.ok_or_else(|| Failure::because("the server's answer is no health"))?;
    output.record(&Answer { health: name(health) })?;
    output.line(word(health))?;
    Ok(if health == Health::Serving { Outcome::Success } else { Outcome::Failure })
}

pub(crate) fn word(health: Health) -> &'static str {
    match health {
        Health::Serving => "serving",
        Health::NotServing => "not serving",
        Health::Unknown => "unknown: the server has no such method",
    }
}

/// Returns the name that `grpc.health.v1` uses.
fn name(health: Health) -> &'static str {
    match health {
        Health::Serving => "SERVING",
        Health::NotServing => "NOT_SERVING",
        Health::Unknown => "SERVICE_UNKNOWN",
    }
}
