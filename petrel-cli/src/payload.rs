//! The bytes that the subcommands send, and how they know that the right ones came back.

pub(crate) mod checksum;
pub(crate) mod pattern;
pub(crate) mod stamps;

pub(crate) use checksum::checksum;
pub(crate) use pattern::Pattern;
