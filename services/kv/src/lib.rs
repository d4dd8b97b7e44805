//! A key-value store over Petrel, replicated by Raft.
//!
//! | module | contents |
//! | --- | --- |
//! | [`api`] | the methods, their requests and replies |
//! | [`command`] | the commands of the replicated log |
//! | [`store`] | the state machine that applies them |
//! | [`persist`] | the interface to the storage of the log |
//! | [`disk`] | storage of the log in files |
//! | [`backup`] | files with all keys of a store |
//! | [`client`] | the client: finds and follows the leader |
//! | [`limits`] | every limit, with its reason |
//!
//! `docs/kv.md` shows the client by example and states the store's guarantees. `docs/kv-operations.md` is the runbook.
//! `docs/kv-protocol.md` specifies the messages.

#![forbid(unsafe_code)]

pub mod api;
pub mod backup;
pub mod client;
pub mod command;
pub mod disk;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
pub mod limits;
mod pair_check;
pub mod persist;
mod replica;
pub mod store;
mod wire;

pub use client::{KvClient, KvClientConfig, KvError};
pub use replica::{ReadMode, Replica, ReplicaConfig, ReplicaError, ReplicaStats};

/// Compiles and runs the manual's programs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/kv.md")]
struct Manual;
