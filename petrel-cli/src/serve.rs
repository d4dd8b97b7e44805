//! `petrel serve`: a server for `ping`, `call`, `bench` and first experiments.

use std::net::SocketAddr;
use std::time::Duration;

use comfy_table::Cell;
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::interrupt::Interrupt;
use petrel_command::output::Output;
use petrel_command::server::{Ended, Server, ServerConfig};
use petrel_command::units::{exact_duration, format_bytes};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::cli::ServeArgs;

/// Interval of the check whether the server's threads still run.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The line that tells scripts the address.
#[derive(Serialize)]
struct Ready {
    event: &'static str,
    address: SocketAddr,
    pid: u32,
    endpoints: u16,
    transports: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<String>,
}

/// The last line.
#[derive(Serialize)]
struct Stopped {
    event: &'static str,
    /// Sessions that clients had not left in time.
    sessions_cut: usize,
    endpoints: Vec<Box<RawValue>>,
}

/// Serves until interrupted, then finishes the outstanding calls, within a time limit.
pub(crate) fn run(args: &ServeArgs, output: Output) -> Result<Outcome, Failure> {
    // Installed before any thread starts: this thread alone must receive the signals.
    let interrupt = Interrupt::install()?;
    let config = config(args);
    let server = Server::start(&config)?;
    announce(&config, &server, output)?;
    until_interrupted(interrupt, || server.is_healthy());
    let ended = server.drain(args.drain)?;
    report_cut(&ended, args.drain, output)?;
    print_totals(&ended, output)?;
    Ok(Outcome::Success)
}

/// Waits for an interrupt, or for the end of a thread of the server. From then on a second signal ends the process at once.
pub(crate) fn until_interrupted(interrupt: Interrupt, is_healthy: impl Fn() -> bool) {
    while !interrupt.wait_for(CHECK_INTERVAL) && is_healthy() {}
}

fn config(args: &ServeArgs) -> ServerConfig {
    ServerConfig {
        insecure: args.listen.insecure,
        endpoints: args.endpoints,
        transports: args.listen.transport.allowed(),
        idle: args.idle.policy(),
        mtu: args.mtu,
        message_bytes_max: args.message_max,
        region_bytes: args.region.map(|bytes| bytes as u64),
        ..ServerConfig::at(args.listen.address)
    }
}

fn announce(config: &ServerConfig, server: &Server, output: Output) -> Result<(), Failure> {
    let (address, region) = (server.address(), server.region_key().map(|key| key.to_string()));
    let allowed = config.transports;
    let media = [("udp", allowed.udp), ("shm", allowed.shm), ("stream", allowed.stream)];
    let transports: Vec<_> =
        media.into_iter().filter_map(|(name, is_allowed)| is_allowed.then_some(name)).collect();
    let count = config.endpoints;
    let endpoints = if count == 1 { "one endpoint" } else { &format!("{count} endpoints") };
    output.line(format!(
        "Serving on {address} with {endpoints}, over {}. Try `petrel ping {address}`; stop with Ctrl-C.",
        transports.join(", ")
    ))?;
    if let Some(key) = &region {
        output.line(format!("Region: {key}"))?;
    }
    let pid = std::process::id();
    let event = "ready";
    Ok(output.record(&Ready { event, address, pid, endpoints: count, transports, region })?)
}

fn sessions_cut(ended: &[Ended]) -> usize {
    ended.iter().map(|ended| ended.sessions_cut).sum()
}

fn report_cut(ended: &[Ended], limit: Duration, output: Output) -> Result<(), Failure> {
    let sessions = match sessions_cut(ended) {
        0 => return Ok(()),
        1 => "1 session was".to_owned(),
        count => format!("{count} sessions were"),
    };
    let limit = exact_duration(limit);
    Ok(output
        .line(format!("\n{sessions} still there after {limit}; calls on their way failed."))?)
}

fn print_totals(ended: &[Ended], output: Output) -> Result<(), Failure> {
    let stats = ended.iter().map(|ended| RawValue::from_string(ended.stats.to_json()));
    let endpoints = stats.filter_map(Result::ok).collect();
    let sessions_cut = sessions_cut(ended);
    output.record(&Stopped { event: "stopped", sessions_cut, endpoints })?;
    let mut table = output.table(&["endpoint", "requests", "received", "sent", "sent again"]);
    for Ended { stats, .. } in ended {
        table.add_row([
            Cell::new(stats.endpoint.0),
            Cell::new(stats.protocol.requests_received),
            Cell::new(format_bytes(stats.transport.rx_bytes)),
            Cell::new(format_bytes(stats.transport.tx_bytes)),
            Cell::new(format!("{} packets", stats.protocol.packets_retransmitted)),
        ]);
    }
    Ok(output.line(format!("\n{table}"))?)
}
