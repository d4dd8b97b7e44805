//! How long the certificates of a connection are valid (`docs/wire-protocol.md` §17.1).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time for clients to leave a connection after the certificate's end.
pub(super) const LEAVE_WITHIN: Duration = Duration::from_secs(60);

/// The time until the first of the two ends' certificates ends, as seen at the beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    renews_at: SystemTime,
    ends_at: SystemTime,
}

/// What a connection's certificates demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Age {
    /// Nothing.
    Young,
    /// The opener leaves for a new connection with newer certificates.
    Old,
    /// The acceptor asks the opener to leave.
    Ended,
    /// The connection ends.
    Overdue,
}

impl Validity {
    /// A connection from now on, with the certificates' end `expires_at` in seconds since 1970; `None` beyond the system's time. The opener
    /// leaves after nine tenths of the time left: a certificate gets a few connections at most.
    pub(super) fn new(expires_at: u64, now: SystemTime) -> Option<Self> {
        let ends_at = UNIX_EPOCH.checked_add(Duration::from_secs(expires_at.checked_add(1)?))?;
        let left = ends_at.duration_since(now).unwrap_or_default();
        Some(Self { renews_at: now + left / 10 * 9, ends_at })
    }

    pub(super) fn age(self, now: SystemTime) -> Age {
        let is_overdue = now.duration_since(self.ends_at).is_ok_and(|over| over >= LEAVE_WITHIN);
        match (now >= self.renews_at, now >= self.ends_at) {
            _ if is_overdue => Age::Overdue,
            (_, true) => Age::Ended,
            (true, false) => Age::Old,
            (false, false) => Age::Young,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age__of_certificates_that_end() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let validity = Validity::new(1_099, at(1_000_000)).unwrap();
        let age = |millis| validity.age(at(millis));
        assert_eq!((age(0), age(1_089_999)), (Age::Young, Age::Young));
        assert_eq!((age(1_090_000), age(1_099_999)), (Age::Old, Age::Old));
        assert_eq!((age(1_100_000), age(1_159_999)), (Age::Ended, Age::Ended));
        assert_eq!(age(1_160_000), Age::Overdue);
        let ended = Validity::new(999, at(1_500_000)).unwrap();
        assert_eq!(ended.age(at(1_500_000)), Age::Overdue);
        assert_eq!(Validity::new(u64::MAX, at(0)), None);
    }
}
