//! A server with several endpoints, one thread each: for `serve`, and for `demo` and `bench` in their
//! own process.

use std::net::SocketAddr;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use petrel::Nexus;
use petrel::endpoint::{AllowedTransports, EndpointId};
use petrel::endpoint::{EndpointConfig, EndpointStats, IdlePolicy, Stop};
use petrel::region::{Access, Region, RegionKey, RegionMemory, Regions};
use petrel_proto::limits::{MESSAGE_BYTES_DEFAULT, SLOTS_MAX, WINDOW_PACKETS};
use petrel_transport::udp::Mtu;

use crate::cores;
use crate::credentials;
use crate::failure::Failure;
use crate::methods;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address of the control plane.
    pub listen: SocketAddr,
    /// Whether clients on other hosts may call without proof of identity.
    pub insecure: bool,
    /// Number of endpoints, each with a thread.
    pub endpoints: u16,
    /// Transports that sessions may use.
    pub transports: AllowedTransports,
    /// The event loops' policy without work.
    pub idle: IdlePolicy,
    /// Largest IP packet to send, in bytes.
    pub mtu: Option<u16>,
    /// Largest message, as request and as response.
    pub message_bytes_max: u32,
    /// The size of a private region to serve, for all rights except mapping.
    pub region_bytes: Option<u64>,
    /// The CPU for the first endpoint's thread; the scheduler's choice if `None`.
    pub cpu: Option<usize>,
}

impl ServerConfig {
    /// Configures a server at an address, with one endpoint and the defaults of the library.
    pub fn at(listen: SocketAddr) -> Self {
        Self {
            listen,
            insecure: false,
            endpoints: 1,
            transports: AllowedTransports::ALL,
            idle: IdlePolicy::default(),
            mtu: None,
            message_bytes_max: MESSAGE_BYTES_DEFAULT,
            region_bytes: None,
            cpu: None,
        }
    }

    /// Returns the configuration of endpoint `id`. The server offers the maxima of slots and credits;
    /// clients decide how much they use.
    fn endpoint(&self, id: u16) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        config.id = Some(EndpointId(id));
        config.transports = self.transports;
        config.idle = self.idle;
        config.sessions.slots = SLOTS_MAX;
        config.sessions.message_bytes_max = self.message_bytes_max;
        // Room for four of the largest messages, in blocks that may be half as large again.
        let large_bytes = 6 * self.message_bytes_max as usize;
        config.memory.max_bytes = config.memory.max_bytes.max(large_bytes);
        config.sessions.credits = WINDOW_PACKETS as u16;
        if let Some(mtu) = self.mtu {
            config.host.udp.mtu = Mtu::Fixed(usize::from(mtu));
        }
        config
    }
}

/// A running server. Dropping the handle does not stop the server; call [`Server::drain`] or
/// [`Server::stop`].
pub struct Server {
    address: SocketAddr,
    region: Option<Region>,
    workers: Vec<Worker>,
}

struct Worker {
    stop: Stop,
    /// Time for clients to leave, if they are asked to; set before the stop.
    drain_limit: Arc<OnceLock<Duration>>,
    thread: JoinHandle<Result<Ended, Failure>>,
}

/// The final result of an endpoint.
#[derive(Debug)]
pub struct Ended {
    /// The last counters.
    pub stats: EndpointStats,
    /// Sessions that clients had not left in time.
    pub sessions_cut: usize,
}

impl Server {
    /// Starts the server; when the function returns, all endpoints answer.
    pub fn start(config: &ServerConfig) -> Result<Self, Failure> {
        let builder = Nexus::builder().listen(config.listen).transports(config.transports);
        let nexus = credentials::apply(builder, config.insecure).start()?;
        let address = nexus.local_addr().unwrap_or(config.listen);
        // If a later endpoint fails, the workers that already run are stopped.
        let regions = Regions::new();
        let access = Access::READ | Access::WRITE | Access::ATOMIC;
        let register = |bytes| regions.register(RegionMemory::private(bytes)?, access);
        let region = config.region_bytes.map(register).transpose()?;
        let served = region.is_some().then_some(&regions);
        let mut server = Self { address, region, workers: Vec::new() };
        for id in 0..config.endpoints {
            let cpu = config.cpu.filter(|_| id == 0);
            match Worker::start(&nexus, config.endpoint(id), served, cpu) {
                Ok(worker) => server.workers.push(worker),
                Err(failure) => {
                    server.stop()?;
                    return Err(failure);
                }
            }
        }
        Ok(server)
    }

    /// Returns the control address, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the key of the region, if there is one.
    pub fn region_key(&self) -> Option<RegionKey> {
        self.region.as_ref().map(Region::key)
    }

    /// Returns true while all endpoints run.
    pub fn is_healthy(&self) -> bool {
        self.workers.iter().all(|worker| !worker.thread.is_finished())
    }

    /// Ends all endpoints at once.
    pub fn stop(self) -> Result<(), Failure> {
        self.end(None).map(drop)
    }

    /// Asks clients to leave after their calls, and ends all endpoints after the last has left, or at
    /// the limit.
    pub fn drain(self, limit: Duration) -> Result<Vec<Ended>, Failure> {
        self.end(Some(limit))
    }

    fn end(self, drain_limit: Option<Duration>) -> Result<Vec<Ended>, Failure> {
        for worker in &self.workers {
            if let Some(limit) = drain_limit {
                // No other code sets the limit.
                let _ = worker.drain_limit.set(limit);
            }
            worker.stop.stop();
        }
        self.workers.into_iter().map(|worker| join(worker.thread)).collect()
    }
}

impl Worker {
    fn start(
        nexus: &Nexus,
        config: EndpointConfig,
        regions: Option<&Regions>,
        cpu: Option<usize>,
    ) -> Result<Self, Failure> {
        let (nexus, regions) = (nexus.clone(), regions.cloned());
        let (sender, receiver) = mpsc::channel();
        let drain_limit = Arc::new(OnceLock::new());
        let limit = Arc::clone(&drain_limit);
        let thread = thread::Builder::new()
            .name(format!("endpoint-{}", config.id.map_or(0, |id| id.0)))
            .spawn(move || serve(&nexus, config, regions, cpu, &sender, &limit))?;
        match receiver.recv() {
            Ok(stop) => Ok(Self { stop, drain_limit, thread }),
            // The thread ended before sending a handle: its result has the reason.
            Err(_) => Err(join(thread).err().unwrap_or_else(ended)),
        }
    }
}

fn join(thread: JoinHandle<Result<Ended, Failure>>) -> Result<Ended, Failure> {
    thread.join().unwrap_or_else(|_| Err(ended()))
}

fn ended() -> Failure {
    Failure::because("an endpoint of the server has ended by an internal error")
}

/// Runs a worker's thread from its start to its end.
fn serve(
    nexus: &Nexus,
    config: EndpointConfig,
    regions: Option<Regions>,
    cpu: Option<usize>,
    started: &Sender<Stop>,
    drain_limit: &OnceLock<Duration>,
) -> Result<Ended, Failure> {
    if let Some(cpu) = cpu {
        cores::pin(cpu)?;
    }
    let mut endpoint = nexus.endpoint(config).map_err(Failure::because)?;
    methods::register(&mut endpoint);
    if let Some(regions) = &regions {
        endpoint.serve_regions(regions);
    }
    let stop = endpoint.stop_handle();
    // If another endpoint failed to start, the receiver is gone, and `stop` follows at once.
    let _ = started.send(stop.clone());
    endpoint.run(&stop);
    let sessions_cut = drain_limit.get().map_or(0, |limit| endpoint.drain(*limit));
    Ok(Ended { stats: endpoint.stats(), sessions_cut })
}
