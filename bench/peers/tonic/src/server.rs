//! The server.

use std::pin::Pin;

use bytes::Bytes;
use peers_common::{Failure, ServerArgs, Sink, ready};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::bench::Payload;
use crate::bench::bench_server::{Bench, BenchServer};
use crate::{MESSAGE_BYTES_MAX, NAME, TLS, WINDOW_BYTES};

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

pub(crate) async fn serve(args: ServerArgs) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut server = Server::builder();
    if args.variant == TLS {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([NAME.to_owned()])?;
        let identity = Identity::from_pem(cert.pem(), signing_key.serialize_pem());
        server = server.tls_config(ServerTlsConfig::new().identity(identity))?;
        let pem: String = cert.pem().bytes().map(|byte| format!("{byte:02x}")).collect();
        ready(format!("{address},{pem}"));
    } else {
        ready(address);
    }
    let service = BenchServer::new(Service).max_decoding_message_size(MESSAGE_BYTES_MAX);
    server
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .add_service(service)
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await?;
    Ok(())
}
