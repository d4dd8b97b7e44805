//! The first call after a pause: both ends have gone to sleep by their idle policy, and the call wakes them.
//!
//! A call to a sleeping server has to wake the server, and its response the client, unless the client still polls by then. The unit is a
//! bare wake-up of a thread that sleeps as an endpoint does ([`Mechanism::Eventfd`]). The two sides take turns: a machine that wakes
//! threads slowly slows both. The price of polling is the CPU time of both ends.

mod args;
mod sleeper;

use std::time::{Duration, Instant};

use petrel::endpoint::IdlePolicy;
use petrel_command::Outcome;
use petrel_command::client::{Client, ClientConfig};
use petrel_command::failure::Failure;
use petrel_command::methods;
use petrel_command::output::{Column, Output};
use petrel_command::server::{Server, ServerConfig};
use petrel_command::units::{exact_duration, format_ns};
use petrel_proto::limits::MESSAGE_BYTES_DEFAULT;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use self::args::IdleValue;
pub(crate) use self::args::PauseArgs;
use petrel_bench::measure::statistics::{Spread, median, spread};
use petrel_command::args::BenchTransport;
use sleeper::{Mechanism, Sleeper};

/// How long to wait for the connection, and for a call.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a call.
const CALL_BYTES: usize = 32;

/// Times of the first calls after pauses, as `--json` prints them.
#[derive(Debug, Serialize)]
struct CallRow {
    bench: &'static str,
    transport: &'static str,
    idle: String,
    pause_ns: u64,
    rounds: u32,
    /// Calls whose responses were compared.
    checked: u32,
    mismatched: u32,
    /// Median of the first calls.
    call_ns: f64,
    /// Median of the bare wake-ups.
    wake_up_ns: f64,
    /// A call in bare wake-ups: the median of the rounds.
    wake_ups: f64,
    wake_ups_spread: Spread,
    /// CPU time of both ends per call, with the polling before they sleep.
    cpu_ns: f64,
    command: String,
}

/// Times of bare wake-ups after pauses, as `--json` prints them.
#[derive(Debug, Serialize)]
struct WakeRow {
    bench: &'static str,
    wake_up_by: &'static str,
    pause_ns: u64,
    rounds: u32,
    wake_up_ns: f64,
    wake_up_ns_spread: Spread,
    command: String,
}

/// Runs the benchmark and prints its figures.
pub(crate) fn run(args: &PauseArgs, output: Output) -> Result<Outcome, Failure> {
    let mut wakes = Vec::new();
    for pause in &args.pause {
        for row in measure_wake_ups(args, *pause)? {
            output.record(&row)?;
            wakes.push(row);
        }
    }
    output.line(output.rows(&WAKE_COLUMNS, WAKE_COLUMNS.len(), &wakes))?;
    let mut calls = Vec::new();
    for transport in &args.transport {
        for pause in &args.pause {
            for idle in &args.idle {
                let row = measure_calls(args, *transport, *pause, *idle)?;
                output.record(&row)?;
                calls.push(row);
            }
        }
    }
    output.line(output.rows(&CALL_COLUMNS, CALL_COLUMNS.len(), &calls))?;
    output.line(
        "A wake-up is that of a thread in `poll`, by an eventfd, measured beside the calls. The CPU time is that of both \
         ends\nper call, with the polling before they sleep.\nAgain:",
    )?;
    output.line(format!("  {}", command(args)))?;
    let is_valid = calls.iter().all(|row| row.mismatched == 0 && row.checked == row.rounds);
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

/// Measures bare wake-ups; the mechanisms take turns.
fn measure_wake_ups(args: &PauseArgs, pause: Duration) -> Result<Vec<WakeRow>, Failure> {
    let start = |mechanism| Ok::<_, Failure>((mechanism, Sleeper::start(mechanism)?, Vec::new()));
    let mut sleepers = Mechanism::ALL.map(start).into_iter().collect::<Result<Vec<_>, _>>()?;
    for _ in 0..args.rounds {
        for (_, sleeper, times) in &mut sleepers {
            std::thread::sleep(pause);
            times.push(sleeper.wake()?.as_nanos() as f64);
        }
    }
    let row = |(mechanism, _, times): (Mechanism, Sleeper, Vec<f64>)| {
        Ok(WakeRow {
            bench: "pause",
            wake_up_by: mechanism.name(),
            pause_ns: pause.as_nanos() as u64,
            rounds: args.rounds,
            wake_up_ns: some(median(times.iter().copied()))?,
            wake_up_ns_spread: some(spread(times))?,
            command: command(args),
        })
    };
    sleepers.into_iter().map(row).collect()
}

/// Measures calls after pauses beside bare wake-ups, in turn.
fn measure_calls(
    args: &PauseArgs,
    transport: BenchTransport,
    pause: Duration,
    idle: IdleValue,
) -> Result<CallRow, Failure> {
    let (server, mut client) = ends(transport, idle.policy())?;
    let mut sleeper = Sleeper::start(Mechanism::Eventfd)?;
    let (mut calls, mut wake_ups, mut mismatched) = (Vec::new(), Vec::new(), 0);
    let mut cpu = Vec::new();
    for round in 0..args.rounds {
        let cpu_before = cpu_time()?;
        // The event loop runs during the pause, as in an application without work.
        client.endpoint.run_for(pause, |(), _| false);
        let request = [round as u8; CALL_BYTES];
        let begun = Instant::now();
        let reply = client.endpoint.call(client.sessions[0], methods::ECHO, &request).wait()?;
        calls.push(begun.elapsed().as_nanos() as f64);
        mismatched += u32::from(reply[..] != request);
        client.endpoint.run_for(pause, |(), _| false);
        cpu.push((cpu_time()? - cpu_before).as_nanos() as f64);
        wake_ups.push(sleeper.wake()?.as_nanos() as f64);
    }
    server.stop()?;
    let ratios = || calls.iter().zip(&wake_ups).map(|(call, wake_up)| call / wake_up);
    Ok(CallRow {
        bench: "pause",
        transport: transport.name(),
        idle: idle.to_string(),
        pause_ns: pause.as_nanos() as u64,
        rounds: args.rounds,
        checked: calls.len() as u32,
        mismatched,
        call_ns: some(median(calls.iter().copied()))?,
        wake_up_ns: some(median(wake_ups.iter().copied()))?,
        wake_ups: some(median(ratios()))?,
        wake_ups_spread: some(spread(ratios()))?,
        cpu_ns: some(median(cpu))?,
        command: command(args),
    })
}

/// Starts a server, and connects a client, both with an idle policy.
fn ends(transport: BenchTransport, idle: IdlePolicy) -> Result<(Server, Client<()>), Failure> {
    let transports = transport.only();
    let listen = ([127, 0, 0, 1], 0).into();
    let server = Server::start(&ServerConfig { transports, idle, ..ServerConfig::at(listen) })?;
    let config = ClientConfig {
        endpoint: 0,
        transports,
        in_flight: 1,
        timeout: TIMEOUT,
        idle,
        message_bytes_max: MESSAGE_BYTES_DEFAULT,
    };
    let client = Client::connect_to(server.address(), &config)?;
    Ok((server, client))
}

/// Returns the CPU time of the process.
fn cpu_time() -> Result<Duration, Failure> {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).map_err(Failure::because)
}

fn some<V>(value: Option<V>) -> Result<V, Failure> {
    value.ok_or_else(|| Failure::because("no round was measured"))
}

const CALL_COLUMNS: [Column<CallRow>; 8] = [
    ("over", |row| row.transport.to_owned()),
    ("idle", |row| row.idle.clone()),
    ("pause", |row| format_ns(row.pause_ns)),
    ("first call", |row| format_ns(row.call_ns as u64)),
    ("wake-up", |row| format_ns(row.wake_up_ns as u64)),
    ("in wake-ups", |row| format!("{:.2}", row.wake_ups)),
    ("quartiles", |row| format!("{:.2} .. {:.2}", row.wake_ups_spread.q1, row.wake_ups_spread.q3)),
    ("CPU time", |row| format_ns(row.cpu_ns as u64)),
];

const WAKE_COLUMNS: [Column<WakeRow>; 4] = [
    ("wake-up by", |row| row.wake_up_by.to_owned()),
    ("pause", |row| format_ns(row.pause_ns)),
    ("time", |row| format_ns(row.wake_up_ns as u64)),
    ("quartiles", |row| {
        let quartiles = [row.wake_up_ns_spread.q1, row.wake_up_ns_spread.q3];
        quartiles.map(|ns| format_ns(ns as u64)).join(" .. ")
    }),
];

fn command(args: &PauseArgs) -> String {
    let transports: Vec<_> = args.transport.iter().map(|transport| transport.name()).collect();
    let pauses: Vec<_> = args.pause.iter().map(|pause| exact_duration(*pause)).collect();
    let idle: Vec<_> = args.idle.iter().map(IdleValue::to_string).collect();
    format!(
        "petrel-experiment pause --transport {} --pause {} --idle {} --rounds {}",
        transports.join(","),
        pauses.join(","),
        idle.join(","),
        args.rounds
    )
}
