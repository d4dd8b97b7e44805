//! The bytes that the subcommands send, and the verification of received bytes.

pub mod checksum;
pub mod pattern;
pub mod stamps;

pub use checksum::checksum;
pub use pattern::Pattern;
