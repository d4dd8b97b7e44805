//! The servers, settings and counters of a client.

pub(crate) mod balance;
mod config;
mod judge;
mod service_key;
mod stats;
mod target;

pub use balance::{Balance, owner_of};
pub use config::ClientConfig;
pub use judge::{Judge, Verdict};
pub use stats::ClientStats;
pub use target::Target;

pub(crate) use service_key::{ServiceKey, ServiceKeys};
pub(crate) use stats::Counters;
