//! Aeron IPC: a pair of streams in shared memory, one per direction. Streams are not RPCs: the caller
//! tracks the calls. Client and server poll. The media driver runs in the server's process; messages do
//! not pass through it.

mod client;
mod server;

use std::ffi::CStr;
use std::time::Duration;

use peers_common::Failure;
use rusteron_media_driver::{Aeron, AeronExclusivePublication, AeronSubscription, Handlers};

const CHANNEL: &CStr = c"aeron:ipc";
const ECHO_STREAM: i32 = 1;
const BULK_STREAM: i32 = 2;
const REPLY_STREAM: i32 = 3;

/// Most fragments of one poll.
const FRAGMENTS_MAX: usize = 64;

/// Most time for the driver to set up a stream.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> Result<(), Failure> {
    peers_common::run(server::serve, client::call)
}

fn publication(aeron: &Aeron, stream: i32) -> Result<AeronExclusivePublication, Failure> {
    Ok(aeron.async_add_exclusive_publication(CHANNEL, stream)?.poll_blocking(PATIENCE)?)
}

fn subscription(aeron: &Aeron, stream: i32) -> Result<AeronSubscription, Failure> {
    let adding = aeron.async_add_subscription(CHANNEL, stream, Handlers::NONE, Handlers::NONE)?;
    Ok(adding.poll_blocking(PATIENCE)?)
}

/// Publishes a message, as soon as the stream has room.
#[inline]
fn offer(publication: &AeronExclusivePublication, message: &[u8]) -> Result<(), Failure> {
    loop {
        match publication.offer(message) {
            Ok(_) => return Ok(()),
            Err(error) if error.is_retryable() => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
}
