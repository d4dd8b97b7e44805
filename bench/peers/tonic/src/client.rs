//! The client, unary and on a stream.

use bytes::Bytes;
use peers_common::tasks::{self, Caller, Callers};
use peers_common::{ClientArgs, Failure, Outcome, Workload, args};
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::bench::Payload;
use crate::bench::bench_client::BenchClient;
use crate::{MESSAGE_BYTES_MAX, NAME, TLS, WINDOW_BYTES};

type Client = BenchClient<Channel>;

pub(crate) async fn call(args: ClientArgs) -> Result<Outcome, Failure> {
    let endpoint = match args.address.split_once(',') {
        None => Endpoint::try_from(format!("http://{}", args.address))?,
        Some((address, pem)) => {
            let digits = pem.as_bytes().chunks(2);
            let byte = |pair: &[u8]| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?);
            let pem = digits.map(byte).collect::<Result<Vec<u8>, Failure>>()?;
            let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
            let endpoint = Endpoint::try_from(format!("https://{address}"))?;
            endpoint.tls_config(tls.domain_name(NAME))?
        }
    };
    let channel = endpoint
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .connect()
        .await?;
    let client = BenchClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
    match args.variant.as_str() {
        "unary" | TLS => tasks::run(Unary(client), args.plan).await,
        "stream" => {
            let stream = Stream::open(client, args.plan.workload, args.plan.in_flight).await?;
            tasks::run(stream, args.plan).await
        }
        other => Err(args::unknown(other)),
    }
}

#[derive(Clone)]
struct Unary(Client);

impl Caller for Unary {
    type Reply = Bytes;

    async fn echo(&self, data: Bytes) -> Result<Bytes, Failure> {
        Ok(self.0.clone().echo(Payload { data }).await?.into_inner().data)
    }

    async fn bulk(&self, data: Bytes) -> Result<Bytes, Failure> {
        Ok(self.0.clone().bulk(Payload { data }).await?.into_inner().data)
    }
}

/// One stream. Replies arrive in the order of the calls.
#[derive(Clone)]
struct Stream {
    requests: mpsc::Sender<Payload>,
    callers: Callers,
}

impl Stream {
    async fn open(mut client: Client, workload: Workload, room: usize) -> Result<Self, Failure> {
        let (requests, receiver) = mpsc::channel(room);
        let receiver = ReceiverStream::new(receiver);
        let replies = match workload {
            Workload::Echo => client.echo_stream(receiver).await?,
            Workload::Bulk => client.bulk_stream(receiver).await?,
        };
        let stream = Self { requests, callers: Callers::default() };
        spawn_local(hand_out(replies.into_inner(), stream.callers.clone()));
        Ok(stream)
    }

    async fn call(&self, data: Bytes) -> Result<Bytes, Failure> {
        let receiver = self.callers.add();
        // The queue has room for all calls in flight, so `try_send` keeps the order of the callers.
        self.requests.try_send(Payload { data })?;
        Ok(receiver.await.map_err(|_| "the stream has ended")?)
    }
}

/// Passes replies to their callers. At the end of the stream the remaining callers are dropped, and get
/// an error.
async fn hand_out(mut replies: Streaming<Payload>, callers: Callers) {
    while let Ok(Some(reply)) = replies.message().await {
        if !callers.answer(reply.data) {
            break;
        }
    }
    callers.end();
}

impl Caller for Stream {
    type Reply = Bytes;

    async fn echo(&self, data: Bytes) -> Result<Bytes, Failure> {
        self.call(data).await
    }

    async fn bulk(&self, data: Bytes) -> Result<Bytes, Failure> {
        self.call(data).await
    }
}
