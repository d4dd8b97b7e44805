//! iceoryx2 request-response over shared memory. Client and server poll: the calls do not block, and
//! waiting for events would cost a wake-up per direction.
//!
//! Bulk requests are `copied` into the lent memory, as by an application with its data elsewhere. Or
//! requests are `lent`: the application builds requests in the lent memory, and writes only the changing
//! words.

mod client;
mod server;

use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::request_response::PortFactory;
use peers_common::{Failure, REPLY_BYTES, SMALL_BYTES};

/// Small requests, and all replies.
type Small = [u8; SMALL_BYTES];
const _: () = assert!(SMALL_BYTES == REPLY_BYTES);

type EchoService = PortFactory<ipc::Service, Small, (), Small, ()>;
type BulkService = PortFactory<ipc::Service, [u8], (), Small, ()>;

const ACTIVE_REQUESTS: usize = 64;
const ACTIVE_BULK_REQUESTS: usize = 8;

fn main() -> Result<(), Failure> {
    set_log_level_from_env_or(LogLevel::Error);
    peers_common::run(server::serve, client::call)
}

/// Creates a node with separate files per server, removed together with the scratch directory.
fn node(directory: &str) -> Result<Node<ipc::Service>, Failure> {
    let mut config = Config::default();
    config.global.set_root_path(&Path::new(directory.as_bytes())?);
    Ok(NodeBuilder::new().config(&config).create::<ipc::Service>()?)
}

fn echo_service(node: &Node<ipc::Service>) -> Result<EchoService, Failure> {
    let service = node.service_builder(&"peers/echo".try_into()?);
    Ok(service
        .request_response::<Small, Small>()
        .max_active_requests_per_client(ACTIVE_REQUESTS)
        .max_loaned_requests(ACTIVE_REQUESTS)
        .open_or_create()?)
}

fn bulk_service(node: &Node<ipc::Service>) -> Result<BulkService, Failure> {
    let service = node.service_builder(&"peers/bulk".try_into()?);
    Ok(service
        .request_response::<[u8], Small>()
        .max_active_requests_per_client(ACTIVE_BULK_REQUESTS)
        .max_loaned_requests(ACTIVE_BULK_REQUESTS)
        .open_or_create()?)
}
