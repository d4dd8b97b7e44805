//! An ordered in-memory index, served over Petrel: point lookups at the cost of an RPC, and scans that do not delay
//! them.
//!
//! ```
//! use std::ops::Bound;
//!
//! use petrel_index::{Client, Server, ServerConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::start(&ServerConfig::at("127.0.0.1:0".parse()?))?;
//! let client = Client::connect_wait(server.address())?;      // or Client::connect(…).await
//! for number in 1..=10 {
//!     client.put_word(number, number * number).wait()?;     // or .await, in any executor
//! }
//! assert_eq!(client.get_word(7).wait()?, Some(49));
//! assert_eq!(client.sum_words(7, 128).wait()?.sum.get(), 64 + 81 + 100);
//!
//! client.put_bytes(b"albatross", b"a seabird").wait()?;
//! client.put_bytes(b"petrel", b"a seabird too").wait()?;
//! let from_b = client.scan_bytes(Bound::Included(b"b"), 10).wait()?;
//! assert_eq!((&*from_b[0].0, &*from_b[0].1), (&b"petrel"[..], &b"a seabird too"[..]));
//!
//! drop(client);
//! server.stop(std::time::Duration::from_secs(5))?;
//! # Ok(())
//! # }
//! ```
//!
//! Two tables, each ordered by its keys:
//!
//! | table | keys and values | made of |
//! | --- | --- | --- |
//! | words, [`Words`] | 8 bytes each | [`Points`], a hash table of cache lines, has the values; a [`Tree`] the keys |
//! | bytes, [`Bytes`] | up to [`limits`] | a [`Tree`] of cells with values |
//!
//! | type | purpose |
//! | --- | --- |
//! | [`Server`] | dispatch threads with an endpoint each, workers for scans, one [`Store`] for all |
//! | [`register`] | registers the same handlers on an application's endpoint |
//! | [`Client`] | calls from any thread and in any executor, by a [`petrel::Client`] |
//! | [`Call`] | a call of the client, or the calls of a scan: awaited, or waited for |
//! | [`Method`] | the numbers of the methods, for raw calls; [`Word`], [`Found`], [`SumRange`] and [`Sum`] are messages of the table of words |
//!
//! **Guarantees.** Each PUT, DELETE and GET takes effect at one moment between call and answer, for all clients at all
//! endpoints. A scan visits keys in order, at most once, including every key present from the scan's begin to the end.
//! Keys that are put or deleted meanwhile may be visited or not; a scan is no snapshot.
//!
//! **Limitations.** Nothing is kept on disk or on another host: all data ends with the process. PUT and DELETE are not
//! safe to repeat in general, because their answers depend on the former value.

#![forbid(unsafe_code)]

mod bytes;
mod client;
mod error;
mod handlers;
pub mod limits;
mod map;
mod metrics;
mod points;
mod server;
mod service;
mod store;
mod words;

pub use bytes::{Bytes, Cell, Key, Value};
pub use client::{Call, Client};
pub use error::{ServerError, StoreError};
pub use handlers::{prefetch_words, register};
pub use map::Tree;
pub use metrics::Metrics;
pub use points::{Points, Writer};
pub use server::{Placement, Server, ServerConfig, Stopped, ThreadKind};
pub use service::{Blob, Found, METHODS, Method, Page, ScanRange, Sum, SumRange, Word};
pub use store::{Store, StoreConfig};
pub use words::Words;
