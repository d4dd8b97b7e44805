//! Petrel, over UDP and over shared memory, polled and blocking. One session; one endpoint on
//! each side.

mod client;

use std::net::{IpAddr, Ipv4Addr};

use peers_common::{Failure, ServerArgs, Sink, args, ready};
use petrel::endpoint::AllowedTransports;
use petrel_proto::limits::{SLOTS_MAX, WINDOW_PACKETS};
use petrel::endpoint::{EndpointConfig, Handled, IdlePolicy};
use petrel::{Context, Nexus, Request};

const ECHO: u16 = 1;
const BULK: u16 = 2;

fn main() -> Result<(), Failure> {
    peers_common::run(serve, client::call)
}

/// The transport and the way to wait that a variant means.
fn variant(name: &str) -> Result<(AllowedTransports, IdlePolicy), Failure> {
    let (udp, shm) =
        (AllowedTransports { udp: true, shm: false }, AllowedTransports { udp: false, shm: true });
    match name {
        "udp" => Ok((udp, IdlePolicy::Poll)),
        "shm" => Ok((shm, IdlePolicy::Poll)),
        "udp-block" => Ok((udp, IdlePolicy::Block)),
        "shm-block" => Ok((shm, IdlePolicy::Block)),
        _ => Err(args::unknown(name)),
    }
}

/// What the endpoints of both sides have in common: room for 60 calls in flight, and for
/// requests of 8 MiB.
fn endpoint(name: &str) -> Result<EndpointConfig, Failure> {
    let mut config = EndpointConfig::default();
    (config.transports, config.idle) = variant(name)?;
    config.data_address = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    config.sessions.slots = SLOTS_MAX;
    config.sessions.credits = WINDOW_PACKETS as u16;
    config.memory.max_bytes = 1 << 30;
    Ok(config)
}

fn serve(args: ServerArgs) -> Result<(), Failure> {
    let (transports, _) = variant(&args.variant)?;
    let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).transports(transports).start()?;
    let mut server = nexus.endpoint(endpoint(&args.variant)?)?;
    server.on(ECHO, |_, cx, request| echo(cx, request));
    server.on(BULK, |_, cx, request| bulk(cx, request));
    ready(nexus.local_addr().ok_or("the server listens nowhere")?);
    server.run_until(|_, _| false);
    Ok(())
}

fn echo(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let length = request.data().len();
    request.reply_with(cx, length, |request, reply| {
        reply.copy_from_slice(request);
        length
    })
}

fn bulk(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let reply = Sink::reply_to(request.data());
    request.reply(cx, &reply)
}
