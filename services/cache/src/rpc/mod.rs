//! The cache as a service of Petrel.
//!
//! The endpoint of number *n* owns partition *n*. A client learns the number of partitions and the seed of the hash by
//! [`Hello`](wire::HELLO), and calls the endpoint that owns the key. An endpoint refuses a key of another partition
//! with FAILED_PRECONDITION: the client then asks again, since a different server may listen there.

mod client;
mod handlers;
mod inbox_task;
mod service;
pub mod wire;

pub use client::{CacheClient, Call, ClientError};
pub(crate) use handlers::{Endpoints, Report, State};
pub(crate) use inbox_task::Bell;
pub use service::{Lookups, serve_partition};
pub use wire::Value;
