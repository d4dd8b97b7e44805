//! What can be said about a single call.

use std::time::Duration;

use petrel_proto::CallLimits;

/// What can be said about a single call. The default says nothing: then
/// [`petrel_proto::Config::call_timeout_ns`] ends a call that nothing else has ended, after 60 s.
///
/// ```
/// use std::time::Duration;
/// use petrel::CallOptions;
///
/// let soon = CallOptions::new().timeout(Duration::from_millis(5));
/// # let _ = soon;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    timeout: Option<Duration>,
    deadline_ns: Option<u64>,
}

impl CallOptions {
    /// Nothing is said.
    pub const fn new() -> Self {
        Self { timeout: None, deadline_ns: None }
    }

    /// The call ends with DEADLINE_EXCEEDED when it has taken this long, and its server knows.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The same with a time on the endpoint's clock, that of [`Context::now_ns`](crate::Context::now_ns).
    /// With both, the earlier one holds.
    #[must_use]
    pub const fn deadline_ns(mut self, at_ns: u64) -> Self {
        self.deadline_ns = Some(at_ns);
        self
    }

    /// When a call that is made now is over, if any of this says so.
    pub(crate) fn limits(self, now_ns: u64) -> CallLimits {
        let nanoseconds = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = self.timeout.map(|timeout| now_ns.saturating_add(nanoseconds(timeout)));
        let deadline_ns = [end_ns, self.deadline_ns].into_iter().flatten().min();
        CallLimits { deadline_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_one_holds() {
        let deadline_ns = |options: CallOptions| options.limits(1_000).deadline_ns;
        let micro = Duration::from_micros(1);
        assert_eq!(deadline_ns(CallOptions::new()), None);
        assert_eq!(deadline_ns(CallOptions::new().timeout(micro)), Some(2_000));
        assert_eq!(deadline_ns(CallOptions::new().timeout(micro).deadline_ns(1_500)), Some(1_500));
        assert_eq!(deadline_ns(CallOptions::new().timeout(micro).deadline_ns(9_000)), Some(2_000));
        assert_eq!(deadline_ns(CallOptions::new().timeout(Duration::MAX)), Some(u64::MAX));
    }
}
