//! The bytes that the subcommands send, and the verification of received bytes.

pub(crate) mod checksum;
pub(crate) mod pattern;
pub(crate) mod stamps;

pub(crate) use checksum::checksum;
pub(crate) use pattern::Pattern;
