//! `petrel cache serve`.

use std::net::SocketAddr;
use std::sync::Arc;

use petrel_cache::{CacheConfig, CacheServer, Mode, Placement, Stopped, limits};
use petrel_command::Outcome;
use petrel_command::cores;
use petrel_command::credentials;
use petrel_command::device;
use petrel_command::failure::Failure;
use petrel_command::interrupt::Interrupt;
use petrel_command::output::Output;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use super::server_failure;
use crate::cli::CacheServeArgs;
use crate::index::print_counters;
use crate::serve::until_interrupted;

/// The line that tells scripts the address.
#[derive(Serialize)]
struct Ready {
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memcached: Option<SocketAddr>,
    pid: u32,
    threads: u16,
    memory_bytes: usize,
}

/// The last line.
#[derive(Serialize)]
struct Ended {
    event: &'static str,
    counters: serde_json::Map<String, serde_json::Value>,
}

/// Serves until interrupted, then closes the connections.
pub(super) fn run(args: &CacheServeArgs, output: Output) -> Result<Outcome, Failure> {
    // Installed before any thread starts: this thread alone must receive the signals.
    let interrupt = Interrupt::install()?;
    raise_descriptor_limit(args)?;
    let server = CacheServer::start(&config(args)).map_err(server_failure)?;
    announce(args, &server, output)?;
    until_interrupted(interrupt, || server.is_healthy());
    print(&server.stop().map_err(server_failure)?, output)?;
    Ok(Outcome::Success)
}

/// Raises the limit on descriptors to the number that all connections need. With fewer, a newcomer would wait without an
/// answer.
fn raise_descriptor_limit(args: &CacheServeArgs) -> Result<(), Failure> {
    if args.memcached.is_none() && args.memcached_path.is_none() {
        return Ok(());
    }
    let needed = (args.connections + limits::ARRIVALS_MAX + limits::FILES_BESIDE) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(needed), ..limit });
    raised.map_err(|_| {
        Failure::because(format!(
            "{} connections need {needed} descriptors, and the host does not allow so many: give fewer \
             (--connections), or raise the limit (ulimit -n)",
            args.connections
        ))
    })
}

fn config(args: &CacheServeArgs) -> CacheConfig {
    let cpus = args.cpus.clone();
    let place = move |thread: usize| match cpus.is_empty() {
        true => Ok(()),
        false => cores::pin(cpus[thread % cpus.len()]),
    };
    let place: Placement = Arc::new(place);
    CacheConfig {
        insecure: args.insecure,
        security: credentials::get().cloned(),
        authorization: credentials::authorization().cloned(),
        device: device::get(),
        memcached_plain: args.memcached_plain,
        memcached_mutual: args.memcached_mutual,
        memcached_auth: args.auth_file.clone(),
        memory_bytes: args.memory as u64,
        threads: args.threads,
        mode: if args.store { Mode::Store } else { Mode::Cache },
        item_bytes_expected: args.item_size,
        value_bytes_max: args.value_size_max,
        refuses_flush: args.refuse_flush,
        memcached_path: args.memcached_path.clone(),
        connections_max: args.connections,
        idle: args.idle_timeout,
        placement: Some(place),
        listen: args.listen,
        memcached: args.memcached,
        transports: args.transport.allowed(),
        endpoint_idle: args.idle.policy(),
    }
}

fn announce(args: &CacheServeArgs, server: &CacheServer, output: Output) -> Result<(), Failure> {
    let (threads, kind) = (args.threads, if args.store { "store" } else { "cache" });
    let (address, memcached) = (server.listen(), server.memcached());
    let mut places = Vec::new();
    places.extend(address.map(|address| format!("on {address}")));
    places.extend(memcached.map(|address| format!("for memcached's clients on {address}")));
    places.extend(args.memcached_path.as_ref().map(|path| format!("at {}", path.display())));
    output.line(format!(
        "A {kind} {}, {threads} partitions. Stop with Ctrl-C.",
        places.join(" and ")
    ))?;
    let (pid, memory_bytes) = (std::process::id(), args.memory);
    let event = "ready";
    Ok(output.record(&Ready { event, address, memcached, pid, threads, memory_bytes })?)
}

fn print(stopped: &Stopped, output: Output) -> Result<(), Failure> {
    let counters: Vec<_> =
        stopped.counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let pairs = counters.iter().map(|(name, value)| (name.clone(), (*value).into()));
    output.record(&Ended { event: "stopped", counters: pairs.collect() })?;
    print_counters(&counters, output)
}
