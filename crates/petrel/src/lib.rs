//! Petrel: datacenter RPC in microseconds, over plain UDP and shared memory, without special
//! hardware, root, or set-up.
//!
//! A server registers handlers by method number, and a client calls, from any thread:
//!
//! ```
//! use petrel::{Client, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const GREET: u16 = 1;
//!
//! let server = Server::bind("127.0.0.1:0").serve(|| (), |endpoint| {
//!     endpoint.on(GREET, |_, cx, request| {
//!         let name = String::from_utf8_lossy(request.data()).into_owned();
//!         request.reply(cx, format!("Hello, {name}!").as_bytes())
//!     });
//! });
//! let server = server.start()?;                             // or server.run(), until SIGTERM
//!
//! let client = Client::connect_wait(server.local_addr())?;  // or Client::connect("localhost:31850").await
//! let reply = client.call(GREET, "petrel").wait()?;         // or .await, in any executor
//! assert_eq!(reply, b"Hello, petrel!");
//! # Ok(())
//! # }
//! ```
//!
//! [The guide](https://github.com/petrel-rpc/petrel/blob/main/docs/guide.md) goes from here to a service
//! between two hosts, and tells what happens in each failure.
//!
//! | type | what it is |
//! | --- | --- |
//! | [`Server`] | threads that serve, with an endpoint each, and drain when the process is asked to end |
//! | [`Nexus`] | one per process: the control plane, in a thread of its own |
//! | [`Endpoint`] | one per thread: event loop, handlers, sessions, calls. [`EndpointConfig`] sets it up |
//! | [`SessionId`] | a session, on which a client calls one server endpoint |
//! | [`MsgBuf`] | message memory: given to a call by value, given back by its [`Reply`] |
//! | [`SharedMsg`] | a message that is sent to many without a copy for each |
//! | [`group::Group`] | sessions that are called together: all, a quorum, or any |
//! | [`Request`], [`Responder`] | what a handler gets, and how it answers at once or later |
//! | [`Session`], [`Call`], [`Handle`] | the same as futures, on the endpoint's own thread |
//! | [`CallOptions`] | a call's deadline, and whether it may be executed twice |
//! | [`Workers`], [`WorkerRequest`] | threads that run handlers which take long; a request that any thread can have |
//! | [`Client`] | calls to a service, at whichever of its servers, from any thread and any executor: reconnects, retries, hedges |
//! | [`Context`] | an endpoint as handlers and continuations see it: for nested calls |
//! | [`Error`], [`Status`], [`Execution`] | how a call failed, and whether it may have been executed |
//!
//! **What is promised.** A handler runs at most once for each call, whatever the network loses,
//! repeats, delays or reorders. Every call ends: with the response, or with a gRPC status code and
//! the word whether it may have been executed. Nothing is retried behind the caller's back once the
//! outcome is unknown.
//!
//! **What can be seen.** Each reason for which something is refused, dropped or ended has a counter
//! ([`Endpoint::stats`], [`Nexus::stats`], [`Client::stats`]; `petrel stats` from outside). With the cargo
//! feature `tracing`, connections, links, sessions and failed calls tell their reasons as events, too.
//!
//! **What it does not do yet.** No encryption: without [`NexusBuilder::insecure`] a nexus listens on
//! and connects to loopback only. Congestion is noticed by marks of switches and by heavy loss, unless a
//! control that goes by round trips is set. No streaming.
//! Endpoints stay on their thread; what crosses to others is copied. Retries and hedging are a [`Client`]'s.

pub mod client;
pub mod control;
mod endpoint;
mod error;
mod events;
pub mod group;
mod inbox;
mod local;
#[cfg(shuttle)]
#[doc(hidden)]
pub mod model;
mod msgbuf;
pub mod nexus;
pub mod overload;
mod post;
mod prefetch;
pub mod server;
mod sync;
mod time;
mod workers;

pub use client::{Client, ClientConfig, ClientStats, Target};
pub use endpoint::{
    CallBuilder, CallFailures, CallKey, CallOptions, CallRejected, Callee, Caller, ClientCalls,
    ConnectError, Context, Continuation, DrainTimeout, Endpoint, EndpointConfig, EndpointError,
    EndpointStats, Factors, HEALTH_METHOD, Handled, Health, Hearing, IdlePolicy, InPlaceRequest,
    IntoMessage, MulticastConfig, MulticastError, Peer, Reply, Request, Responder, SessionConfig,
    SessionEnd, SessionEnds, SessionState, SharedMsg, StartError, Stop,
};
#[doc(hidden)]
pub use endpoint::{Census, LocalCensus};
pub use error::Error;
pub use local::{
    Call, Elapsed, Handle, OwnRequest, Parallel, Session, SessionCall, Sleep, Task, Timeout,
};
pub use msgbuf::MsgBuf;
pub use nexus::{Nexus, NexusBuilder, NexusError};
pub use petrel_proto as proto;
pub use petrel_proto::{CallError, Execution, SessionId, Status};
pub use petrel_transport as transport;
pub use petrel_transport::{PeerProcess, SharedBytes};
pub use prefetch::prefetch;
pub use server::Server;
pub use workers::{WorkerRequest, Workers, WorkersBuilder, WorkersStats};

/// Its programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide.md")]
struct Guide;
