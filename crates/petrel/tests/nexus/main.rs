//! The nexus against itself, against peers that keep to the protocol by hand, and against peers
//! that do not.

// Tests are named `function__condition`.
#![allow(non_snake_case)]

mod builder;
mod ecn;
mod failures;
mod harness;
mod hostile;
mod links;
mod rendezvous;
mod sessions;
mod stats;
