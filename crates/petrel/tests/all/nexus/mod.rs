//! The nexus against itself, against scripted peers within the protocol, and against peers that break it.

mod builder;
mod ecn;
mod failures;
pub(crate) mod harness;
mod hostile;
mod links;
mod paths;
mod rendezvous;
mod sessions;
mod stats;
