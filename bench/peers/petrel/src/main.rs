//! Petrel, over UDP and over shared memory, polled and blocking: a session, and an endpoint per side,
//! otherwise with defaults. The variants that begin with `client` have a `Client` in place of the session, called by tasks
//! as tarpc's and tonic's clients are, and nothing else set but the transport. The variants that begin with `sealed` have credentials. Those
//! of `prost` are such clients of a typed service, and those of `messages` have its stream.

mod sealed;
mod typed;

use bytes::Bytes;
use peers_common::tasks::{self, Caller};
use peers_common::{
    Bulk, ClientArgs, Failure, Meter, Outcome, Plan, REPLY_BYTES, SMALL_BYTES, ServerArgs, Sink,
    Workload, content, ready,
};
use petrel::client::Response;
use petrel::endpoint::{EndpointConfig, SessionId};
use petrel::{Client, Context, MsgBuf, Nexus};

fn main() -> Result<(), Failure> {
    peers_common::run(serve, |args| match transport_of_client(&args.variant).is_some() {
        true => tasks::block_on(call_by_tasks(args)),
        false => call(args),
    })
}

/// Begin the names of variants with a `Client`: of calls by number, of typed calls, and of messages on a stream.
const CLIENT: &str = "client-";
const PROST: &str = "prost-";
const MESSAGES: &str = "messages-";

/// Returns the transport of a variant with a `Client`.
fn transport_of_client(variant: &str) -> Option<&str> {
    [CLIENT, PROST, MESSAGES].into_iter().find_map(|kind| plain(variant).strip_prefix(kind))
}

/// Begins the name of a variant with credentials.
const SEALED: &str = "sealed-";

/// Returns the name of the variant with the same settings without credentials.
fn plain(variant: &str) -> &str {
    variant.strip_prefix(SEALED).unwrap_or(variant)
}

fn config(variant: &str) -> Result<EndpointConfig, Failure> {
    let mut config = EndpointConfig::default();
    if let Some(transport) = transport_of_client(variant) {
        config.transports = transport.parse()?;
        return Ok(config);
    }
    let variant = plain(variant);
    let (transport, idle) = variant.split_once('-').unwrap_or((variant, "poll"));
    (config.transports, config.idle) = (transport.parse()?, idle.parse()?);
    Ok(config)
}

fn serve(args: ServerArgs) -> Result<(), Failure> {
    let builder = Nexus::builder().listen("127.0.0.1:0".parse()?);
    let (builder, credentials) = match args.variant.starts_with(SEALED) {
        true => {
            let (credentials, words) = sealed::issue()?;
            (builder.credentials(credentials), words)
        }
        false => (builder, String::new()),
    };
    let nexus = builder.start()?;
    let mut server = nexus.endpoint(config(&args.variant)?)?;
    server.on(Workload::Echo as u16, |_, cx, request| {
        let small: [u8; SMALL_BYTES] = request.data().try_into().expect("a small request");
        request.reply(cx, &small)
    });
    server.on(Workload::Bulk as u16, |_, cx, request| {
        let reply = Sink::reply_to(request.data());
        request.reply(cx, &reply)
    });
    typed::serve(&mut server);
    let address = nexus.local_addr().ok_or("the server listens nowhere")?;
    ready(format!("{address}{credentials}"));
    server.run_until(|_, _| false);
    Ok(())
}

/// A client that tasks call.
#[derive(Clone)]
struct TaskCaller(Client);

impl Caller for TaskCaller {
    type Reply = Response;

    async fn echo(&self, request: Bytes) -> Result<Response, Failure> {
        Ok(self.0.call(Workload::Echo as u16, &*request).await?)
    }

    async fn bulk(&self, request: Bytes) -> Result<Response, Failure> {
        Ok(self.0.call(Workload::Bulk as u16, &*request).await?)
    }
}

async fn call_by_tasks(args: ClientArgs) -> Result<Outcome, Failure> {
    let client = Client::builder().transports(config(&args.variant)?.transports);
    let (address, credentials) = sealed::read(&args.address)?;
    let client = match credentials {
        Some(credentials) => client.credentials(credentials),
        None => client,
    };
    let client = client.connect(address.to_owned()).await?;
    match &args.variant {
        variant if variant.starts_with(PROST) => {
            tasks::run(typed::Unary::new(client), args.plan).await
        }
        variant if variant.starts_with(MESSAGES) => {
            tasks::run(typed::Stream::open(client).await?, args.plan).await
        }
        _ => tasks::run(TaskCaller(client), args.plan).await,
    }
}

/// A window: the lanes of the calls in flight; lanes of bulk requests have the state of their content.
struct Load {
    meter: Meter,
    lanes: Vec<(SessionId, Option<Bulk>)>,
}

fn call(args: ClientArgs) -> Result<Outcome, Failure> {
    let load = Load { meter: Meter::start(args.plan), lanes: Vec::new() };
    let (address, credentials) = sealed::read(&args.address)?;
    let builder = match credentials {
        Some(credentials) => Nexus::builder().credentials(credentials),
        None => Nexus::builder(),
    };
    let mut client = builder.start()?.endpoint_with(config(&args.variant)?, load)?;
    let session = client.connect_wait(address.parse()?)?;
    let Plan { workload, in_flight, .. } = args.plan;
    for lane in 0..in_flight {
        let mut buffers = [client.alloc(workload.request_bytes())?, client.alloc(REPLY_BYTES)?];
        let bulk = (workload == Workload::Bulk).then(|| Bulk::fill(&mut buffers[0]));
        client.state_mut().lanes.push((session, bulk));
        client.with(|load, cx| next(load, cx, lane, buffers));
    }
    client.run_until(|load, _| load.meter.in_flight() == 0);
    Ok(client.into_state().meter.finish()?)
}

/// Begins a lane's next call, unless the time is over.
fn next(load: &mut Load, cx: &mut Context<'_, Load>, lane: usize, buffers: [MsgBuf; 2]) {
    let Some(call) = load.meter.begin() else { return };
    let ([mut request, response], (to, bulk)) = (buffers, &mut load.lanes[lane]);
    let ((), method) = match bulk {
        None => (request.copy_from_slice(&content::small(call)), Workload::Echo as u16),
        Some(bulk) => (bulk.stamp(&mut request, call), Workload::Bulk as u16),
    };
    let made = cx.call(*to, method, request).into_buffer(response).then(move |load, cx, reply| {
        let message = reply.message().expect("an answer");
        let small = || content::is_small(call, message);
        let is_right =
            load.lanes[lane].1.as_ref().map_or_else(small, |bulk| bulk.is_reply(message));
        load.meter.end(call, is_right).expect("the right answer");
        next(load, cx, lane, [reply.request, reply.response]);
    });
    made.expect("a call that can be made");
}
