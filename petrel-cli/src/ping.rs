//! `petrel ping`: calls to an echo; every reply is compared byte by byte.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use petrel_command::Outcome;
use petrel_command::client::{Client, ClientConfig};
use petrel_command::failure::Failure;
use petrel_command::interrupt::Interrupt;
use petrel_command::load::{self, Counts, Echo, FailureGroup, Load, Plan};
use petrel_command::output::Output;
use petrel_command::output::latency::LatencySummary;
use petrel_command::units::{format_bytes, format_ns, format_rate};
use petrel_proto::limits::MESSAGE_BYTES_DEFAULT;
use serde::Serialize;

use crate::call::client_config as client_of;
use crate::cli::PingArgs;

/// Messages up to this size warm up with the requested number of calls: 64 KiB, some microseconds per call.
const WARM_UP_BYTES_MAX: u32 = 64 << 10;

/// Calls of a round of the warm-up, and the time after which no further round begins: by then the scheduler has moved the
/// two threads to CPUs of their own.
const WARM_UP_CALLS: u64 = 100;
const WARM_UP_TIME: Duration = Duration::from_millis(30);

/// The result as `--json` prints it.
#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    connection: Connection,
    size_bytes: usize,
    in_flight: u16,
    count: u64,
    calls: u64,
    answered: u64,
    mismatched: u64,
    failed: u64,
    failures: &'a [FailureGroup],
    interrupted: bool,
    retransmissions: u64,
    elapsed_ns: u64,
    calls_per_second: f64,
    latency: Option<LatencySummary>,
}

/// The parameters that the two ends agreed on; known while the session is open.
#[derive(Clone, Copy, Serialize)]
struct Connection {
    address: SocketAddr,
    transport: &'static str,
    /// Largest payload of one packet.
    packet_bytes: Option<u32>,
}

/// Makes the calls and prints their outcomes.
pub(crate) fn run(args: &PingArgs, output: Output) -> Result<Outcome, Failure> {
    // Installed before any thread starts: this thread alone must receive the signals.
    let interrupt = Interrupt::install()?;
    let mut client = Client::connect(&args.server.address, &client_config(args))?;
    let connection = Connection {
        address: client.address,
        transport: client.transport(),
        packet_bytes: client.packet_bytes(),
    };
    output.line(headline(args, connection))?;
    let mut interrupted = false;
    let warmed = warm_up(&mut client, args, &interrupt, &mut interrupted)?;
    let counts = match warmed {
        Some(counts) => counts,
        None => measure(&mut client, args, &interrupt, &mut interrupted, output)?,
    };
    output.record(&record(args, connection, interrupted, &counts))?;
    output.line(summary(&counts, args.count))?;
    Ok(if counts.is_valid() { Outcome::Success } else { Outcome::Failure })
}

fn measure(
    client: &mut Client<Load>,
    args: &PingArgs,
    interrupt: &Interrupt,
    interrupted: &mut bool,
    output: Output,
) -> Result<Counts, Failure> {
    let mut progress = output.progress(args.count, "calls");
    load::run(client, plan(args, args.count), |counts| {
        progress.set(counts.answered);
        *interrupted |= interrupt.is_raised();
        if *interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

fn client_config(args: &PingArgs) -> ClientConfig {
    ClientConfig {
        in_flight: args.in_flight,
        message_bytes_max: args.message_max.unwrap_or(args.size.max(MESSAGE_BYTES_DEFAULT)),
        ..client_of(&args.server)
    }
}

fn plan(args: &PingArgs, calls: u64) -> Plan {
    let size = args.size as usize;
    let echo = args.method.map_or(Echo::Own, |method| Echo::Handler(method.0));
    Plan { size, in_flight: args.in_flight, calls, timeout: args.server.timeout, echo }
}

/// Makes the uncounted calls. Returns the counts if they are final: after a failure or an interruption.
fn warm_up(
    client: &mut Client<Load>,
    args: &PingArgs,
    interrupt: &Interrupt,
    interrupted: &mut bool,
) -> Result<Option<Counts>, Failure> {
    let calls = match args.size {
        0..=WARM_UP_BYTES_MAX => args.warm_up.unwrap_or(WARM_UP_CALLS),
        // One large call is enough to touch all of its memory.
        _ => args.warm_up.unwrap_or(1).min(1),
    };
    if calls == 0 {
        return Ok(None);
    }
    let is_timed = args.warm_up.is_none() && args.size <= WARM_UP_BYTES_MAX;
    let began = Instant::now();
    loop {
        let counts = load::run(client, plan(args, calls), |_| {
            *interrupted |= interrupt.is_raised();
            if *interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if *interrupted || !counts.is_valid() {
            return Ok(Some(counts));
        }
        if !is_timed || began.elapsed() >= WARM_UP_TIME {
            return Ok(None);
        }
    }
}

fn headline(args: &PingArgs, connection: Connection) -> String {
    let Connection { address, transport, .. } = connection;
    let size = format_bytes(u64::from(args.size));
    format!("{address}: {size} over {transport}, {} in flight", args.in_flight)
}

fn record<'a>(
    args: &PingArgs,
    connection: Connection,
    interrupted: bool,
    counts: &'a Counts,
) -> Record<'a> {
    Record {
        connection,
        size_bytes: args.size as usize,
        in_flight: args.in_flight,
        count: args.count,
        calls: counts.started,
        answered: counts.answered,
        mismatched: counts.mismatched,
        failed: counts.failed(),
        failures: &counts.failures,
        interrupted,
        retransmissions: counts.retransmissions,
        elapsed_ns: counts.elapsed_ns,
        calls_per_second: counts.calls_per_second(),
        latency: counts.latencies.summary(),
    }
}

/// Returns the text for human readers: counts, figures, and the kinds of failures.
fn summary(counts: &Counts, requested: u64) -> String {
    let Counts { started, answered, mismatched, retransmissions, .. } = *counts;
    let verdict = match mismatched {
        _ if answered == 0 => "nothing to compare".to_owned(),
        0 => "every byte of every reply was right".to_owned(),
        wrong => format!("{wrong} REPLIES WERE WRONG"),
    };
    let mut lines = vec![format!("{started} calls made, {answered} answered; {verdict}")];
    if let Some(latency) = counts.latencies.summary() {
        lines.push(format!("latency: {latency}"));
        lines.push(format!(
            "{} for {}; {retransmissions} packets sent again",
            format_rate(counts.calls_per_second(), "calls"),
            format_ns(counts.elapsed_ns),
        ));
    }
    if started < requested {
        lines.push(format!("ended before the other {} calls were made", requested - started));
    }
    lines.extend(counts.failures.iter().map(ToString::to_string));
    lines.join("\n")
}
