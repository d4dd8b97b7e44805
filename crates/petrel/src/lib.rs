//! Petrel: datacenter RPC in microseconds, over plain UDP and shared memory, without special hardware, root, or set-up.
//!
//! A server registers handlers, and a client calls, from any thread. A [typed service](mod@service) is a trait; here, a method is a number,
//! and messages are bytes:
//!
//! ```
//! use petrel::{Client, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const GREET: u16 = 1;
//!
//! let server = Server::bind("127.0.0.1:0").serve(|_| (), |endpoint| {
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
//! [The guide](https://github.com/petrel-rpc/petrel/blob/main/docs/guide.md) continues from here to a service between
//! two hosts, and explains the handling of each failure.
//!
//! | type | purpose |
//! | --- | --- |
//! | [`Server`] | threads with an endpoint each, drained when the process gets a signal |
//! | [`Client`] | calls to a service, at any of its servers, from any thread and any executor: reconnects, retries, hedges |
//! | [`Nexus`] | one per process: the control plane, in its own thread |
//! | [`Endpoint`] | one per thread: event loop, handlers, sessions, calls |
//! | [`Context`] | an endpoint as handlers and continuations see it: for nested calls |
//! | [`Request`] | a handler's argument, to be answered at once or later |
//! | [`Reply`] | the outcome of a call, the argument of its continuation |
//! | [`MsgBuf`] | message memory: moved into a call, returned by its [`Reply`] |
//! | [`Error`], [`Status`], [`Execution`] | how a call failed, and whether it may have been executed |
//!
//! | module | contents |
//! | --- | --- |
//! | [`client`] | threads of clients, their settings, targets, calls and counters |
//! | [`server`] | setting up, running and ending a server |
//! | [`service`](mod@service) | typed services: a trait whose methods clients call |
//! | [`stream`] | streams of typed services: many messages in one call |
//! | [`endpoint`] | settings, sessions, handlers, calls with continuations, buffers |
//! | [`task`] | futures on an endpoint's own thread: handles, sessions, calls, tasks |
//! | [`workers`] | threads for long handlers; requests that any thread can own |
//! | [`group`] | calls to a group of sessions: all, a quorum, or any |
//! | [`nexus`] | settings and counters of the control plane |
//! | [`region`] | memory that clients read and write without a handler |
//! | [`testing`] | a server and its client in one process, without a network |
//! | [`overload`] | limits, budgets and pauses of clients and workers |
//! | [`unstable`] | for simulators and experiments |
//!
//! **Guarantees.** A handler runs at most once for each call, whatever the network loses, repeats, delays or reorders.
//! Every call ends: with the response, or with a gRPC status code and the information whether it may have been
//! executed. Nothing is retried behind the caller's back once the outcome is unknown.
//!
//! **Observability.** Each reason to refuse, drop or end something has a counter ([`Endpoint::stats`],
//! [`Nexus::stats`], [`Client::stats`]; `petrel stats` from outside). With the cargo feature `tracing`, connections,
//! links, sessions and failed calls report their reasons as events, too.
//!
//! **Security.** Without [credentials](nexus::NexusBuilder::credentials) or [`insecure`](nexus::NexusBuilder::insecure) a nexus listens on
//! and connects to loopback only.
//!
//! **Limitations.** Congestion is detected by ECN marks of switches and by heavy loss, unless a
//! controller based on round trips is set. Endpoints stay on their thread; data for other threads is
//! copied. Retries and hedging exist only in a [`Client`].

#[cfg(test)]
#[macro_use]
extern crate petrel_planted;

pub mod client;
mod control;
pub mod endpoint;
mod error;
mod events;
pub mod group;
mod inbox;
mod inbox_message;
mod local;
mod look;
#[cfg(shuttle)]
#[doc(hidden)]
pub mod model;
mod msgbuf;
mod names;
pub mod nexus;
pub mod overload;
mod panics;
pub mod region;
mod region_memory;
#[cfg(test)]
#[allow(unreachable_pub, reason = "the file is that of other crates, too")]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod runtime;
pub mod security;
pub mod server;
pub mod service;
mod slot_shares;
mod source;
pub mod stream;
mod sync;
mod tables;
pub mod task;
// Its threads and wakers are those of the system, without a model checker.
#[cfg(not(shuttle))]
pub mod testing;
mod time;
pub mod unstable;
mod values;
pub mod workers;

pub use client::Client;
pub use endpoint::{Context, Endpoint, Reply, Request};
pub use error::Error;
pub use msgbuf::MsgBuf;
pub use nexus::Nexus;
pub use petrel_macros::service;
pub use petrel_proto::{Execution, Status};
pub use server::Server;
pub use time::Time;

/// The attribute `service` in the tests of this crate.
#[cfg(test)]
extern crate self as petrel;

/// Its programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide.md")]
struct Guide;

/// Its program is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Its programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;

/// Its program is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/batched.md")]
struct BatchedDocument;

/// Its program is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/regions.md")]
struct RegionsDocument;
