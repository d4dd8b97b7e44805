//! The bytes that the subcommands send, and the verification of received bytes.

pub mod pattern;
pub mod stamps;

use rapidhash::v3::rapidhash_v3;

pub use pattern::Pattern;

/// Returns the 8-byte checksum of a message, as the method `sink` answers it. It notices changed and exchanged pieces, and no
/// deliberate forgery.
pub fn checksum(bytes: &[u8]) -> u64 {
    rapidhash_v3(bytes)
}
