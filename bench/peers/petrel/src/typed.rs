//! A typed service whose messages are protobuf's, of 35 bytes as tonic's: calls, and a stream whose replies come in the order of the requests.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use peers_common::Failure;
use peers_common::tasks::{Caller, Callers};
use petrel::service::{Ctx, Prost};
use petrel::stream::{Receiver, Sender};
use petrel::{Client, Context, Endpoint, Error};
use tokio::task::spawn_local;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Payload {
    #[prost(bytes = "bytes", tag = "16")]
    data: Bytes,
}

#[petrel::service(codec = Prost)]
trait Bench {
    /// The request comes back.
    #[dispatch]
    fn echo(&self, cx: &mut Context<'_>, request: Payload) -> Result<Payload, Error>;
    /// The requests come back.
    async fn echo_stream(
        &self,
        cx: &Ctx,
        requests: Receiver<Payload>,
        replies: Sender<Payload>,
    ) -> Result<(), Error>;
}

struct Echo;

impl Bench for Echo {
    fn echo(&self, _: &mut Context<'_>, request: Payload) -> Result<Payload, Error> {
        Ok(request)
    }

    async fn echo_stream(
        &self,
        _: &Ctx,
        mut requests: Receiver<Payload>,
        mut replies: Sender<Payload>,
    ) -> Result<(), Error> {
        while let Some(request) = requests.next().await {
            replies.send(request?).await?;
        }
        Ok(())
    }
}

pub(crate) fn serve(server: &mut Endpoint) {
    server.serve(BenchServer::new(Echo));
}

/// A client of the service.
#[derive(Clone)]
pub(crate) struct Unary(BenchClient);

impl Unary {
    pub(crate) fn new(client: Client) -> Self {
        Self(BenchClient::new(client))
    }
}

impl Caller for Unary {
    type Reply = Bytes;

    async fn echo(&self, data: Bytes) -> Result<Bytes, Failure> {
        Ok(self.0.echo(Payload { data }).await?.data)
    }

    async fn bulk(&self, _: Bytes) -> Result<Bytes, Failure> {
        Err("small messages alone".into())
    }
}

/// One stream. Replies arrive in the order of the calls.
#[derive(Clone)]
pub(crate) struct Stream {
    requests: Rc<RefCell<Sender<Payload>>>,
    callers: Callers,
}

impl Stream {
    pub(crate) async fn open(client: Client) -> Result<Self, Failure> {
        let (requests, replies) = BenchClient::new(client).echo_stream().start().await?;
        let stream =
            Self { requests: Rc::new(RefCell::new(requests)), callers: Callers::default() };
        spawn_local(hand_out(replies, stream.callers.clone()));
        Ok(stream)
    }
}

/// Passes replies to their callers. At the end of the stream the remaining callers are dropped, and get an error.
async fn hand_out(mut replies: Receiver<Payload>, callers: Callers) {
    while let Some(Ok(reply)) = replies.next().await {
        if !callers.answer(reply.data) {
            break;
        }
    }
    callers.end();
}

impl Caller for Stream {
    type Reply = Bytes;

    async fn echo(&self, data: Bytes) -> Result<Bytes, Failure> {
        let receiver = self.callers.add();
        // The window has room for all calls in flight, so `try_send` keeps the order of the callers.
        let sent = self.requests.borrow_mut().try_send(Payload { data });
        sent.map_err(|error| error.to_string())?;
        Ok(receiver.await.map_err(|_| "the stream has ended")?)
    }

    async fn bulk(&self, _: Bytes) -> Result<Bytes, Failure> {
        Err("small messages alone".into())
    }
}
