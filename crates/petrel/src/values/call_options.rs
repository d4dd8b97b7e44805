//! Options of a single call.

use std::time::Duration;

use petrel_proto::CallLimits;

use super::client::balance::hash_of;
use crate::time::{Time, as_ns};

/// Options of a single call, by default none. [`petrel_proto::Config::call_timeout_ns`], 60 s, ends a call without another limit.
///
/// ```
/// use std::time::Duration;
/// use petrel::endpoint::CallOptions;
///
/// let soon = CallOptions::new().timeout(Duration::from_millis(5));
/// # let _ = soon;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    pub(crate) timeout: Option<Duration>,
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) response_bytes: Option<usize>,
    pub(crate) idempotent: bool,
    pub(crate) hedge_after: Option<Duration>,
    pub(crate) wait_for_ready: bool,
    /// The hash of the key by which a client chooses the server.
    pub(crate) key: Option<u64>,
    /// Whether the call runs after all earlier ones of its session: set by the calls that have the option.
    pub(crate) ordered: bool,
    /// Whether `response_bytes`, `hedge_after`, `key` or `ordered` is set, as in few calls.
    pub(crate) is_rare: bool,
    /// The number of the request's last bytes that are sent first: a large request thus gets a header without a copy.
    pub(crate) head_last: u8,
    pub(crate) number: MethodNumber,
}

/// Whose number a call has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MethodNumber {
    /// The server's number: no table changes the call.
    #[default]
    Servers,
    /// The number of a [typed](mod@crate::service) client, which a server's table may replace.
    Clients,
    /// The same, while the endpoint lacks the client's table: the call follows the table through the inbox.
    ClientsBehindTable,
}

impl CallOptions {
    /// Returns empty options.
    pub const fn new() -> Self {
        Self {
            timeout: None,
            deadline_ns: None,
            response_bytes: None,
            idempotent: false,
            hedge_after: None,
            wait_for_ready: false,
            key: None,
            ordered: false,
            is_rare: false,
            head_last: 0,
            number: MethodNumber::Servers,
        }
    }

    /// Ends the call with DEADLINE_EXCEEDED after `timeout`; the server learns the deadline too.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the end as a time on the endpoint's clock ([`Context::now`](crate::Context::now)). With both, the
    /// earlier one holds.
    #[must_use]
    pub const fn deadline(mut self, at: Time) -> Self {
        self.deadline_ns = Some(at.as_ns());
        self
    }

    /// Sets the size of the buffer for the response, for calls that are futures. A longer response gets a larger buffer
    /// when it arrives; the right size from the start costs less.
    #[must_use]
    pub const fn response_bytes(mut self, bytes: usize) -> Self {
        self.response_bytes = Some(bytes);
        self.is_rare = true;
        self
    }

    /// Declares that executing the call twice does no harm: a [`Client`](crate::Client) may retry it even if an attempt
    /// may have been executed.
    #[must_use]
    pub const fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Makes a [`Client`](crate::Client) start a second attempt, at a second server if possible, when the first attempt
    /// has not ended after this time; the first response counts. A good choice is the time within which 95 of 100 calls
    /// are answered. Implies [`idempotent`](Self::idempotent), and copies the request for each attempt.
    #[must_use]
    pub const fn hedge_after(mut self, time: Duration) -> Self {
        self.hedge_after = Some(time);
        self.idempotent = true;
        self.is_rare = true;
        self
    }

    /// Makes a [`Client`](crate::Client) without a reachable server wait for one until the call's timeout, instead of
    /// failing the call.
    #[must_use]
    pub const fn wait_for_ready(mut self) -> Self {
        self.wait_for_ready = true;
        self
    }

    /// Sends the call of a [`Client`](crate::Client) to the server that the key maps to: see
    /// [`Call::key`](crate::client::Call::key).
    #[must_use]
    pub fn key(mut self, key: &[u8]) -> Self {
        self.key = Some(hash_of(key));
        self.is_rare = true;
        self
    }

    /// Returns true if an option concerns more than one session.
    #[inline(always)]
    pub(crate) fn needs_servers(&self) -> bool {
        self.hedge_after.is_some() || self.wait_for_ready || self.key.is_some()
    }

    /// Makes the call run after all earlier ones of its session.
    pub(crate) const fn in_order(mut self) -> Self {
        self.ordered = true;
        self.is_rare = true;
        self
    }

    /// Returns true if the call does not just go to the next best server: it is hedged, is ordered, or has a key.
    #[inline(always)]
    pub(crate) fn is_special(&self) -> bool {
        self.is_rare && (self.hedge_after.is_some() || self.key.is_some() || self.ordered)
    }

    /// Returns true if an option limits the call's time.
    pub(crate) fn has_limits(&self) -> bool {
        self.timeout.is_some() || self.deadline_ns.is_some()
    }

    /// Returns the options of a call that begins now and may be made, or retried, later. The timeout becomes an
    /// absolute time, by a clock that is read only if needed.
    #[inline]
    pub(crate) fn begun(mut self, clock_ns: impl FnOnce() -> u64) -> Self {
        if self.timeout.is_some() {
            self.deadline_ns = self.limits(clock_ns()).deadline_ns;
            self.timeout = None;
        }
        self
    }

    /// Returns the options of a call that ends no later than `at_ns`.
    #[inline]
    pub(crate) fn no_later_than(mut self, at_ns: Option<u64>) -> Self {
        if let Some(at_ns) = at_ns {
            self.deadline_ns = Some(self.deadline_ns.map_or(at_ns, |own_ns| own_ns.min(at_ns)));
        }
        self
    }

    /// Returns the end of a call that begins now: after `timeout` if no option limits it.
    #[inline]
    pub(crate) fn end_ns(&self, clock_ns: u64, timeout: Duration) -> u64 {
        match (self.timeout, self.deadline_ns) {
            (None, Some(at_ns)) => at_ns,
            (own, at_ns) => {
                let end_ns = clock_ns.saturating_add(as_ns(own.unwrap_or(timeout)));
                at_ns.map_or(end_ns, |at_ns| end_ns.min(at_ns))
            }
        }
    }

    /// Returns the end of a call that is made now, if limited.
    pub(crate) fn limits(self, now_ns: u64) -> CallLimits {
        limits(self.timeout, self.deadline_ns, now_ns)
    }
}

/// Returns the end of a call that is made now: the earlier of both times.
#[inline]
pub(crate) fn limits(
    timeout: Option<Duration>,
    deadline_ns: Option<u64>,
    now_ns: u64,
) -> CallLimits {
    let end_ns = timeout.map(|timeout| now_ns.saturating_add(as_ns(timeout)));
    let deadline_ns = [end_ns, deadline_ns].into_iter().flatten().min();
    CallLimits { deadline_ns, ..CallLimits::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begun__keeps_its_end_and_reads_no_clock_without_need() {
        let begun = CallOptions::new().timeout(Duration::from_micros(1)).begun(|| 1_000);
        assert_eq!(begun.limits(5_000).deadline_ns, Some(2_000));
        let absolute =
            CallOptions::new().deadline(Time::from_ns(7)).begun(|| panic!("the clock is read"));
        assert_eq!(absolute.limits(5_000).deadline_ns, Some(7));
    }

    #[test]
    fn no_later_than__leaves_the_earlier_end() {
        let end_of = |own_ns: Option<u64>, at_ns| {
            let options = CallOptions { deadline_ns: own_ns, ..CallOptions::new() };
            options.no_later_than(at_ns).deadline_ns
        };
        for (own_ns, at_ns, expected) in [
            (None, None, None),
            (None, Some(5), Some(5)),
            (Some(5), None, Some(5)),
            (Some(4), Some(5), Some(4)),
            (Some(5), Some(5), Some(5)),
            (Some(6), Some(5), Some(5)),
        ] {
            assert_eq!(end_of(own_ns, at_ns), expected);
        }
    }

    #[test]
    fn the_earlier_one_holds() {
        let deadline_ns = |options: CallOptions| options.limits(1_000).deadline_ns;
        let micro = Duration::from_micros(1);
        assert_eq!(deadline_ns(CallOptions::new()), None);
        assert_eq!(deadline_ns(CallOptions::new().timeout(micro)), Some(2_000));
        assert_eq!(
            deadline_ns(CallOptions::new().timeout(micro).deadline(Time::from_ns(1_500))),
            Some(1_500)
        );
        assert_eq!(
            deadline_ns(CallOptions::new().timeout(micro).deadline(Time::from_ns(9_000))),
            Some(2_000)
        );
        assert_eq!(deadline_ns(CallOptions::new().timeout(Duration::MAX)), Some(u64::MAX));
    }
}
