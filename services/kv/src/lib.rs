//! A key-value store that Raft replicates, over Petrel.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`api`] | the methods, their requests and replies |
//! | [`command`] | the commands of the replicated log |
//! | [`store`] | the state machine that applies them |
//! | [`persist`] | what a store for the log has to do |
//! | [`disk`] | the one that keeps it in files |
//! | [`client`] | the client: finds and follows the leader |
//! | [`limits`] | every limit, with its reason |
//!
//! `docs/kv.md` has the client by example and says what the store promises, `docs/kv-operations.md` is the
//! runbook. The messages are specified in `docs/kv-protocol.md`.

#![forbid(unsafe_code)]

pub mod api;
pub mod client;
pub mod command;
pub mod disk;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod limits;
pub mod persist;
mod replica;
pub mod store;
mod wire;

pub use client::{KvClient, KvClientConfig, KvError};
pub use replica::{ReadMode, Replica, ReplicaConfig, ReplicaError, ReplicaStats};

/// Its programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/kv.md")]
struct Manual;
