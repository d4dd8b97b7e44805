//! Memory of idle sessions, at each side.
//!
//! Server and client are separate processes, in which nothing else grows. Private memory (`RssAnon` of
//! `/proc`) is read before and after many sessions are opened, and again after a call on each. Memory of
//! the control plane counts too, unless freed meanwhile.

use petrel::endpoint::EndpointConfig;
use petrel_command::failure::Failure;
use petrel_command::methods;
use petrel_command::output::Output;
use serde::{Deserialize, Serialize};

use super::args::IdleArgs;
use crate::measure::figure::{Figure, Quantity, Setting};
use crate::measure::library::{Caller, EndConfig};
use crate::measure::pairs::Pairs;
use crate::measure::process::{Process, parse, status_bytes};
use petrel_command::args::BenchTransport;

/// Bytes of every call.
const CALL_BYTES: usize = 32;

/// Memory of both processes at three points of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Readings {
    client: [u64; 3],
    server: [u64; 3],
}

/// Runs the client's process: opens sessions to a server, uses each once, and prints the readings.
pub(crate) fn run_client(args: &IdleArgs, output: Output) -> Result<(), Failure> {
    let address = args.connect.resolve()?[0];
    let config = EndConfig {
        adjust: |config: &mut EndpointConfig| config.sessions.accept = false,
        ..EndConfig::towards(args.transport, address.ip())
    };
    let mut caller = Caller::start(address, &config, ())?;
    let read =
        || Ok::<_, Failure>((private_bytes("self")?, private_bytes(&args.server_pid.to_string())?));
    caller.open((address, 0), 1, || ())?;
    call_each(&mut caller, 0)?;
    let first = read()?;
    caller.open((address, 0), args.sessions, || ())?;
    let opened = read()?;
    call_each(&mut caller, 1)?;
    let used = read()?;
    let readings =
        Readings { client: [first.0, opened.0, used.0], server: [first.1, opened.1, used.1] };
    Ok(output.record(&readings)?)
}

/// Makes a call on every session from `from` on, and checks the replies.
fn call_each(caller: &mut Caller, from: usize) -> Result<(), Failure> {
    for index in from..caller.sessions.len() {
        let session = caller.sessions[index];
        let request = [index as u8; CALL_BYTES];
        let reply = caller.endpoint.call(session, methods::ECHO, &request).wait()?;
        if reply[..] != request {
            return Err(Failure::because("the server's reply was wrong"));
        }
    }
    Ok(())
}

/// Returns the private memory of a process.
pub fn private_bytes(process: &str) -> Result<u64, Failure> {
    status_bytes(process, "RssAnon:")
}

/// Returns the command that repeats the whole measurement.
fn command(transport: BenchTransport, sessions: usize) -> String {
    format!("petrel bench sessions --transport {} --sessions {sessions}", transport.name())
}

/// Starts the two processes; returns a figure per process.
pub(super) fn run(transport: BenchTransport, sessions: usize) -> Result<[Figure; 2], Failure> {
    let mut server = Process::start(&[
        "serve",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--idle",
        "block",
        "--transport",
        transport.name(),
    ])?;
    let ready: Ready = parse(&server.line()?)?;
    let mut client = Process::start(&[
        "bench",
        "idle-sessions",
        "--json",
        "--connect",
        &ready.address,
        "--server-pid",
        &ready.pid.to_string(),
        "--sessions",
        &sessions.to_string(),
        "--transport",
        transport.name(),
    ])?;
    let readings: Readings = parse(&client.line()?)?;
    let figure = |side, readings| figure(side, readings, transport, sessions);
    Ok([figure("client", readings.client), figure("server", readings.server)])
}

fn figure(
    side: &'static str,
    [first, opened, used]: [u64; 3],
    transport: BenchTransport,
    sessions: usize,
) -> Figure {
    let kib = |bytes: u64| bytes.saturating_sub(first) as f64 / sessions as f64 / 1024.0;
    let command = command(transport, sessions);
    let setting = Setting {
        size_bytes: CALL_BYTES,
        sessions,
        ..Setting::new("memory", transport.name(), command)
    };
    let mut figure = Figure::new(Quantity::Rate, setting, Pairs::default());
    (figure.value, figure.unit) = (kib(opened.max(used)), "KiB");
    (figure.side, figure.unused) = (Some(side), Some(kib(opened)));
    // Every session was called once and its reply compared; otherwise there is no figure.
    (figure.calls, figure.checked) = (sessions as u64, sessions as u64);
    figure
}

#[derive(Deserialize)]
struct Ready {
    address: String,
    pid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure__is_per_session_and_counts_what_use_adds() {
        let figure = figure("server", [1 << 20, 3 << 20, 5 << 20], BenchTransport::Shm, 1_024);
        assert_eq!((figure.value, figure.unused, figure.unit), (4.0, Some(2.0), "KiB"));
        assert_eq!(figure.side, Some("server"));
    }
}
