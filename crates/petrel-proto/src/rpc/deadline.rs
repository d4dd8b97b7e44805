//! Deadlines on the wire: the time left, in microseconds (`docs/wire-protocol.md` §3.4).

use crate::session::backlog::NEVER;
use crate::wire::Extensions;

/// Returns the deadline of a frame on this core's clock.
#[inline]
pub(super) fn deadline_ns(now_ns: u64, extensions: Extensions) -> u64 {
    match extensions.deadline_us {
        None => NEVER,
        Some(left_us) => now_ns + u64::from(left_us) * 1_000,
    }
}

/// Returns the microseconds left, as carried in a frame.
pub(super) fn left_us(now_ns: u64, at_ns: u64) -> u32 {
    u32::try_from(at_ns.saturating_sub(now_ns) / 1_000).unwrap_or(u32::MAX)
}
