//! Cap'n Proto RPC over one TCP connection without TLS.

use std::rc::Rc;

use bytes::Bytes;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, new_client, twoparty::VatNetwork};
use futures::io::{BufReader, BufWriter};
use peers_common::tasks::{self, Caller};
use peers_common::{ClientArgs, Failure, Outcome, REPLY_BYTES, ServerArgs, Sink, ready};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use crate::bench_capnp::bench::{self, Client};

/// The generated code.
#[allow(missing_docs, clippy::all, clippy::unimplemented)]
mod bench_capnp {
    include!(concat!(env!("OUT_DIR"), "/bench_capnp.rs"));
}

/// Buffers of the connection on either side, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

type Network = VatNetwork<BufReader<Compat<OwnedReadHalf>>>;

struct Service;

impl bench::Server for Service {
    async fn echo(
        self: Rc<Self>,
        params: bench::EchoParams,
        mut results: bench::EchoResults,
    ) -> Result<(), capnp::Error> {
        results.get().set_data(params.get()?.get_data()?);
        Ok(())
    }

    async fn bulk(
        self: Rc<Self>,
        params: bench::BulkParams,
        mut results: bench::BulkResults,
    ) -> Result<(), capnp::Error> {
        results.get().set_data(&Sink::reply_to(params.get()?.get_data()?));
        Ok(())
    }
}

#[derive(Clone)]
struct Connection(Client);

impl Caller for Connection {
    type Reply = [u8; REPLY_BYTES];

    async fn echo(&self, request: Bytes) -> Result<Self::Reply, Failure> {
        let mut call = self.0.echo_request();
        call.get().set_data(&request);
        let reply = call.send().promise.await?;
        Ok(reply.get()?.get_data()?.try_into()?)
    }

    async fn bulk(&self, request: Bytes) -> Result<Self::Reply, Failure> {
        let mut call = self.0.bulk_request();
        call.get().set_data(&request);
        let reply = call.send().promise.await?;
        Ok(reply.get()?.get_data()?.try_into()?)
    }
}

fn main() -> Result<(), Failure> {
    peers_common::run(|args| tasks::block_on(serve(args)), |args| tasks::block_on(call(args)))
}

fn network(stream: TcpStream, side: Side) -> Result<Box<Network>, Failure> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    let reader = BufReader::with_capacity(BUFFER_BYTES, reader.compat());
    let writer = BufWriter::with_capacity(BUFFER_BYTES, writer.compat_write());
    Ok(Box::new(VatNetwork::new(reader, writer, side, Default::default())))
}

async fn serve(_: ServerArgs) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    ready(listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let service: Client = new_client(Service);
        spawn_local(RpcSystem::new(network(stream, Side::Server)?, Some(service.client)));
    }
}

async fn call(args: ClientArgs) -> Result<Outcome, Failure> {
    let stream = TcpStream::connect(&args.address).await?;
    let mut system = RpcSystem::new(network(stream, Side::Client)?, None);
    let client = system.bootstrap(Side::Server);
    spawn_local(system);
    tasks::run(Connection(client), args.plan).await
}
