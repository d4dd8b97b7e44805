//! Petrel, over UDP and over shared memory, polled and blocking: one session, one endpoint on each side, with defaults else.

use peers_common::{
    BULK_BYTES, Bulk, ClientArgs, Failure, Meter, Outcome, REPLY_BYTES, SMALL_BYTES, ServerArgs,
    Sink, Workload, args, content, ready,
};
use petrel::endpoint::{AllowedTransports, EndpointConfig, IdlePolicy, SessionId};
use petrel::{Context, MsgBuf, Nexus};

const ECHO: u16 = 1;
const BULK: u16 = 2;

fn main() -> Result<(), Failure> {
    peers_common::run(serve, call)
}

fn config(variant: &str) -> Result<EndpointConfig, Failure> {
    let mut config = EndpointConfig::default();
    let (transport, idle) = match variant.split_once('-') {
        Some((transport, "block")) => (transport, IdlePolicy::Block),
        _ => (variant, IdlePolicy::Poll),
    };
    let (udp, shm) = (transport == "udp", transport == "shm");
    (config.transports, config.idle) = (AllowedTransports { udp, shm }, idle);
    if udp || shm { Ok(config) } else { Err(args::unknown(variant)) }
}

fn serve(args: ServerArgs) -> Result<(), Failure> {
    let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    let mut server = nexus.endpoint(config(&args.variant)?)?;
    server.on(ECHO, |_, cx, request| {
        let copy = |from: &[u8], to: &mut [u8]| {
            to.copy_from_slice(from);
            from.len()
        };
        request.reply_with(cx, SMALL_BYTES, copy)
    });
    server.on(BULK, |_, cx, request| {
        let reply = Sink::reply_to(request.data());
        request.reply(cx, &reply)
    });
    ready(nexus.local_addr().ok_or("the server listens nowhere")?);
    Ok(server.run_until(|_, _| false))
}

/// A window: calls in flight by lanes, each with its two buffers; those of large requests have their content, too.
struct Load {
    meter: Meter,
    session: Option<SessionId>,
    lanes: Vec<Option<Bulk>>,
}

fn call(args: ClientArgs) -> Result<Outcome, Failure> {
    let load = Load { meter: Meter::start(args.plan), session: None, lanes: Vec::new() };
    let mut client = Nexus::builder().start()?.endpoint_with(config(&args.variant)?, load)?;
    client.state_mut().session = Some(client.connect_wait(args.address.parse()?)?);
    let is_bulk = args.plan.workload == Workload::Bulk;
    let [bytes, room] = if is_bulk { [BULK_BYTES, REPLY_BYTES] } else { [SMALL_BYTES; 2] };
    for lane in 0..args.plan.in_flight {
        let (mut request, response) = (client.alloc(bytes)?, client.alloc(room)?);
        client.state_mut().lanes.push(is_bulk.then(|| Bulk::fill(&mut request)));
        client.with(|load, cx| next(load, cx, lane, request, response));
    }
    client.run_until(|load, _| load.meter.in_flight() == 0);
    Ok(client.into_state().meter.finish()?)
}

fn next(
    load: &mut Load,
    cx: &mut Context<'_, Load>,
    lane: usize,
    mut request: MsgBuf,
    response: MsgBuf,
) {
    let (Some(call), Some(session)) = (load.meter.begin(), load.session) else { return };
    let method = match &mut load.lanes[lane] {
        None => (request.copy_from_slice(&content::small(call)), ECHO).1,
        Some(bulk) => (bulk.stamp(&mut request, call), BULK).1,
    };
    let made = cx.call(session, method, request).into_buffer(response);
    let made = made.then(move |load, cx, reply| {
        let message = reply.message().expect("an answer");
        let bulk = load.lanes[lane].as_ref();
        let is_right =
            bulk.map_or_else(|| content::is_small(call, message), |bulk| bulk.is_reply(message));
        load.meter.end(call, is_right).expect("the right answer");
        next(load, cx, lane, reply.request, reply.response);
    });
    made.expect("a call that can be made");
}
