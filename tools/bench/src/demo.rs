//! `petrel demo`: a first RPC, a large RPC, and a few figures, in one process.
//!
//! Client and server use the same paths as two processes: separate nexuses that agree over TCP, real
//! sockets and real shared memory.

mod args;

use std::time::{Duration, Instant};

use petrel_command::Outcome;
use petrel_command::client::{Client, ClientConfig};
use petrel_command::failure::Failure;
use petrel_command::methods;
use petrel_command::output::Output;
use petrel_command::payload::{Pattern, checksum};
use petrel_command::server::{Server, ServerConfig};
use petrel_command::units::{format_bytes, format_ns};
use serde::Serialize;

pub use self::args::DemoArgs;
use crate::measure::figure::{self, Figure, Quantity};
use crate::measure::measurement::{Beside, Measurement, SessionPlan};
use crate::measure::pairs::Pace;
use crate::measure::test_bed::Cores;
use crate::report::progress_bar;
use crate::report::table::{footer, table};
use petrel_command::args::BenchTransport;

const BOTH: [BenchTransport; 2] = [BenchTransport::Udp, BenchTransport::Shm];

/// Size of the large messages in bytes: the default limit, inclusive.
const LARGE_BYTES: usize = 8 << 20;

const BENCH_TIME: Duration = Duration::from_millis(1_500);

/// Far more than a busy laptop needs for 8 MiB.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A call that the demo prints.
#[derive(Serialize)]
struct Hello {
    demo: &'static str,
    transport: &'static str,
    request: &'static str,
    reply: String,
    elapsed_ns: u64,
}

/// A transferred large request or response.
#[derive(Serialize)]
struct Transfer {
    demo: &'static str,
    transport: &'static str,
    direction: &'static str,
    size_bytes: usize,
    checksum: String,
    verified: bool,
    elapsed_ns: u64,
}

/// Runs the demo, in the order in which a new user would try the features.
pub fn run(args: &DemoArgs, output: Output) -> Result<Outcome, Failure> {
    let server = Server::start(&ServerConfig::at(([127, 0, 0, 1], 0).into()))?;
    let result = show_calls(&server, output);
    server.stop()?;
    let mut outcome = result?;
    if !args.no_bench && outcome == Outcome::Success {
        outcome = show_figures(output)?;
    }
    output.line(WHAT_NEXT)?;
    #[cfg(not(feature = "full"))]
    output.line(HOW_TO_RUN)?;
    Ok(outcome)
}

const WHAT_NEXT: &str = "
Next:
  petrel doctor                          what this host offers, and what to do about the rest
  petrel serve &                         a server in a process of its own
  petrel ping 127.0.0.1 --count 100000   calls to it, every reply compared
  petrel --help                          everything else";

/// Printed by the command that `cargo demo` builds.
#[cfg(not(feature = "full"))]
const HOW_TO_RUN: &str = "
`petrel` is this program: export PATH=$PWD/target/demo:$PATH
With benchmarks, services and the simulator: cargo install --path petrel-cli";

fn show_calls(server: &Server, output: Output) -> Result<Outcome, Failure> {
    output.line("1. A call over UDP, through this host's kernel")?;
    let mut by_udp = connect(server, BenchTransport::Udp)?;
    show_hello(&mut by_udp, output)?;
    output.line(format!("\n2. {} there and back, verified", format_bytes(LARGE_BYTES as u64)))?;
    let mut by_shm = connect(server, BenchTransport::Shm)?;
    let mut verified = true;
    for client in [&mut by_udp, &mut by_shm] {
        verified &= show_transfer(&send(client)?, output)?;
        verified &= show_transfer(&fetch(client)?, output)?;
    }
    Ok(if verified { Outcome::Success } else { Outcome::Failure })
}

fn connect(server: &Server, transport: BenchTransport) -> Result<Client, Failure> {
    let config = ClientConfig::new(0, transport.only(), TIMEOUT);
    Client::connect_to(server.address(), &config)
}

fn show_hello(client: &mut Client, output: Output) -> Result<(), Failure> {
    let request = "petrel";
    let started = Instant::now();
    let session = client.sessions[0];
    let reply = client.endpoint.call(session, methods::HELLO, request.as_bytes()).wait()?;
    let elapsed_ns = started.elapsed().as_nanos() as u64;
    let reply = String::from_utf8_lossy(&reply).into_owned();
    output.line(format!("   hello(\"{request}\") = \"{reply}\"   in {}", format_ns(elapsed_ns)))?;
    let transport = client.transport();
    Ok(output.record(&Hello { demo: "hello", transport, request, reply, elapsed_ns })?)
}

/// Sends a large request; the server answers with its checksum.
fn send(client: &mut Client) -> Result<Transfer, Failure> {
    let mut request = vec![0; LARGE_BYTES];
    Pattern::new(1, 1).fill(&mut request);
    let expected = checksum(&request);
    let started = Instant::now();
    let session = client.sessions[0];
    let reply = client.endpoint.call(session, methods::SINK, &request).wait()?;
    let verified = reply[..] == methods::sink_reply(LARGE_BYTES, expected);
    Ok(Transfer::new(client, "there", expected, verified, started))
}

/// Requests a large response, and compares its bytes with the expected pattern.
fn fetch(client: &mut Client) -> Result<Transfer, Failure> {
    let seed = 2;
    let started = Instant::now();
    let session = client.sessions[0];
    let request = methods::source_request(LARGE_BYTES as u32, seed);
    let reply = client.endpoint.call(session, methods::SOURCE, &request).wait()?;
    let difference = methods::source_pattern(seed).first_difference(&reply);
    let verified = reply.len() == LARGE_BYTES && difference.is_none();
    Ok(Transfer::new(client, "back", checksum(&reply), verified, started))
}

impl Transfer {
    fn new(
        client: &Client,
        direction: &'static str,
        checksum: u64,
        verified: bool,
        started: Instant,
    ) -> Self {
        Self {
            demo: "transfer",
            transport: client.transport(),
            direction,
            size_bytes: LARGE_BYTES,
            checksum: format!("{checksum:016x}"),
            verified,
            elapsed_ns: started.elapsed().as_nanos() as u64,
        }
    }
}

fn show_transfer(transfer: &Transfer, output: Output) -> Result<bool, Failure> {
    let Transfer { transport, direction, checksum, verified, elapsed_ns, .. } = transfer;
    let verdict = if *verified { "right" } else { "WRONG" };
    let time = format_ns(*elapsed_ns);
    output.line(format!(
        "   {transport} {direction:<6} checksum {checksum}: {verdict}   in {time}"
    ))?;
    output.record(transfer)?;
    Ok(*verified)
}

fn show_figures(output: Output) -> Result<Outcome, Failure> {
    let seconds = BENCH_TIME.as_secs_f64();
    output.line(format!("\n3. Short measurements, {seconds} s each, every reply checked"))?;
    let run = |measurement: &Measurement| {
        let figure = measurement.run(progress_bar(output, &measurement.title()))?;
        output.record(&figure)?;
        Ok(figure)
    };
    let figures: Vec<Figure> = measurements().iter().map(run).collect::<Result<_, Failure>>()?;
    output.line(table(&figures, output))?;
    output.line(footer(&figures))?;
    Ok(figure::outcome(&figures))
}

fn measurements() -> Vec<Measurement> {
    let kinds = [
        (Quantity::Latency, 32, 1, 1),
        (Quantity::Rate, 32, 60, 3),
        (Quantity::Bandwidth, LARGE_BYTES, 1, 1),
    ];
    let measurement = |(quantity, size, in_flight, batch), transport| Measurement {
        quantity,
        transport,
        cores: Cores::available(Cores::Two),
        size,
        in_flight,
        batch,
        pace: Pace { duration: BENCH_TIME, window: BENCH_TIME, is_realtime: false },
        plan: SessionPlan::DEFAULT,
        beside: Beside::Bare,
        connect: None,
    };
    kinds.into_iter().flat_map(|kind| BOTH.map(|transport| measurement(kind, transport))).collect()
}
