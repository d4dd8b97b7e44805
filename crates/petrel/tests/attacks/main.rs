//! Peers that use the protocol against the server: honest clients must not notice.

#[path = "../common/mod.rs"]
mod common;

mod connections;
mod links;
mod paths;
mod refused;
mod regions;
mod sessions;

/// Far longer than any step: only a hang exceeds it.
const HANG: std::time::Duration = std::time::Duration::from_secs(60);
