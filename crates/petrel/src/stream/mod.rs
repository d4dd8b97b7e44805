//! Streams: calls with many messages, from the server, from the client, or both ways.
//!
//! A method of a [typed service](mod@crate::service) has streams if it takes a [`Sender`], a [`Receiver`], or both:
//!
//! ```
//! use petrel::service::{Ctx, Raw};
//! use petrel::stream::{Receiver, Sender};
//! use petrel::{Error, Server};
//!
//! #[petrel::service(codec = Raw)]
//! trait Words {
//!     /// Sends the words of a text.
//!     async fn split(&self, cx: &Ctx, text: String, words: Sender<String>) -> Result<(), Error>;
//!     /// Joins words.
//!     async fn join(&self, cx: &Ctx, words: Receiver<String>) -> Result<String, Error>;
//! }
//!
//! struct Plain;
//!
//! impl Words for Plain {
//!     async fn split(&self, _: &Ctx, text: String, mut words: Sender<String>) -> Result<(), Error> {
//!         for word in text.split(' ') {
//!             words.send(word.to_owned()).await?;
//!         }
//!         Ok(())
//!     }
//!
//!     async fn join(&self, _: &Ctx, mut words: Receiver<String>) -> Result<String, Error> {
//!         let mut text = String::new();
//!         while let Some(word) = words.next().await {
//!             text += &word?;
//!         }
//!         Ok(text)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = Server::bind("127.0.0.1:0").serve(|_| (), |endpoint| endpoint.serve(WordsServer::new(Plain)));
//! # let server = server.start()?;
//! let client = WordsClient::connect_wait(server.local_addr())?;
//! petrel::client::wait(async {
//!     let mut words = client.split("a stream of words".to_owned()).start().await?;
//!     let mut number = 0;
//!     while let Some(word) = words.next().await {
//!         assert!(!word?.is_empty());
//!         number += 1;
//!     }
//!     assert_eq!(number, 4);
//!
//!     let (mut words, text) = client.join().start().await?;
//!     for word in ["one", "two"] {
//!         words.send(word.to_owned()).await?;
//!     }
//!     drop(words); // there are no more
//!     assert_eq!(text.await?, "onetwo");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # Ends
//!
//! A stream ends once at both sides, with a reason. At a client the last item of a [`Receiver`] that is an error, or the outcome of a
//! [`Reply`], is the reason:
//!
//! | end | at the client | at the server |
//! | --- | --- | --- |
//! | the handler returns | its outcome, behind the last message | |
//! | the client drops the [`Receiver`] or [`Reply`] | | the handler is dropped |
//! | the [timeout](StreamCall::timeout) of the whole stream | DEADLINE_EXCEEDED | the handler is dropped |
//! | a session ends, a process dies, a server drains | UNAVAILABLE | the handler is dropped |
//! | a message that does not decode, or is too large | INTERNAL, RESOURCE_EXHAUSTED | an error at the receiver, which ends the stream |
//! | a codec or an interceptor that panics | INTERNAL | the handler is dropped, or the error of its [`send`](Sender::send) |
//!
//! # Metadata
//!
//! A client gives [metadata](StreamCall::metadata) to the begin, which the handler reads by `cx.metadata()`. The entries of `cx.reply_metadata(…)` come with
//! the end, as gRPC's trailers, also with an error: [`Receiver::metadata`] and [`Reply::metadata`] return them.
//!
//! # Flow
//!
//! Each stream has a [window](crate::endpoint::StreamConfig::window_bytes) of bytes. A [`Sender`] waits when the reader is slower by more than two
//! windows, and other streams go on meanwhile. Messages that come up together travel together; a stream without messages sends no packet.
//!
//! The streams of a client to an endpoint share two sessions of a link of their own, opened for the first stream. They have no place in the sessions of
//! calls. `docs/wire-protocol.md` §18 specifies the format.

mod client;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod incoming;
mod outgoing;
mod pair;
mod pump;
mod receiver;
mod registry;
mod sender;
mod shared;
#[cfg(test)]
mod tests;
mod wire;

pub use client::{RawEnds, StreamCall};
pub use receiver::{Receiver, Reply};
pub use sender::{Sender, TrySendError};

pub(crate) use client::{AroundStream, Kind, Pairs, Place};
pub(crate) use handler::{Begin, Opened};

pub use crate::values::StreamConfig;
