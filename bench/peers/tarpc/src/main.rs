//! tarpc over TCP with bincode. Payloads are `Bytes`, which bincode writes in one piece; a `Vec<u8>`
//! would be written byte by byte.

use bytes::Bytes;
use futures::StreamExt;
use peers_common::tasks::{self, Caller};
use peers_common::{BULK_BYTES, ClientArgs, Failure, Outcome, ServerArgs, Sink, ready};
use tarpc::serde_transport::tcp;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context};

/// Additional bytes of a frame beside a bulk request.
const FRAME_BYTES_MAX: usize = BULK_BYTES + 4096;

#[tarpc::service]
trait Bench {
    async fn echo(request: Bytes) -> Bytes;
    async fn bulk(request: Bytes) -> Bytes;
}

#[derive(Clone)]
struct Server;

impl Bench for Server {
    async fn echo(self, _: context::Context, request: Bytes) -> Bytes {
        request
    }

    async fn bulk(self, _: context::Context, request: Bytes) -> Bytes {
        Bytes::copy_from_slice(&Sink::reply_to(&request))
    }
}

#[derive(Clone)]
struct Client(BenchClient);

impl Caller for Client {
    type Reply = Bytes;

    async fn echo(&self, request: Bytes) -> Result<Bytes, Failure> {
        Ok(self.0.echo(context::current(), request).await?)
    }

    async fn bulk(&self, request: Bytes) -> Result<Bytes, Failure> {
        Ok(self.0.bulk(context::current(), request).await?)
    }
}

fn main() -> Result<(), Failure> {
    peers_common::run(|args| tasks::block_on(serve(args)), |args| tasks::block_on(call(args)))
}

async fn serve(_: ServerArgs) -> Result<(), Failure> {
    let mut listener = tcp::listen("127.0.0.1:0", Bincode::default).await?;
    listener.config_mut().max_frame_length(FRAME_BYTES_MAX);
    ready(listener.local_addr());
    while let Some(connection) = listener.next().await {
        let connection = connection?;
        connection.get_ref().set_nodelay(true)?;
        let requests = BaseChannel::with_defaults(connection).execute(Server.serve());
        tokio::spawn(requests.for_each(|request| async {
            tokio::spawn(request);
        }));
    }
    Ok(())
}

async fn call(args: ClientArgs) -> Result<Outcome, Failure> {
    let mut connecting = tcp::connect(args.address, Bincode::default);
    connecting.config_mut().max_frame_length(FRAME_BYTES_MAX);
    let connection = connecting.await?;
    connection.get_ref().set_nodelay(true)?;
    let client = BenchClient::new(client::Config::default(), connection).spawn();
    tasks::run(Client(client), args.plan).await
}
