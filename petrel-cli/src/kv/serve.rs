//! `petrel kv serve`: a replica.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use petrel::endpoint::EndpointConfig;
use petrel::{Nexus, Status};
use petrel_command::Outcome;
use petrel_command::args::ReadsChoice;
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_command::fresh_seed;
use petrel_command::interrupt::Interrupt;
use petrel_command::output::Output;
use petrel_command::units::exact_duration;
use petrel_kv::disk::{DiskLog, DiskOptions};
use petrel_kv::persist::{LogStore, Recovered, Volatile};
use petrel_kv::{ReadMode, Replica, ReplicaConfig};
use serde::Serialize;

use super::log::logger;
use crate::cli::KvServeArgs;
use crate::log::EventLevel;
use crate::serve::until_interrupted;

/// The line that tells scripts that the replica listens.
#[derive(Serialize)]
struct Ready {
    event: &'static str,
    address: SocketAddr,
    pid: u32,
    node: u16,
    peers: usize,
}

/// The last line.
#[derive(Serialize)]
struct Stopped {
    event: &'static str,
    sessions_cut: usize,
}

/// Serves until interrupted, then hands leadership over and drains, within limits.
pub(super) fn run(
    args: &KvServeArgs,
    log: Option<EventLevel>,
    output: Output,
) -> Result<Outcome, Failure> {
    // Installed before any thread starts: this thread alone must receive the signals.
    let interrupt = Interrupt::install()?;
    let config = config(args, log)?;
    let address = config.address;
    let serving = Serving::start(args, config)?;
    announce(args, address, output)?;
    until_interrupted(interrupt, || !serving.thread.is_finished());
    let sessions_cut = serving.end()?;
    if sessions_cut > 0 {
        let limit = exact_duration(args.drain);
        output.line(format!("{sessions_cut} sessions were still there after {limit}"))?;
    }
    output.record(&Stopped { event: "stopped", sessions_cut })?;
    Ok(Outcome::Success)
}

fn config(args: &KvServeArgs, log: Option<EventLevel>) -> Result<ReplicaConfig, Failure> {
    let wrong = |text: String| Failure::new(Status::InvalidArgument, text);
    let named = args.peers.iter().find(|peer| peer.node == args.id).map(|peer| peer.address);
    let address = args.listen.or(named).ok_or_else(|| {
        let id = args.id;
        wrong(format!("--peers has no node {id}: say by --listen where this one listens"))
    })?;
    if address.port() == 0 || address.ip().is_unspecified() {
        let text = format!("{address} is no address by which others reach this node");
        return Err(wrong(text));
    }
    for peer in &args.peers {
        // The replicas connect to addresses.
        peer.host.iter().for_each(|host| credentials::expect(&[peer.address], host));
    }
    let peers = args.peers.iter().map(|peer| (peer.node, peer.address)).collect();
    let mut config = ReplicaConfig::new(args.id, address, peers, fresh_seed());
    config.heartbeat = args.heartbeat;
    config.election = args.election;
    config.reads = match args.reads {
        ReadsChoice::ReadIndex => ReadMode::ReadIndex,
        ReadsChoice::Lease => ReadMode::Lease,
    };
    config.memory_bytes_max = args.memory.map_or(u64::MAX, |bytes| bytes as u64);
    config.history_bytes_max = args.history;
    config.disk_bytes_min = args.disk_free as u64;
    config.logger = logger(log);
    Ok(config)
}

fn announce(args: &KvServeArgs, address: SocketAddr, output: Output) -> Result<(), Failure> {
    let node = args.id;
    output.line(format!(
        "Node {node} of the key-value store listens at {address}. Try `petrel kv status --servers {address}`; \
         stop with Ctrl-C."
    ))?;
    let (event, pid, peers) = ("ready", std::process::id(), args.peers.len());
    Ok(output.record(&Ready { event, address, pid, node, peers })?)
}

/// The replica, on a separate thread.
struct Serving {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<usize, Failure>>,
}

impl Serving {
    /// Starts the replica; when the function returns, the replica listens.
    fn start(args: &KvServeArgs, config: ReplicaConfig) -> Result<Self, Failure> {
        let builder = Nexus::builder().listen(config.address);
        let nexus = credentials::apply(builder, args.insecure).start()?;
        let mut endpoint = EndpointConfig::default();
        endpoint.idle = args.idle.policy();
        endpoint.transports = args.transport.allowed();
        let (sender, receiver) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_requested, drain, data) = (Arc::clone(&stop), args.drain, args.data.clone());
        let thread =
            thread::Builder::new().name(format!("kv-{}", config.node)).spawn(move || {
                let (log, recovered) = open_log(data.as_deref(), config.node)?;
                let mut endpoint = nexus.endpoint(endpoint).map_err(Failure::because)?;
                let replica = Replica::start(&mut endpoint, config, log, recovered)
                    .map_err(Failure::because)?;
                // The starting thread waits for the message.
                let _ = sender.send(());
                replica
                    .run(&mut endpoint, || stop_requested.load(Ordering::Acquire))
                    .and_then(|()| replica.drain(&mut endpoint, drain))
                    .map_err(Failure::because)
            })?;
        match receiver.recv() {
            Ok(()) => Ok(Self { stop, thread }),
            // The replica ended before listening: its result has the reason.
            Err(_) => Err(join(thread).err().unwrap_or_else(ended)),
        }
    }

    /// Stops the replica. Returns the number of cut sessions.
    fn end(self) -> Result<usize, Failure> {
        // The replica's clock ticks at least every second heartbeat, so the replica notices soon.
        self.stop.store(true, Ordering::Release);
        join(self.thread)
    }
}

/// Opens the log, on disk or in memory, and returns its contents.
fn open_log(
    data: Option<&Path>,
    node: u16,
) -> Result<(Box<dyn LogStore>, Option<Recovered>), Failure> {
    let Some(path) = data else { return Ok((Box::<Volatile>::default(), None)) };
    let (log, recovered) =
        DiskLog::open(path, &DiskOptions::of_node(node)).map_err(Failure::because)?;
    Ok((Box::new(log), recovered))
}

fn join(thread: thread::JoinHandle<Result<usize, Failure>>) -> Result<usize, Failure> {
    thread.join().unwrap_or_else(|_| Err(ended()))
}

fn ended() -> Failure {
    Failure::because("the replica has ended by an internal error")
}
