//! The server's process: an index whose threads have the CPUs of the measurement.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use petrel_bench::measure::process::end_with_parent;
use petrel_command::cores;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_index::{Server, ServerConfig, StoreConfig, ThreadKind};
use serde::Serialize;

use super::args::IndexServerArgs;

/// The line that tells the client the address.
#[derive(Serialize)]
struct Ready {
    address: SocketAddr,
}

/// Serves until the process is killed, at the latest when its parent has ended.
pub(crate) fn run(args: &IndexServerArgs, output: Output) -> Result<(), Failure> {
    end_with_parent()?;
    let (cpu, worker_cpu) = (args.cpu, args.worker_cpu);
    let place = move |thread| {
        let cpu = if thread == ThreadKind::Worker { worker_cpu } else { cpu };
        cpu.map_or(Ok(()), cores::pin)
    };
    let config = ServerConfig {
        transports: args.transport.only(),
        workers: args.workers,
        store: StoreConfig { words_expected: args.words, ..StoreConfig::default() },
        prefetches: !args.no_prefetch,
        placement: Some(Arc::new(place)),
        ..ServerConfig::at(([127, 0, 0, 1], 0).into())
    };
    let server = Server::start(&config).map_err(Failure::because)?;
    output.record(&Ready { address: server.address() })?;
    while server.is_healthy() {
        thread::sleep(Duration::from_millis(500));
    }
    Err(Failure::because("a thread of the server has ended"))
}
