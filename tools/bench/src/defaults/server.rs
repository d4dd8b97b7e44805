//! The server's process: as the README has it.

use std::sync::Arc;
use std::time::Duration;

use petrel::endpoint::IdlePolicy;
use petrel::server::ServerThread;
use petrel::{Endpoint, Server};
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_command::output::Output;

use super::args::DefaultsServerArgs;
use super::client::{CALL_BYTES, cpu_ns, spin};
use super::{CPU, ECHO, HEAD, Ready, WORK};
use crate::measure::process::end_with_parent;

/// Serves until the process is killed, at the latest when its parent has ended.
pub(crate) fn run(args: &DefaultsServerArgs, output: Output) -> Result<(), Failure> {
    end_with_parent()?;
    let mut server = Server::bind("127.0.0.1:0").threads(args.threads);
    if args.poll {
        server = server.idle(IdlePolicy::Poll);
    }
    if args.block {
        server = server.idle(IdlePolicy::Block);
    }
    if let Some(security) = credentials::get() {
        server = server.credentials(Arc::clone(security));
    }
    let running = server.serve(|_: ServerThread| (), set_up).start()?;
    output.record(&Ready { address: running.local_addr() })?;
    loop {
        std::thread::park();
    }
}

fn set_up(endpoint: &mut Endpoint) {
    endpoint.on(ECHO, |_, cx, request| {
        let message = request.data().to_vec();
        request.reply(cx, &message)
    });
    endpoint.on(HEAD, |_, cx, request| {
        let head = request.data().first_chunk::<CALL_BYTES>().copied().unwrap_or_default();
        request.reply(cx, &head)
    });
    endpoint.on(CPU, |_, cx, request| request.reply(cx, &cpu_ns().to_le_bytes()));
    endpoint.on(WORK, |_, cx, request| {
        let message = request.data().to_vec();
        let time = message.first_chunk().map_or(0, |time| u64::from_le_bytes(*time));
        spin(Duration::from_nanos(time.min(1_000_000_000)));
        request.reply(cx, &message)
    });
}
