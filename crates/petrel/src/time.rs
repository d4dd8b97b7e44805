//! Conversion of time spans.

use std::time::Duration;

/// Returns a span in nanoseconds; a span over 584 years counts as that.
#[inline]
pub(crate) fn as_ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
