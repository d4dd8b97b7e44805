//! `petrel kv`: the replicated key-value store.

mod backup;
mod chaos;
mod lease;
mod lines;
mod log;
mod member;
mod operations;
mod serve;
mod sim;
mod status;
mod text;
mod watch;
mod whole_file;

use std::net::SocketAddr;

use petrel::endpoint::EndpointConfig;
use petrel::{Endpoint, Nexus, Status};
use petrel_command::Outcome;
use petrel_command::client::data_address;
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_kv::{KvClient, KvClientConfig, KvError};

use crate::cli::{ClusterArgs, GlobalArgs, KvArgs, KvCommand};

pub(crate) fn run(args: &KvArgs, global: GlobalArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        KvCommand::Serve(args) => serve::run(args, global.log, output),
        KvCommand::Get(args) => operations::get(args, output),
        KvCommand::Put(args) => operations::put(args, output),
        KvCommand::Delete(args) => operations::delete(args, output),
        KvCommand::Cas(args) => operations::cas(args, output),
        KvCommand::Scan(args) => operations::scan(args, output),
        KvCommand::Watch(args) => watch::run(args, output),
        KvCommand::Lease(args) => lease::run(args, output),
        KvCommand::Save(args) => backup::save(args, output),
        KvCommand::Restore(args) => backup::restore(args, output),
        KvCommand::Export(args) => lines::export(args, output),
        KvCommand::Import(args) => lines::import(args, output),
        KvCommand::Status(args) => status::run(args, output),
        KvCommand::Member(args) => member::run(args, output),
        KvCommand::Transfer(args) => member::transfer(args, output),
        KvCommand::Sim(args) => sim::run(args, output),
        KvCommand::Chaos(args) => chaos::run(args, output),
        KvCommand::ChaosReplica(args) => chaos::serve_replica(args),
    }
}

/// A client of a cluster, and its endpoint.
struct Cluster {
    endpoint: Endpoint,
    client: KvClient,
    /// The addresses that `--servers` names.
    addresses: Vec<SocketAddr>,
}

impl Cluster {
    fn new(args: &ClusterArgs) -> Result<Self, Failure> {
        let mut addresses = Vec::new();
        for server in &args.servers {
            addresses.extend(server.resolve()?);
        }
        let is_far = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
        let mut endpoint = EndpointConfig::default();
        // If a replica is on another host, the data port must reach that host.
        let farthest = addresses.iter().find(is_far).or(addresses.first());
        endpoint.data_address = farthest.map(|address| data_address(address.ip()));
        endpoint.sessions.accept = false;
        // A user who names another host wants to call it, as in `Client::connect_to`.
        let reaches_far = addresses.iter().any(|address| is_far(&address));
        let nexus = credentials::apply(Nexus::builder(), reaches_far);
        let mut endpoint = nexus.start()?.endpoint(endpoint).map_err(Failure::because)?;
        let mut config = KvClientConfig::default();
        config.timeout = args.timeout;
        let client = KvClient::on(addresses.iter().copied(), config, |named, config| {
            endpoint.client(named, config)
        })
        .map_err(|error| failure_of(&error))?;
        Ok(Self { endpoint, client, addresses })
    }

    fn run<R>(
        &mut self,
        operation: impl AsyncFnOnce(&KvClient) -> Result<R, KvError>,
    ) -> Result<R, Failure> {
        let client = self.client.clone();
        self.endpoint.block_on(operation(&client)).map_err(|error| failure_of(&error))
    }
}

/// Returns the failure of a subcommand for an operation that failed.
fn failure_of(error: &KvError) -> Failure {
    let status = match error {
        KvError::InvalidArgument(_) => Status::InvalidArgument,
        KvError::Timeout { .. } => Status::DeadlineExceeded,
        KvError::Unavailable(_) => Status::Unavailable,
        KvError::Refused(_) => Status::FailedPrecondition,
        KvError::NoLease { .. } => Status::NotFound,
        KvError::Compacted { .. } => Status::OutOfRange,
        KvError::Protocol(_) => Status::Internal,
        _ => Status::Unknown,
    };
    Failure::new(status, error.to_string())
}
