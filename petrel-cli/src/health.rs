//! `petrel health`: whether a server can serve, as an exit code, for those who watch over it.

use petrel::client::ClientConfig;
use petrel::client::{Background, Targets};
use petrel::endpoint::EndpointId;
use petrel::endpoint::Health;
use petrel::{Client, Nexus};
use serde::Serialize;

use crate::Outcome;
use crate::cli::HealthArgs;
use crate::failure::Failure;
use crate::output::Output;

#[derive(Serialize)]
struct Answer {
    health: &'static str,
}

/// Asks once, and says what the server says.
pub(crate) fn run(args: &HealthArgs, output: Output) -> Result<Outcome, Failure> {
    let addresses = args.address.resolve()?;
    let mut nexus = Nexus::builder().connect_timeout(args.timeout);
    if addresses.iter().any(|address| !address.ip().to_canonical().is_loopback()) {
        // Who names another host wants to call it.
        nexus = nexus.insecure();
    }
    let background = Background::builder().nexus(nexus).start()?;
    let targets = addresses.into_iter().map(|address| (address, EndpointId(args.endpoint)));
    let mut config = ClientConfig::default();
    // Who watches asks again, and wants to know now.
    config.attempts_max = 1;
    let client = Client::builder()
        .config(config)
        .background(&background)
        .connect_wait(targets.collect::<Targets>())?;
    let method = args.method.map(|method| method.0);
    let health = client.health(method).timeout(args.timeout).wait()?;
    let (word, outcome) = match health {
        Health::Serving => ("serving", Outcome::Success),
        Health::NotServing => ("not serving", Outcome::Failure),
        Health::Unknown => ("unknown: the server has no such method", Outcome::Failure),
    };
    output.record(&Answer { health: name(health) })?;
    output.line(word)?;
    Ok(outcome)
}

/// As `grpc.health.v1` has it.
fn name(health: Health) -> &'static str {
    match health {
        Health::Serving => "SERVING",
        Health::NotServing => "NOT_SERVING",
        Health::Unknown => "SERVICE_UNKNOWN",
    }
}
