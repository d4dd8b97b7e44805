//! The nexus against itself, against peers that keep to the protocol by hand, and against peers
//! that do not.

mod builder;
mod ecn;
mod failures;
pub(crate) mod harness;
mod hostile;
mod links;
mod rendezvous;
mod sessions;
mod stats;
