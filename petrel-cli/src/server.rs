//! A server with its endpoints, a thread each: for `serve`, and for the other end of `demo` and
//! `bench` in their own process.

use std::net::SocketAddr;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use petrel::control::{AllowedTransports, EndpointId};
use petrel::proto::limits::{SLOTS_MAX, WINDOW_PACKETS};
use petrel::transport::udp::Mtu;
use petrel::{EndpointConfig, EndpointStats, IdlePolicy, Nexus, Stop};

use crate::cores;
use crate::failure::Failure;
use crate::methods;

/// How a server is set up.
#[derive(Clone, Debug)]
pub(crate) struct ServerConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) insecure: bool,
    pub(crate) endpoints: u16,
    pub(crate) transports: AllowedTransports,
    pub(crate) idle: IdlePolicy,
    /// Largest IP packet to send, in bytes.
    pub(crate) mtu: Option<u16>,
    /// The CPU for the first endpoint's thread; the scheduler's choice if `None`.
    pub(crate) cpu: Option<usize>,
}

impl ServerConfig {
    /// A server at an address, with one endpoint and the defaults of the library.
    pub(crate) fn at(listen: SocketAddr) -> Self {
        Self {
            listen,
            insecure: false,
            endpoints: 1,
            transports: AllowedTransports { udp: true, shm: true },
            idle: IdlePolicy::default(),
            mtu: None,
            cpu: None,
        }
    }

    /// What endpoint `id` is made of. Clients decide how much of the slots and credits they take.
    fn endpoint(&self, id: u16) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        config.id = Some(EndpointId(id));
        config.transports = self.transports;
        config.idle = self.idle;
        config.sessions.slots = SLOTS_MAX;
        config.sessions.credits = WINDOW_PACKETS as u16;
        if let Some(mtu) = self.mtu {
            config.host.udp.mtu = Mtu::Fixed(usize::from(mtu));
        }
        config
    }
}

/// A running server. Dropping it leaves it running; [`Server::stop`] ends it.
pub(crate) struct Server {
    address: SocketAddr,
    workers: Vec<Worker>,
}

struct Worker {
    stop: Stop,
    thread: JoinHandle<Result<EndpointStats, Failure>>,
}

impl Server {
    /// Starts the server; its endpoints answer when this returns.
    pub(crate) fn start(config: &ServerConfig) -> Result<Self, Failure> {
        let mut builder = Nexus::builder().listen(config.listen).transports(config.transports);
        if config.insecure {
            builder = builder.insecure();
        }
        let nexus = builder.start()?;
        let address = nexus.local_addr().unwrap_or(config.listen);
        // Whatever fails on the way, the workers that run already are told to stop.
        let mut server = Self { address, workers: Vec::new() };
        for id in 0..config.endpoints {
            match Worker::start(&nexus, config.endpoint(id), config.cpu.filter(|_| id == 0)) {
                Ok(worker) => server.workers.push(worker),
                Err(failure) => {
                    server.stop()?;
                    return Err(failure);
                }
            }
        }
        Ok(server)
    }

    /// The control address, with the port that the system chose.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether all endpoints still run.
    pub(crate) fn is_healthy(&self) -> bool {
        self.workers.iter().all(|worker| !worker.thread.is_finished())
    }

    /// Ends all endpoints and gives their last counters.
    pub(crate) fn stop(self) -> Result<Vec<EndpointStats>, Failure> {
        self.workers.iter().for_each(|worker| worker.stop.stop());
        self.workers.into_iter().map(|worker| join(worker.thread)).collect()
    }
}

impl Worker {
    fn start(nexus: &Nexus, config: EndpointConfig, cpu: Option<usize>) -> Result<Self, Failure> {
        let nexus = nexus.clone();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(format!("endpoint-{}", config.id.map_or(0, |id| id.0)))
            .spawn(move || serve(&nexus, config, cpu, &sender))?;
        match receiver.recv() {
            Ok(stop) => Ok(Self { stop, thread }),
            // It ended before it had a handle to send: its result says why.
            Err(_) => Err(join(thread).err().unwrap_or_else(ended)),
        }
    }
}

fn join(thread: JoinHandle<Result<EndpointStats, Failure>>) -> Result<EndpointStats, Failure> {
    thread.join().unwrap_or_else(|_| Err(ended()))
}

fn ended() -> Failure {
    Failure::because("an endpoint of the server has ended by an internal error")
}

/// What a worker's thread does from its start to its end.
fn serve(
    nexus: &Nexus,
    config: EndpointConfig,
    cpu: Option<usize>,
    started: &Sender<Stop>,
) -> Result<EndpointStats, Failure> {
    if let Some(cpu) = cpu {
        cores::pin(cpu)?;
    }
    let mut endpoint = nexus.endpoint(config).map_err(Failure::because)?;
    methods::register(&mut endpoint);
    let stop = endpoint.stop_handle();
    // Nobody listens when starting another endpoint failed; `stop` comes at once then.
    let _ = started.send(stop.clone());
    endpoint.run(&stop);
    Ok(endpoint.stats())
}
