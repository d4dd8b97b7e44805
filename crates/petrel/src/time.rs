//! Spans of time as the library counts them.

use std::time::Duration;

/// Nanoseconds of a span; one that is too long for them, 584 years, counts as the longest.
#[inline]
pub(crate) fn as_ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
