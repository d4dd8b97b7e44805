//! Three replicas, and their CPUs.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use petrel::endpoint::EndpointConfig;
use petrel::{Endpoint, Nexus};
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_kv::api::{Role, Status, TransferRequest, methods};

use super::KvBenchArgs;
use crate::measure::directory::Directory;
use crate::measure::process::Process;
use petrel_command::args::BenchTransport;

const REPLICAS: usize = 3;

/// Time limit for the replicas to reach an expected state.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Three processes of `petrel kv serve`, killed when the cluster is dropped.
pub(super) struct Cluster {
    pub(super) addresses: Vec<SocketAddr>,
    client: EndpointConfig,
    _processes: Vec<Process>,
    /// The replicas' logs.
    _data: Option<Directory>,
}

impl Cluster {
    /// Starts the replicas, and waits until the first one leads.
    pub(super) fn start(args: &KvBenchArgs, transport: BenchTransport) -> Result<Self, Failure> {
        let addresses = free_addresses()?;
        let data = args.data.as_deref();
        let data = data.map(|parent| Directory::within(parent, "kv")).transpose()?;
        let named = (1..).zip(&addresses).map(|(node, at): (u16, _)| format!("{node}={at}"));
        let peers = named.collect::<Vec<_>>().join(",");
        let mut processes = Vec::new();
        for node in 1..=REPLICAS as u16 {
            let id = u16::to_string(&node);
            let mut words = vec!["kv", "serve", "--json", "--log", "error"];
            words.extend(["--id", &id, "--peers", &peers]);
            words.extend(["--transport", transport.name(), "--idle", args.idle.name()]);
            words.extend(["--reads", args.reads.name()]);
            let log = data.as_ref().map(|data| data.path().join(&id).display().to_string());
            words.extend(log.iter().flat_map(|log| ["--data", log]));
            processes.push(Process::start(&words)?);
        }
        processes.iter_mut().try_for_each(|process| process.line().map(drop))?;
        let mut client = EndpointConfig::default();
        client.transports = transport.only();
        client.idle = args.idle.policy();
        let cluster = Self { addresses, client, _processes: processes, _data: data };
        cluster.have_first_lead()?;
        Ok(cluster)
    }

    pub(super) fn client_endpoint(&self) -> Result<Endpoint, Failure> {
        let nexus = credentials::apply(Nexus::builder(), false).start()?;
        nexus.endpoint(self.client.clone()).map_err(Failure::because)
    }

    fn have_first_lead(&self) -> Result<(), Failure> {
        let mut endpoint = self.client_endpoint()?;
        let end = Instant::now() + AGREEMENT_TIMEOUT;
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

    /// Waits until all replicas have applied the same commands, as replication requires.
    pub(super) fn check_equal(&self, endpoint: &mut Endpoint) -> Result<(), Failure> {
        let end = Instant::now() + AGREEMENT_TIMEOUT;
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

fn status(endpoint: &mut Endpoint, address: SocketAddr) -> Option<Status> {
    let session = endpoint.connect_wait(address).ok()?;
    let answer = endpoint.call(session, methods::STATUS, b"").wait().ok();
    endpoint.close(session);
    Status::decode(&answer?).ok()
}

fn transfer(endpoint: &mut Endpoint, address: SocketAddr) {
    let request = TransferRequest { node: 1 }.to_vec();
    if let Ok(session) = endpoint.connect_wait(address) {
        // The replica may have lost leadership; then the next round asks the new leader.
        let _ = endpoint.call(session, methods::TRANSFER, &request).wait();
        endpoint.close(session);
    }
}

fn free_addresses() -> Result<Vec<SocketAddr>, Failure> {
    let listen = |_| TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0));
    let listeners = (0..REPLICAS).map(listen).collect::<Result<Vec<_>, _>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}
