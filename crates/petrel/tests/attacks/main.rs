//! Peers that use the protocol against the server: honest clients must not notice.

#[path = "../common/mod.rs"]
mod common;

mod links;
