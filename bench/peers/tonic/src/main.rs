//! tonic: gRPC in Rust, over one connection, without TLS or with it. Unary calls, or a stream with replies in the
//! order of the requests.

mod client;
mod server;

use peers_common::{BULK_BYTES, Failure, tasks};

/// The generated code.
mod bench {
    #![allow(missing_docs)]
    tonic::include_proto!("bench");
}

/// Additional bytes of a message beside a bulk request.
const MESSAGE_BYTES_MAX: usize = BULK_BYTES + 4096;

/// Flow control windows of streams and connections: with the default of 64 KiB, every bulk request would
/// wait for window updates.
const WINDOW_BYTES: u32 = 32 << 20;

/// The variant with TLS, and the name of its certificate.
const TLS: &str = "tls";
const NAME: &str = "localhost";

fn main() -> Result<(), Failure> {
    peers_common::run(
        |args| tasks::block_on(server::serve(args)),
        |args| tasks::block_on(client::call(args)),
    )
}
