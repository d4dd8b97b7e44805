//! Many client processes of one server: the cost of idle ones, and of a connection with its first call.
//!
//! A simulated client process is a nexus and a background; all are in one process of the system. A server sees no difference, and a small
//! machine has room for a thousand.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use petrel::client::Background;
use petrel::endpoint::EndpointConfig;
use petrel::nexus::NexusBuilder;
use petrel::{Client, Nexus};
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_command::output::{Column, Output};
use petrel_command::units::format_ns;
use serde::{Deserialize, Serialize};

use super::args::{DefaultsArgs, DefaultsClientsArgs};
use super::client::{CALL_BYTES, connect, cpu_ns, histogram, server_cpu_ns};
use super::{Case, ECHO, Ready, Way, start_server};
use crate::measure::process::{Process, end_with_parent, parse};
use crate::measure::statistics::median;
use petrel_command::args::BenchTransport;

/// Connections of a round, one after another.
const CONNECTS: usize = 200;

/// Time of the first signs of life on a connection, which come sooner than the later signs (`docs/wire-protocol.md` §8.6).
const SETTLE: Duration = Duration::from_secs(23);

/// Figures of many processes, as `--json` prints them: medians of the rounds.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    bench: &'static str,
    transport: &'static str,
    processes: usize,
    /// CPU time of the server, of a second without calls.
    idle_server_share: f64,
    /// CPU time of a client process, of a second without calls.
    idle_client_share: f64,
    connect_p50_ns: f64,
    connect_p99_ns: f64,
    /// CPU time of each process for a connection and its first call.
    connect_client_cpu_ns: f64,
    connect_server_cpu_ns: f64,
    /// Connections whose first response was compared.
    checked: u64,
    command: String,
}

/// The figures of one round.
struct Taken {
    idle_server: f64,
    idle_client: f64,
    p50_ns: u64,
    p99_ns: u64,
    client_cpu_ns: u64,
    server_cpu_ns: u64,
}

#[derive(Deserialize, Serialize)]
struct Cpu {
    cpu_ns: u64,
}

/// Measures an idle server with many client processes, and connections to a server.
pub(super) fn measure(
    args: &DefaultsArgs,
    transport: BenchTransport,
    command: String,
    output: Output,
) -> Result<Row, Failure> {
    let round = |_| {
        let (_server, address) = start_server(Case { way: Way::Thread, server_threads: 1 })?;
        let server = (address, transport);
        let control = connect(server)?;
        let connects = measure_connects(server, &control)?;
        let idle = measure_idle(server, &control, args.processes, args.idle)?;
        Ok::<_, Failure>(Taken { idle_server: idle.0, idle_client: idle.1, ..connects })
    };
    let taken = (0..args.rounds).map(round).collect::<Result<Vec<_>, _>>()?;
    let median_of = |field: fn(&Taken) -> f64| median(taken.iter().map(field)).unwrap_or(f64::NAN);
    let row = Row {
        bench: "processes",
        transport: transport.name(),
        processes: args.processes,
        idle_server_share: median_of(|taken| taken.idle_server),
        idle_client_share: median_of(|taken| taken.idle_client),
        connect_p50_ns: median_of(|taken| taken.p50_ns as f64),
        connect_p99_ns: median_of(|taken| taken.p99_ns as f64),
        connect_client_cpu_ns: median_of(|taken| taken.client_cpu_ns as f64),
        connect_server_cpu_ns: median_of(|taken| taken.server_cpu_ns as f64),
        checked: u64::from(args.rounds) * CONNECTS as u64,
        command,
    };
    output.record(&row)?;
    Ok(row)
}

/// Starts a client process's threads, with a control plane, connects, and makes the first call.
pub fn connect_anew(
    (server, transport): (SocketAddr, BenchTransport),
    nexus: NexusBuilder,
) -> Result<Client, Failure> {
    let mut endpoint = EndpointConfig::default();
    endpoint.transports = transport.only();
    let background = Background::builder().nexus(nexus).endpoint(endpoint).start();
    let background = background.map_err(Failure::because)?;
    let client = Client::builder().background(&background).connect_wait(server);
    let client = client.map_err(Failure::because)?;
    let request = [0x5A; CALL_BYTES];
    let response = client.call(ECHO, request).wait().map_err(Failure::because)?;
    if request != response[..] {
        return Err(Failure::because("a response differs from the request"));
    }
    Ok(client)
}

fn measure_connects(
    server: (SocketAddr, BenchTransport),
    control: &Client,
) -> Result<Taken, Failure> {
    let mut latencies = histogram();
    let (client_before, server_before) = (cpu_ns(), server_cpu_ns(control)?);
    for _ in 0..CONNECTS {
        let begun = Instant::now();
        let client = connect_anew(server, credentials::apply(Nexus::builder(), false))?;
        latencies.saturating_record(begun.elapsed().as_nanos() as u64);
        drop(client);
    }
    let each = |before: u64, after: u64| (after - before) / CONNECTS as u64;
    Ok(Taken {
        idle_server: 0.0,
        idle_client: 0.0,
        p50_ns: latencies.value_at_quantile(0.5),
        p99_ns: latencies.value_at_quantile(0.99),
        client_cpu_ns: each(client_before, cpu_ns()),
        server_cpu_ns: each(server_before, server_cpu_ns(control)?),
    })
}

/// Returns the shares of a CPU that the server, and each of many client processes, need without calls.
fn measure_idle(
    (address, transport): (SocketAddr, BenchTransport),
    control: &Client,
    processes: usize,
    time: Duration,
) -> Result<(f64, f64), Failure> {
    let (address, count) = (address.to_string(), processes.to_string());
    let time_ms = time.as_millis().to_string();
    let mut clients = Process::start(&[
        "bench",
        "defaults-clients",
        "--json",
        "--server",
        &address,
        "--transport",
        transport.name(),
        "--processes",
        &count,
        "--time-ms",
        &time_ms,
    ])?;
    let lines = clients.lines()?;
    let Ready { .. } = parse(&lines.next_line()?)?;
    let (begun, before) = (Instant::now(), server_cpu_ns(control)?);
    let Cpu { cpu_ns: of_clients } = parse(&lines.next_line()?)?;
    let of_server = server_cpu_ns(control)? - before;
    let share = |cpu_ns: u64| cpu_ns as f64 / begun.elapsed().as_nanos() as f64;
    Ok((share(of_server), share(of_clients) / processes as f64))
}

/// Runs many client processes: they connect, make a call, and stay idle until they are killed.
pub(crate) fn run(args: &DefaultsClientsArgs, output: Output) -> Result<(), Failure> {
    end_with_parent()?;
    let server = (args.server, args.transport);
    let nexus = || credentials::apply(Nexus::builder(), false);
    let connected = (0..args.processes).map(|_| connect_anew(server, nexus()));
    let _clients = connected.collect::<Result<Vec<_>, _>>()?;
    thread::sleep(SETTLE);
    output.record(&Ready { address: args.server })?;
    let before = cpu_ns();
    thread::sleep(Duration::from_millis(args.time_ms));
    output.record(&Cpu { cpu_ns: cpu_ns() - before })?;
    loop {
        thread::park();
    }
}

pub(super) const COLUMNS: [Column<Row>; 8] = [
    ("over", |row| row.transport.to_owned()),
    ("client processes", |row| row.processes.to_string()),
    ("idle server", |row| format!("{:.3} %", 100.0 * row.idle_server_share)),
    ("idle client", |row| format!("{:.4} %", 100.0 * row.idle_client_share)),
    ("connect p50", |row| format_ns(row.connect_p50_ns as u64)),
    ("p99", |row| format_ns(row.connect_p99_ns as u64)),
    ("client CPU", |row| format_ns(row.connect_client_cpu_ns as u64)),
    ("server CPU", |row| format_ns(row.connect_server_cpu_ns as u64)),
];
