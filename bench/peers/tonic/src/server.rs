//! The server.

use std::pin::Pin;

use bytes::Bytes;
use peers_common::{Failure, ServerArgs, Sink, ready};
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use crate::bench::Payload;
use crate::bench::bench_server::{Bench, BenchServer};
use crate::{MESSAGE_BYTES_MAX, WINDOW_BYTES};

struct Service;

type Replies = Pin<Box<dyn Stream<Item = Result<Payload, Status>> + Send>>;

fn proof(request: &Payload) -> Payload {
    Payload { data: Bytes::copy_from_slice(&Sink::reply_to(&request.data)) }
}

#[tonic::async_trait]
impl Bench for Service {
    type EchoStreamStream = Streaming<Payload>;
    type BulkStreamStream = Replies;

    async fn echo(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    async fn bulk(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(proof(request.get_ref())))
    }

    async fn echo_stream(
        &self,
        requests: Request<Streaming<Payload>>,
    ) -> Result<Response<Streaming<Payload>>, Status> {
        Ok(Response::new(requests.into_inner()))
    }

    async fn bulk_stream(
        &self,
        requests: Request<Streaming<Payload>>,
    ) -> Result<Response<Replies>, Status> {
        let replies = requests.into_inner().map(|request| request.map(|request| proof(&request)));
        Ok(Response::new(Box::pin(replies)))
    }
}

pub(crate) async fn serve(_: ServerArgs) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    ready(listener.local_addr()?);
    let service = BenchServer::new(Service).max_decoding_message_size(MESSAGE_BYTES_MAX);
    Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .add_service(service)
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await?;
    Ok(())
}
