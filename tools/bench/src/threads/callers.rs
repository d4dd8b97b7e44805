//! Several threads that call one server, and their ways to the network:
//!
//! | way | calls of a thread |
//! | --- | --- |
//! | `locked` | through an endpoint behind a lock that all of the threads share |
//! | `endpoints` | through an endpoint of its own |
//! | `client` | by a clone of a client, whose endpoint has a thread of its own |
//!
//! The server is one endpoint, whose handler answers at once. All ways exist at once, and their windows take turns.

use std::sync::Arc;
use std::time::Duration;

use petrel::endpoint::EndpointConfig;
use petrel_command::failure::Failure;
use petrel_command::output::latency::format_percentile;
use petrel_command::output::{Column, Output};
use serde::Serialize;

use super::caller::Caller;
use super::crew::Crew;
use super::locked::{LockedCaller, LockedEndpoint};
use super::remote::{ClientThread, RemoteCaller};
use super::server::Server;
use super::work::Work;
use super::{Calls, Counts, Figures, config};
use crate::args::{BenchTransport, ThreadsArgs};

#[derive(Clone, Copy)]
enum Way {
    Locked,
    Endpoints,
    Client,
}

const WAYS: [Way; 3] = [Way::Locked, Way::Endpoints, Way::Client];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Locked => "locked",
            Way::Endpoints => "endpoints",
            Way::Client => "client",
        }
    }

    fn start(
        self,
        config: &EndpointConfig,
        server: &Server,
        threads: usize,
    ) -> Result<Crew, Failure> {
        let address = server.address;
        match self {
            Way::Locked => {
                let shared = LockedEndpoint::start(config, address, threads)?;
                Crew::start(threads, move |place| {
                    Ok(Box::new(LockedCaller::new(Arc::clone(&shared), place)))
                })
            }
            Way::Endpoints => {
                let config = config.clone();
                Crew::start(threads, move |_| Ok(Box::new(Caller::start(&config, address, 1)?)))
            }
            Way::Client => {
                let shared = Arc::new(ClientThread::start(config, address)?);
                Crew::start(threads, move |_| Ok(Box::new(RemoteCaller::new(Arc::clone(&shared)))))
            }
        }
    }
}

/// A way under load, as `--json` prints the figures.
#[derive(Serialize)]
pub(super) struct CallersRow {
    bench: &'static str,
    transport: &'static str,
    way: &'static str,
    /// Threads that call.
    callers: usize,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// A way that is set up.
struct Setup {
    way: Way,
    crew: Crew,
    alone: Counts,
    loaded: Counts,
}

/// Measures all ways with this number of calling threads.
pub(super) fn measure(
    args: &ThreadsArgs,
    transport: BenchTransport,
    callers: usize,
    work: Work,
    output: Output,
) -> Result<Vec<CallersRow>, Failure> {
    let config = config(args, transport);
    let server = Server::start(&config, 1, 0, work.of(Duration::ZERO))?;
    let start = |way: Way| {
        let crew = way.start(&config, &server, callers)?;
        Ok::<_, Failure>(Setup { way, crew, alone: Counts::new(), loaded: Counts::new() })
    };
    let mut setups = WAYS.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let in_flight = usize::from(args.in_flight);
    let title = format!("{callers} calling threads over {}", transport.name());
    let mut progress = output.progress(u64::from(args.rounds), &title);
    for round in 0..args.rounds {
        for Setup { crew, alone, loaded, .. } in &mut setups {
            crew.window(1, args.window, alone)?;
            crew.window(in_flight, args.window, loaded)?;
        }
        progress.set(u64::from(round) + 1);
    }
    let row = |Setup { way, mut loaded, alone, .. }: Setup| CallersRow {
        bench: "callers",
        transport: transport.name(),
        way: way.name(),
        callers,
        figures: Figures::new(args, &alone, &mut loaded),
    };
    Ok(setups.into_iter().map(row).collect())
}

pub(super) const COLUMNS: [Column<CallersRow>; 9] = [
    ("way", |row| row.way.to_owned()),
    ("over", |row| row.transport.to_owned()),
    ("callers", |row| row.callers.to_string()),
    ("alone p50", |row| format_percentile(&row.figures.latency, |latency| latency.p50_ns)),
    ("p99", |row| format_percentile(&row.figures.latency, |latency| latency.p99_ns)),
    ("calls/s", |row| format!("{:.0}", row.figures.calls_per_second)),
    ("loaded p50", |row| format_percentile(&row.figures.loaded_latency, |latency| latency.p50_ns)),
    ("p99", |row| format_percentile(&row.figures.loaded_latency, |latency| latency.p99_ns)),
    ("checked", |row| row.figures.checks.checked.to_string()),
];
