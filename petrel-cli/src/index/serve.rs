//! `petrel index serve`.

use std::net::SocketAddr;
use std::sync::Arc;

use comfy_table::{Cell, CellAlignment};
use petrel_command::Outcome;
use petrel_command::cores;
use petrel_command::credentials;
use petrel_command::device;
use petrel_command::failure::Failure;
use petrel_command::interrupt::Interrupt;
use petrel_command::output::Output;
use petrel_index::{Server, ServerConfig, Stopped, StoreConfig, ThreadKind};
use serde::Serialize;
use serde_json::value::RawValue;

use super::server_failure;
use crate::cli::IndexServeArgs;
use crate::serve::until_interrupted;

/// The line that tells scripts the address.
#[derive(Serialize)]
struct Ready {
    event: &'static str,
    address: SocketAddr,
    pid: u32,
    dispatch: u16,
    workers: u16,
}

/// The last line.
#[derive(Serialize)]
struct Ended {
    event: &'static str,
    sessions_cut: usize,
    counters: serde_json::Map<String, serde_json::Value>,
    endpoints: Vec<Box<RawValue>>,
}

/// Serves until interrupted, then drains.
pub(super) fn run(args: &IndexServeArgs, output: Output) -> Result<Outcome, Failure> {
    // Installed before any thread starts: this thread alone must receive the signals.
    let interrupt = Interrupt::install()?;
    let server = Server::start(&config(args)).map_err(server_failure)?;
    announce(args, server.address(), output)?;
    until_interrupted(interrupt, || server.is_healthy());
    let stopped = server.stop(args.drain).map_err(server_failure)?;
    print(&stopped, output)?;
    Ok(if stopped.sessions_cut == 0 { Outcome::Success } else { Outcome::Failure })
}

fn config(args: &IndexServeArgs) -> ServerConfig {
    let cpus = args.cpus.clone();
    let place = move |thread| match thread {
        ThreadKind::Dispatch(number) if !cpus.is_empty() => {
            cores::pin(cpus[usize::from(number) % cpus.len()])
        }
        _ => Ok(()),
    };
    ServerConfig {
        insecure: args.listen.insecure,
        security: credentials::get().cloned(),
        authorization: credentials::authorization().cloned(),
        device: device::get(),
        transports: args.listen.transport.allowed(),
        dispatch: args.dispatch,
        workers: args.workers,
        idle: args.idle.policy(),
        store: StoreConfig {
            words_expected: args.words,
            words_max: args.words_max,
            bytes_max: args.bytes_max as u64,
        },
        placement: Some(Arc::new(place)),
        ..ServerConfig::at(args.listen.address)
    }
}

fn announce(args: &IndexServeArgs, address: SocketAddr, output: Output) -> Result<(), Failure> {
    let (dispatch, workers) = (args.dispatch, args.workers);
    output.line(format!(
        "An index on {address}, {dispatch} dispatch endpoints, scans in {workers} workers. Try `petrel index put {address} 1 2`; \
         stop with Ctrl-C."
    ))?;
    let pid = std::process::id();
    Ok(output.record(&Ready { event: "ready", address, pid, dispatch, workers })?)
}

fn print(stopped: &Stopped, output: Output) -> Result<(), Failure> {
    let Stopped { endpoints, counters, sessions_cut } = stopped;
    let endpoints =
        endpoints.iter().filter_map(|stats| RawValue::from_string(stats.to_json()).ok());
    let pairs = counters.iter().map(|(name, value)| (name.clone(), (*value).into()));
    output.record(&Ended {
        event: "stopped",
        sessions_cut: *sessions_cut,
        counters: pairs.collect(),
        endpoints: endpoints.collect(),
    })?;
    if *sessions_cut > 0 {
        output.line(format!(
            "{sessions_cut} sessions were still there at the end of the time given"
        ))?;
    }
    print_counters(counters, output)
}

/// Prints the nonzero counters, as a table.
pub(crate) fn print_counters(counters: &[(String, u64)], output: Output) -> Result<(), Failure> {
    let mut table = output.table(&["counter", "value"]);
    for (name, value) in counters.iter().filter(|(_, value)| *value > 0) {
        let number = Cell::new(value).set_alignment(CellAlignment::Right);
        table.add_row([Cell::new(name), number]);
    }
    Ok(output.line(table)?)
}
