//! Typed services: a trait of the application, whose methods clients call by name.
//!
//! The attribute [`service`](macro@crate::service) makes three types of a trait: a client, a server, and the table of the
//! methods.
//!
//! ```
//! use petrel::service::{Ctx, Raw};
//! use petrel::{Error, Server};
//!
//! #[petrel::service(codec = Raw)]
//! trait Greeter {
//!     async fn hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
//! }
//!
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn hello(&self, _: &Ctx, name: String) -> Result<String, Error> {
//!         Ok(format!("Hello, {name}!"))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::bind("127.0.0.1:0").serve(|_| (), |endpoint| endpoint.serve(GreeterServer::new(Polite)));
//! let server = server.start()?;
//! let client = GreeterClient::connect_wait(server.local_addr())?;
//! assert_eq!(client.hello("petrel".to_owned()).wait()?, "Hello, petrel!");
//! # Ok(())
//! # }
//! ```
//!
//! # The trait
//!
//! | method | runs | its context |
//! | --- | --- | --- |
//! | `async fn` | as a task on the endpoint's thread | [`&Ctx`](Ctx) |
//! | `#[dispatch] fn` | in the event loop: for microseconds at most | [`&mut Context<'_>`](crate::Context) |
//! | `#[worker] fn` | on a thread of [`Workers`](crate::workers::Workers), which the server's `new` takes | [`&WorkerRequest`](crate::workers::WorkerRequest) |
//!
//! A method has a context, a request and a `Result` with the reply and an [`Error`](crate::Error). A request that is a reference is read in
//! place ([`Read`]): out of the receive buffer, or out of a message that a handler in the event loop keeps, unless the request is large.
//!
//! `#[idempotent]` declares that calls may run twice: the declaration of the server's version counts. `#[name = "GetURL"]` sets the name in the table,
//! `GetUrl` otherwise. `#[id(7)]` sets the number of a method, which other languages and raw calls may use, below 4 096 or from 20 480 to 64 999.
//! Without an id, the server chooses a number by the name, and the client learns the number.
//!
//! # The attribute
//!
//! | argument | meaning | default |
//! | --- | --- | --- |
//! | `codec = Raw` | the codec of requests and replies | `Postcard`, with the cargo feature of the name |
//! | `name = "greeter.Greeter"` | the name of the service | the name of the trait |
//! | `version = "2"` | the version, for people | the version of the crate |
//! | `descriptors = include_bytes!(…)` | the `FileDescriptorSet` of the messages, for tools | none; `petrel-build` sets it |
//!
//! # Versions
//!
//! A client reads the tables of each server once per session. A method that the server lacks, or has with other messages, ends calls with
//! UNIMPLEMENTED, and the error names both versions. With several servers, calls go to those that have the method.
//!
//! # Metadata, details and interceptors
//!
//! Calls and replies may have [`Metadata`] beside their messages: [`Call::metadata`](crate::client::Call::metadata), `cx.metadata()`,
//! `cx.reply_metadata(…)`, and [`Call::with_reply_metadata`](crate::client::Call::with_reply_metadata). Errors may have [details](Detail) for programs. `with`
//! of a client or server adds a [`ClientInterceptor`] or [`ServerInterceptor`]; without any, calls and handlers are as if interceptors did not exist.
//!
//! # Codecs
//!
//! | codec | messages | feature |
//! | --- | --- | --- |
//! | [`Raw`] | bytes and text as they are | |
//! | `Postcard` | types with serde's traits; both ends have the same fields | `postcard` |
//! | `Prost` | messages of protobuf, whose fields may be added and removed | `prost` |
//! | `Zerocopy` | types that are their own bytes; read in place | `zerocopy` |
//!
//! A codec of your own is a type with [`Encode`] and [`Decode`].

mod annotated;
mod around;
mod client;
mod codec;
mod ctx;
mod detail;
mod interceptor;
mod method;
#[cfg(feature = "postcard")]
mod postcard;
#[cfg(feature = "prost")]
mod prost;
#[cfg(feature = "postcard")]
mod reader;
mod server;
#[cfg(feature = "postcard")]
mod shape;
mod stream;
#[cfg(feature = "tower")]
mod tower;
#[cfg(feature = "zerocopy")]
mod zerocopy;

pub use annotated::{AnnotatedCall, WithReplyMetadata};
pub use client::Stub;
pub use codec::{Decode, Encode, Malformed, Raw, Read};
pub use ctx::Ctx;
pub use detail::Detail;
#[cfg(feature = "prost")]
pub use detail::{GrpcDetail, GrpcStatus};
pub use interceptor::{
    CallEnd, CallOf, ClientInterceptor, ClientInterceptors, IncomingCall, OutgoingCall,
    ServerInterceptor, ServerInterceptors,
};
pub use method::Method;
#[cfg(feature = "postcard")]
pub use postcard::Postcard;
#[cfg(feature = "prost")]
pub use prost::Prost;
pub use server::{Between, Methods, Service};
pub use stream::StreamMethod;
#[cfg(feature = "tower")]
pub use tower::TowerMethod;
#[cfg(feature = "zerocopy")]
pub use zerocopy::Zerocopy;

pub use crate::error::{ErrorDetail, check_details};
pub use crate::values::method_table::{
    DESCRIPTORS, MethodEntry, ServedMethod, ServedService, ServiceTable, TABLES, parse,
};
pub use crate::values::{Entry, Metadata};
