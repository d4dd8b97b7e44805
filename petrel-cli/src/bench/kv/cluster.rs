//! Three replicas, and where they run.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use petrel::{Endpoint, Nexus};
use petrel_kv::api::{Role, Status, TransferRequest, methods};

use super::load::Loader;
use super::replica::endpoint_config;
use crate::bench::process::Process;
use crate::cli::{BenchTransport, KvBenchArgs};
use crate::cores::{self, Seat, Seated};
use crate::failure::Failure;

const REPLICAS: usize = 3;

/// How long replicas may take to become what they are to be.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a status.
const STATUS_BYTES: usize = 4096;

pub(super) struct Cluster {
    pub(super) addresses: Vec<SocketAddr>,
    places: Places,
    pub(super) transport: &'static str,
    is_realtime: bool,
    _seated: Seated,
    /// Killed at the end.
    _processes: Vec<Process>,
}

/// CPUs: the clients' and each replica's. The first replica leads.
#[derive(Clone, Debug)]
struct Places {
    clients: usize,
    replicas: [usize; REPLICAS],
}

impl Places {
    fn choose() -> Result<Self, Failure> {
        match cores::all()[..] {
            [] | [_] => Err(Failure::because("this needs two CPUs, of which the leader has one")),
            [a, b, c, d, ..] => Ok(Self { clients: a, replicas: [b, c, d] }),
            [a, b, ..] => Ok(Self { clients: a, replicas: [b, a, a] }),
        }
    }

    fn are_shared(&self, cpu: usize) -> bool {
        self.replicas.iter().chain([&self.clients]).filter(|place| **place == cpu).count() > 1
    }
}

impl Cluster {
    pub(super) fn start(args: &KvBenchArgs, transport: BenchTransport) -> Result<Self, Failure> {
        let (places, addresses) = (Places::choose()?, free_addresses()?);
        // From the beginning: replicas that nothing interrupts would leave the clients no time.
        let seat = Seat { cpu: Some(places.clients), is_realtime: args.realtime };
        let peers: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        let start = |place: usize| {
            let (node, cpu) = ((place + 1).to_string(), places.replicas[place]);
            let (peers, name) = (peers.join(","), cpu.to_string());
            let mut words = vec!["bench", "kv-replica", "--node", &node, "--peers", &peers];
            words.extend(["--cpu", &name, "--transport", transport.name()]);
            words.extend(places.are_shared(cpu).then_some("--shares"));
            words.extend(args.realtime.then_some("--realtime"));
            Process::start(&words)
        };
        let processes = (0..REPLICAS).map(start).collect::<Result<_, _>>()?;
        let cluster = Self {
            _seated: seat.take()?,
            addresses,
            places,
            transport: transport.name(),
            is_realtime: args.realtime,
            _processes: processes,
        };
        cluster.have_first_lead()?;
        Ok(cluster)
    }

    /// An endpoint for the clients, on their CPU.
    pub(super) fn client_endpoint(&self) -> Result<Endpoint, Failure> {
        let shares = self.places.are_shared(self.places.clients) || self.is_realtime;
        let config = endpoint_config(self.transport, shares);
        Nexus::builder().start()?.endpoint(config).map_err(Failure::because)
    }

    fn have_first_lead(&self) -> Result<(), Failure> {
        let mut endpoint = self.client_endpoint()?;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            for address in &self.addresses {
                match status(&mut endpoint, *address) {
                    Some(status) if status.role == Role::Leader && status.node == 1 => {
                        return Ok(());
                    }
                    Some(status) if status.role == Role::Leader => {
                        transfer(&mut endpoint, *address)
                    }
                    _ => {}
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Failure::because("the replicas do not agree who leads"))
    }

    /// Waits until all replicas have applied the same, which is what they are for.
    pub(super) fn check_equal(&self, loader: &mut Loader) -> Result<(), Failure> {
        let endpoint = loader.endpoint();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let all: Vec<_> =
                self.addresses.iter().filter_map(|at| status(endpoint, *at)).collect();
            let like_first = |other: &Status| {
                (other.applied, other.keys, other.bytes)
                    == (all[0].applied, all[0].keys, all[0].bytes)
            };
            if all.len() == REPLICAS && all.iter().all(like_first) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Failure::because("the replicas have not come to the same state"))
    }
}

impl Cluster {
    /// What the leader says of its writes: p50 and p99, from their arrival to their answers.
    pub(super) fn leader_times(&self, loader: &mut Loader) -> Option<(u64, u64)> {
        let status = status(loader.endpoint(), self.addresses[0])?;
        let counter = |name: &str| {
            let found = status.counters.iter().find(|(other, _)| other == name);
            found.map(|(_, value)| *value)
        };
        Some((counter("write_p50_ns")?, counter("write_p99_ns")?))
    }
}

fn status(endpoint: &mut Endpoint, address: SocketAddr) -> Option<Status> {
    let session = endpoint.connect_wait(address).ok()?;
    let answer = endpoint.call_wait(session, methods::STATUS, b"", STATUS_BYTES).ok();
    endpoint.close(session);
    Status::decode(&answer?).ok()
}

fn transfer(endpoint: &mut Endpoint, address: SocketAddr) {
    let mut request = Vec::new();
    TransferRequest { node: 1 }.encode(&mut request);
    if let Ok(session) = endpoint.connect_wait(address) {
        // It may lead no more; then it is asked who does in the next round.
        let _ = endpoint.call_wait(session, methods::TRANSFER, &request, STATUS_BYTES);
        endpoint.close(session);
    }
}

fn free_addresses() -> Result<Vec<SocketAddr>, Failure> {
    let listen = |_| TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0));
    let listeners = (0..REPLICAS).map(listen).collect::<Result<Vec<_>, _>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}
