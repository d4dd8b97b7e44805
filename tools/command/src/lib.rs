//! The parts that the subcommands of `petrel` share.
//!
//! | module | concern |
//! | --- | --- |
//! | [`args`] | arguments of several subcommands |
//! | [`output`], [`text`], [`units`] | results for people and for programs |
//! | [`failure`] | why a subcommand could not do its work |
//! | [`server`], [`client`] | the two ends that subcommands create |
//! | [`methods`], [`payload`] | the server's methods, and the contents of messages |
//! | [`load`] | calls in flight, and the check of their replies |
//! | [`cores`], [`interrupt`] | CPUs and Ctrl-C |

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

pub mod args;
pub mod client;
pub mod cores;
pub mod credentials;
pub mod device;
pub mod failure;
pub mod interrupt;
pub mod load;
pub mod methods;
pub mod output;
pub mod payload;
pub mod server;
pub mod text;
pub mod units;

use std::hash::{BuildHasher, RandomState};

/// Returns a new random seed.
pub fn fresh_seed() -> u64 {
    // The standard library's hash keys come from the system's randomness.
    RandomState::new().hash_one(0)
}

/// The outcome of a subcommand that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The result is good.
    Success,
    /// The work was done, but the printed result is bad.
    Failure,
}
