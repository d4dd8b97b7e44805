//! The first call after a pause: both ends have gone to sleep by their idle policy, and the call wakes them.
//!
//! The baseline is two wake-ups without Petrel: a byte over a pair of sockets to a thread that sleeps, and back. The
//! pauses of both sides take turns, so that a machine that wakes slowly does so for both. A call to a sleeping server
//! has to wake the server, and its response the client, unless the client still polls by then.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use petrel_command::Outcome;
use petrel_command::client::{Client, ClientConfig};
use petrel_command::failure::Failure;
use petrel_command::methods;
use petrel_command::output::Output;
use petrel_command::server::{Server, ServerConfig};
use petrel_command::units::{exact_duration, format_ns};
use petrel_proto::limits::MESSAGE_BYTES_DEFAULT;
use serde::Serialize;

use super::statistics::{Spread, median, spread};
use crate::args::{BenchTransport, PauseArgs};

/// How long to wait for the connection, and for a call.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a call.
const CALL_BYTES: usize = 32;

/// Times of the first calls after pauses, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Row {
    bench: &'static str,
    transport: &'static str,
    idle: &'static str,
    pause_ns: u64,
    rounds: u32,
    /// Calls whose responses were compared.
    checked: u32,
    mismatched: u32,
    /// Median of the first calls.
    call_ns: f64,
    /// Median of two wake-ups.
    wake_ups_ns: f64,
    /// Median of the rounds' ratios.
    ratio: f64,
    ratio_spread: Spread,
    command: String,
}

/// Runs the benchmark and prints its figures.
pub(super) fn run(args: &PauseArgs, output: Output) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for transport in &args.transport {
        for pause in &args.pause {
            let row = measure(args, *transport, *pause)?;
            output.record(&row)?;
            rows.push(row);
        }
    }
    output.line(table(&rows, output))?;
    output.line("Beside it: two wake-ups, a byte to a sleeping thread and back.\nAgain:")?;
    output.line(format!("  {}", command(args)))?;
    let is_valid = rows.iter().all(|row| row.mismatched == 0 && row.checked == row.rounds);
    Ok(if is_valid { Outcome::Success } else { Outcome::Failure })
}

fn measure(args: &PauseArgs, transport: BenchTransport, pause: Duration) -> Result<Row, Failure> {
    let idle = args.idle.policy();
    let transports = transport.only();
    let listen = ([127, 0, 0, 1], 0).into();
    let server = Server::start(&ServerConfig { transports, idle, ..ServerConfig::at(listen) })?;
    let mut client = Client::<()>::connect_to(
        server.address(),
        &ClientConfig {
            endpoint: 0,
            transports,
            in_flight: 1,
            timeout: TIMEOUT,
            idle,
            message_bytes_max: MESSAGE_BYTES_DEFAULT,
        },
    )?;
    let mut sleeper = Sleeper::start()?;
    let (mut calls, mut wake_ups, mut mismatched) = (Vec::new(), Vec::new(), 0);
    for round in 0..args.rounds {
        // The event loop runs meanwhile, as that of an application without work.
        client.endpoint.run_for(pause, |(), _| false);
        let request = [round as u8; CALL_BYTES];
        let begun = Instant::now();
        let reply = client.endpoint.call(client.sessions[0], methods::ECHO, &request).wait()?;
        calls.push(begun.elapsed().as_nanos() as f64);
        mismatched += u32::from(reply[..] != request);
        thread::sleep(pause);
        wake_ups.push(sleeper.wake()?.as_nanos() as f64);
    }
    server.stop()?;
    let ratios = || calls.iter().zip(&wake_ups).map(|(call, wake_ups)| call / wake_ups);
    let some = |value: Option<f64>| value.ok_or_else(|| Failure::because("no round was measured"));
    Ok(Row {
        bench: "pause",
        transport: transport.name(),
        idle: args.idle.name(),
        pause_ns: pause.as_nanos() as u64,
        rounds: args.rounds,
        checked: calls.len() as u32,
        mismatched,
        call_ns: some(median(calls.iter().copied()))?,
        wake_ups_ns: some(median(wake_ups.iter().copied()))?,
        ratio: some(median(ratios()))?,
        ratio_spread: spread(ratios()).ok_or_else(|| Failure::because("no round was measured"))?,
        command: command(args),
    })
}

/// A thread that sleeps until it gets a byte, and sends it back. It ends with the socket.
struct Sleeper(UnixStream);

impl Sleeper {
    fn start() -> Result<Self, Failure> {
        let (own, mut other) = UnixStream::pair()?;
        own.set_read_timeout(Some(TIMEOUT))?;
        thread::spawn(move || {
            let mut byte = [0];
            while other.read_exact(&mut byte).is_ok() && other.write_all(&byte).is_ok() {}
        });
        Ok(Self(own))
    }

    /// Wakes the thread, and waits for a wake-up in return.
    fn wake(&mut self) -> Result<Duration, Failure> {
        let begun = Instant::now();
        self.0.write_all(&[1])?;
        self.0.read_exact(&mut [0])?;
        Ok(begun.elapsed())
    }
}

fn table(rows: &[Row], output: Output) -> comfy_table::Table {
    let header = ["over", "idle", "pause", "first call", "two wake-ups", "ratio", "quartiles"];
    let mut table = output.table(&header);
    for row in rows {
        table.add_row([
            row.transport.to_owned(),
            row.idle.to_owned(),
            format_ns(row.pause_ns),
            format_ns(row.call_ns as u64),
            format_ns(row.wake_ups_ns as u64),
            format!("{:.2}", row.ratio),
            format!("{:.2} .. {:.2}", row.ratio_spread.q1, row.ratio_spread.q3),
        ]);
    }
    table
}

fn command(args: &PauseArgs) -> String {
    let transports: Vec<_> = args.transport.iter().map(|transport| transport.name()).collect();
    let pauses: Vec<_> = args.pause.iter().map(|pause| exact_duration(*pause)).collect();
    format!(
        "petrel bench pause --transport {} --pause {} --idle {} --rounds {}",
        transports.join(","),
        pauses.join(","),
        args.idle.name(),
        args.rounds
    )
}
