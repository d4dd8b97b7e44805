//! A user's figures: a server process and a client process as the README writes them, with nothing set but the transport.

mod args;
mod client;
mod processes;
mod server;

use std::net::SocketAddr;
use std::time::Duration;

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::{Column, Output};
use petrel_command::text::again;
use petrel_command::units::format_ns;
use serde::{Deserialize, Serialize};

pub(crate) use self::args::{DefaultsArgs, DefaultsClientsArgs, DefaultsServerArgs};
use self::client::{Taken, Way};
pub use self::processes::connect_anew;
pub(super) use self::processes::run as run_clients;
pub(super) use self::server::run as run_server;
use crate::measure::process::{Process, parse};
use crate::measure::statistics::median;
use petrel_command::args::BenchTransport;

/// Answers with the request.
const ECHO: u16 = 1;
/// Answers with the CPU time of the server's process, in nanoseconds.
const CPU: u16 = 2;
/// Answers with the first 32 bytes of the request.
const HEAD: u16 = 4;
/// Computes for as many nanoseconds as the request says, and answers with it.
const WORK: u16 = 3;

/// Figures of one way to call, as `--json` prints them: medians of the rounds.
#[derive(Debug, Serialize)]
struct Row {
    bench: &'static str,
    way: String,
    transport: &'static str,
    in_flight: usize,
    server_threads: usize,
    work_ns: u64,
    calls_per_s: f64,
    p50_ns: f64,
    p99_ns: f64,
    /// CPU time of each process for a call.
    client_cpu_ns: f64,
    server_cpu_ns: f64,
    /// Rate of the large calls beside these.
    bulk_gbit_per_s: f64,
    /// Calls of all rounds, each with its response compared.
    checked: u64,
    command: String,
}

#[derive(Deserialize, Serialize)]
struct Ready {
    address: SocketAddr,
}

/// A row to measure: a way to call, and the threads of the server.
#[derive(Clone, Copy)]
struct Case {
    way: Way,
    server_threads: usize,
}

/// Runs the benchmark and prints its figures.
pub(super) fn run(args: &DefaultsArgs, output: Output) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for transport in args.transport.iter().filter(|_| !args.only_processes) {
        let cases = Way::PLAIN.map(|way| Case { way, server_threads: 1 });
        rows.extend(measure(args, *transport, &cases, Duration::ZERO, output)?);
    }
    if args.threads {
        let cases = [1, 2].map(|server_threads| Case { way: Way::Clients, server_threads });
        for work in &args.work {
            rows.extend(measure(args, args.transport[0], &cases, *work, output)?);
        }
    }
    if !rows.is_empty() {
        output.line(output.rows(&COLUMNS, COLUMNS.len(), &rows))?;
    }
    if args.processes > 0 {
        let measure =
            |transport: &BenchTransport| processes::measure(args, *transport, again(), output);
        let rows = args.transport.iter().map(measure).collect::<Result<Vec<_>, _>>()?;
        output.line(output.rows(&processes::COLUMNS, processes::COLUMNS.len(), &rows))?;
    }
    output.line(
        "Two processes at defaults, but for the rows that poll; medians of the rounds, in which all rows take turns.\n\
         CPU time per call.\nAgain:",
    )?;
    output.line(format!("  {}", again()))?;
    Ok(Outcome::Success)
}

/// Starts a server, for one row of a round.
fn start_server(case: Case) -> Result<(Process, SocketAddr), Failure> {
    let threads = case.server_threads.to_string();
    let mut options = vec!["bench", "defaults-server", "--json", "--threads", &threads];
    options.extend(case.way.polls().then_some("--poll"));
    let mut process = Process::start(&options)?;
    let Ready { address } = parse(&process.line()?)?;
    Ok((process, address))
}

/// Measures rows in turn.
fn measure(
    args: &DefaultsArgs,
    transport: BenchTransport,
    cases: &[Case],
    work: Duration,
    output: Output,
) -> Result<Vec<Row>, Failure> {
    let mut all: Vec<Vec<Taken>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.rounds {
        for (case, taken) in cases.iter().zip(&mut all) {
            let (_server, address) = start_server(*case)?;
            taken.push(case.way.run((address, transport), args.duration, work)?);
        }
    }
    let row = |(Case { way, server_threads }, taken): (&Case, Vec<Taken>)| {
        let median_of =
            |field: fn(&Taken) -> f64| median(taken.iter().map(field)).unwrap_or(f64::NAN);
        let row = Row {
            bench: "defaults",
            way: way.name().to_owned(),
            transport: transport.name(),
            in_flight: way.in_flight(),
            server_threads: *server_threads,
            work_ns: work.as_nanos() as u64,
            calls_per_s: median_of(|taken| taken.calls as f64 / taken.time.as_secs_f64()),
            p50_ns: median_of(|taken| taken.p50_ns as f64),
            p99_ns: median_of(|taken| taken.p99_ns as f64),
            client_cpu_ns: median_of(|taken| taken.client_cpu_ns as f64 / taken.calls as f64),
            server_cpu_ns: median_of(|taken| taken.server_cpu_ns as f64 / taken.calls as f64),
            bulk_gbit_per_s: median_of(|taken| {
                taken.bulk_bytes as f64 * 8e-9 / taken.time.as_secs_f64()
            }),
            checked: taken.iter().map(|taken| taken.calls).sum(),
            command: again(),
        };
        output.record(&row)?;
        Ok(row)
    };
    cases.iter().zip(all).map(row).collect()
}

const COLUMNS: [Column<Row>; 11] = [
    ("calls by", |row| row.way.clone()),
    ("over", |row| row.transport.to_owned()),
    ("in flight", |row| row.in_flight.to_string()),
    ("server threads", |row| row.server_threads.to_string()),
    ("work", |row| format_ns(row.work_ns)),
    ("calls/s", |row| format!("{:.0}", row.calls_per_s)),
    ("p50", |row| format_ns(row.p50_ns as u64)),
    ("p99", |row| format_ns(row.p99_ns as u64)),
    ("client CPU", |row| format_ns(row.client_cpu_ns as u64)),
    ("server CPU", |row| format_ns(row.server_cpu_ns as u64)),
    ("large calls", |row| match row.bulk_gbit_per_s {
        0.0 => String::new(),
        rate => format!("{rate:.1} Gbit/s"),
    }),
];
