//! Options of a single call.

use std::fmt;
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
    timeout_ns: Maybe,
    deadline_ns: Maybe,
    response_bytes: Maybe,
    hedge_after_ns: Maybe,
    /// The hash of the key by which a client chooses the server.
    key: Maybe,
    /// The number of the request's last bytes that are sent first: a large request thus gets a header without a copy.
    pub(crate) head_last: u8,
    pub(crate) marks: Marks,
}

/// A number that may be absent, in half the memory of an `Option`: options are copied in each call. The largest number counts as the one
/// before it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Maybe(u64);

impl Maybe {
    const NONE: Self = Self(u64::MAX);

    const fn of(number: u64) -> Self {
        match number {
            u64::MAX => Self(u64::MAX - 1),
            number => Self(number),
        }
    }

    #[inline(always)]
    const fn get(self) -> Option<u64> {
        match self {
            Self::NONE => None,
            Self(number) => Some(number),
        }
    }

    const fn is_some(self) -> bool {
        self.0 != u64::MAX
    }

    /// Returns the smaller one, if any.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

impl Default for Maybe {
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Debug for Maybe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// The options of a call that are set or not, in one byte: they are stored and copied together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(u8);

impl Marks {
    /// Executing the call twice does no harm.
    pub(crate) const IDEMPOTENT: Self = Self(1);
    /// The call waits for a reachable server.
    pub(crate) const WAIT_FOR_READY: Self = Self(1 << 1);
    /// The call runs after all earlier ones of its session: set by the calls that have the option.
    pub(crate) const ORDERED: Self = Self(1 << 2);
    /// `response_bytes`, `hedge_after`, `key` or `ORDERED` is set, as in few calls.
    pub(crate) const RARE: Self = Self(1 << 3);
    /// The method's number is that of a [typed](mod@crate::service) client, and a server's table may replace it.
    pub(crate) const TYPED: Self = Self(1 << 4);
    /// The endpoint lacks the table of the typed client: the call follows the table through the inbox.
    pub(crate) const BEHIND_TABLE: Self = Self(1 << 5);
    /// The call's attempts have rules of their own. Set by the service of a client.
    pub(crate) const ATTEMPT_RULES: Self = Self(1 << 6);

    #[inline(always)]
    pub(crate) const fn has(self, mark: Self) -> bool {
        self.0 & mark.0 != 0
    }

    #[inline(always)]
    pub(crate) const fn with(self, mark: Self) -> Self {
        Self(self.0 | mark.0)
    }

    pub(crate) const fn without(self, mark: Self) -> Self {
        Self(self.0 & !mark.0)
    }
}

impl CallOptions {
    /// Returns empty options.
    pub const fn new() -> Self {
        Self::marked(Marks(0))
    }

    /// Returns options that are empty but for their marks.
    #[inline(always)]
    pub(crate) const fn marked(marks: Marks) -> Self {
        Self {
            timeout_ns: Maybe::NONE,
            deadline_ns: Maybe::NONE,
            response_bytes: Maybe::NONE,
            hedge_after_ns: Maybe::NONE,
            key: Maybe::NONE,
            head_last: 0,
            marks,
        }
    }

    /// Ends the call with DEADLINE_EXCEEDED after `timeout`; the server learns the deadline too.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout_ns = Maybe::of(as_ns(timeout));
        self
    }

    /// Sets the end as a time on the endpoint's clock ([`Context::now`](crate::Context::now)). With both, the
    /// earlier one holds.
    #[must_use]
    pub const fn deadline(mut self, at: Time) -> Self {
        self.deadline_ns = Maybe::of(at.as_ns());
        self
    }

    /// Sets the size of the buffer for the response, for calls that are futures. A longer response gets a larger buffer
    /// when it arrives; the right size from the start costs less.
    #[must_use]
    pub const fn response_bytes(mut self, bytes: usize) -> Self {
        self.response_bytes = Maybe::of(bytes as u64);
        self.marks = self.marks.with(Marks::RARE);
        self
    }

    /// Declares that executing the call twice does no harm: a [`Client`](crate::Client) may retry it even if an attempt
    /// may have been executed.
    #[must_use]
    pub const fn idempotent(mut self) -> Self {
        self.marks = self.marks.with(Marks::IDEMPOTENT);
        self
    }

    /// Makes a [`Client`](crate::Client) start a second attempt, at a second server if possible, when the first attempt
    /// has not ended after this time; the first response counts. A good choice is the time within which 95 of 100 calls
    /// are answered. Implies [`idempotent`](Self::idempotent), and copies the request for each attempt.
    #[must_use]
    pub const fn hedge_after(mut self, time: Duration) -> Self {
        self.hedge_after_ns = Maybe::of(as_ns(time));
        self.marks = self.marks.with(Marks::IDEMPOTENT).with(Marks::RARE);
        self
    }

    /// Makes a [`Client`](crate::Client) without a reachable server wait for one until the call's timeout, instead of
    /// failing the call.
    #[must_use]
    pub const fn wait_for_ready(mut self) -> Self {
        self.marks = self.marks.with(Marks::WAIT_FOR_READY);
        self
    }

    /// Sends the call of a [`Client`](crate::Client) to the server that the key maps to: see
    /// [`Call::key`](crate::client::Call::key).
    #[must_use]
    pub fn key(mut self, key: &[u8]) -> Self {
        self.key = Maybe::of(hash_of(key));
        self.marks = self.marks.with(Marks::RARE);
        self
    }

    /// Returns true if an option concerns more than one session.
    #[inline(always)]
    pub(crate) fn needs_servers(&self) -> bool {
        self.hedge_after_ns.is_some() || self.marks.has(Marks::WAIT_FOR_READY) || self.key.is_some()
    }

    /// Makes the call run after all earlier ones of its session.
    pub(crate) const fn in_order(mut self) -> Self {
        self.marks = self.marks.with(Marks::ORDERED).with(Marks::RARE);
        self
    }

    /// Returns true if the call does not just go to the next best server: it is hedged, is ordered, or has a key.
    #[inline(always)]
    pub(crate) fn is_special(&self) -> bool {
        self.marks.has(Marks::RARE)
            && (self.hedge_after_ns.is_some()
                || self.key.is_some()
                || self.marks.has(Marks::ORDERED))
    }

    /// Keeps what replaced options said of the request and of an order, which applications set by verbs of their own.
    #[inline(always)]
    pub(crate) fn keep_of(&mut self, replaced: &Self) {
        self.head_last = replaced.head_last;
        self.marks.0 |= replaced.marks.0 & (Marks::TYPED.0 | Marks::BEHIND_TABLE.0);
        if replaced.is_ordered() {
            *self = self.in_order();
        }
    }

    /// Returns true if the call runs after all earlier ones of its session.
    pub(crate) const fn is_ordered(&self) -> bool {
        self.marks.has(Marks::ORDERED)
    }

    #[inline(always)]
    pub(crate) const fn timeout_ns(&self) -> Option<u64> {
        self.timeout_ns.get()
    }

    #[inline(always)]
    pub(crate) const fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns.get()
    }

    /// Returns the size of the buffer for the response, if set.
    #[inline(always)]
    pub(crate) fn buffer_bytes(&self) -> Option<usize> {
        self.response_bytes.get().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Returns the time until a second attempt, if set.
    pub(crate) const fn hedge_after_ns(&self) -> Option<u64> {
        self.hedge_after_ns.get()
    }

    /// Returns the hash of the call's key, if set.
    pub(crate) const fn key_hash(&self) -> Option<u64> {
        self.key.get()
    }

    /// Returns true if an option limits the call's time.
    pub(crate) fn has_limits(&self) -> bool {
        self.timeout_ns.is_some() || self.deadline_ns.is_some()
    }

    /// Returns the options of a call that begins now and may be made, or retried, later. The timeout becomes an
    /// absolute time, by a clock that is read only if needed.
    #[inline]
    pub(crate) fn begun(mut self, clock_ns: impl FnOnce() -> u64) -> Self {
        if let Some(timeout_ns) = self.timeout_ns.get() {
            let end_ns = Maybe::of(clock_ns().saturating_add(timeout_ns));
            (self.deadline_ns, self.timeout_ns) = (self.deadline_ns.min(end_ns), Maybe::NONE);
        }
        self
    }

    /// Returns the options of a call that ends no later than `at_ns`.
    #[inline]
    pub(crate) fn no_later_than(mut self, at_ns: Option<u64>) -> Self {
        if let Some(at_ns) = at_ns {
            self.deadline_ns = self.deadline_ns.min(Maybe::of(at_ns));
        }
        self
    }

    /// Returns the end of a call that begins now: after `timeout` if no option limits it.
    #[inline]
    pub(crate) fn end_ns(&self, clock_ns: u64, timeout: Duration) -> u64 {
        match (self.timeout_ns.get(), self.deadline_ns.get()) {
            (None, Some(at_ns)) => at_ns,
            (own_ns, at_ns) => {
                let end_ns = clock_ns.saturating_add(own_ns.unwrap_or_else(|| as_ns(timeout)));
                at_ns.map_or(end_ns, |at_ns| end_ns.min(at_ns))
            }
        }
    }

    /// Returns the end of a call that is made now, if limited.
    pub(crate) fn limits(self, now_ns: u64) -> CallLimits {
        limits(self.timeout_ns.get(), self.deadline_ns.get(), now_ns)
    }
}

/// Returns the end of a call that is made now: the earlier of both times.
#[inline]
pub(crate) fn limits(timeout_ns: Option<u64>, deadline_ns: Option<u64>, now_ns: u64) -> CallLimits {
    let end_ns = timeout_ns.map(|span_ns| now_ns.saturating_add(span_ns));
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
            let deadline_ns = own_ns.map_or(Maybe::NONE, Maybe::of);
            CallOptions { deadline_ns, ..CallOptions::new() }.no_later_than(at_ns).deadline_ns()
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
