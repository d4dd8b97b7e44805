//! The server of memcached's protocol over TCP.
//!
//! Each thread owns a share of the connections, and usually a partition. A thread reads from its connections, runs the
//! operations on keys of its own partition at once, and collects all further operations in *batches*, one per owner. At
//! most one batch of a thread is at an owner at any time. While it is there, the next fills: the busier an owner is,
//! the larger the batches, and the fewer wake-ups an operation costs. Replies leave in the order of the requests.
//!
//! Everything is bounded. A connection with too many replies, or whose batch is full, is not read until it has room. An
//! owner stops in the middle of a batch when its replies are large, and the thread brings the rest again when it has
//! sent them. The next batch then has the first operation of every connection only, so that large gets of clients that do not
//! read delay the others by a turn. Beyond a thread's memory for buffers, values are refused and connections that do not read are closed.
//!
//! Two other designs were considered. With a *lock per partition*, each operation on a foreign partition takes a lock
//! whose line moves between CPUs; a batch moves once for many operations. With *connections handed to the owner of a
//! key*, one connection would move with every request, since clients of memcached know no partitions.

mod batch;
mod clients;
mod connection;
mod drive;
pub(crate) mod inbox;
pub(crate) mod owner;
pub(crate) mod pool;
mod replies;
pub(crate) mod report;
mod server;
pub(crate) mod thread;
pub(crate) mod tls;

pub use server::{CacheConfig, CacheServer, Placement, ServerError, Stopped};
