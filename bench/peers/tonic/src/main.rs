//! tonic: gRPC in Rust, over one connection without TLS. Unary calls, or one stream on which
//! requests follow each other and replies come in their order.

mod client;
mod server;

use peers_common::{BULK_BYTES, Failure, tasks};

/// The generated code.
mod bench {
    #![allow(missing_docs)]
    tonic::include_proto!("bench");
}

/// Room in a message beside a bulk request.
const MESSAGE_BYTES_MAX: usize = BULK_BYTES + 4096;

/// Flow control windows of streams and connections: those by default, 64 KiB, would wait for the
/// other side during each bulk request.
const WINDOW_BYTES: u32 = 32 << 20;

fn main() -> Result<(), Failure> {
    peers_common::run(
        |args| tasks::block_on(server::serve(args)),
        |args| tasks::block_on(client::call(args)),
    )
}
