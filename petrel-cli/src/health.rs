//! `petrel health`: whether a server can serve, as an exit code for monitoring.

use petrel::endpoint::{AllowedTransports, HEALTH_METHOD, Health};
use petrel_command::Outcome;
use petrel_command::client::{Client, ClientConfig};
use petrel_command::failure::Failure;
use petrel_command::output::Output;

use crate::cli::HealthArgs;

/// Asks once, and prints the server's answer.
pub(crate) fn run(args: &HealthArgs, output: Output) -> Result<Outcome, Failure> {
    let config = ClientConfig::new(args.endpoint, AllowedTransports::ALL, args.timeout);
    let mut client = Client::<()>::connect(&args.address, &config)?;
    let session = client.sessions[0];
    let of = args.method.map_or(Vec::new(), |method| method.0.to_le_bytes().to_vec());
    let answer = client.endpoint.call(session, HEALTH_METHOD, &of).timeout(args.timeout).wait()?;
    let health = match answer[..] {
        [code] => Health::from_code(code),
        _ => None,
    };
    let health = health.ok_or_else(|| Failure::because("the server's answer is no health"))?;
    output.record(&serde_json::json!({ "health": name(health) }))?;
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
