//! The overload policies of the server.

use std::str::FromStr;
use std::time::Duration;

use petrel::overload::{AdmissionConfig, Shedding};

/// An overload policy of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Accepts and runs all requests, in the order of arrival; calls have no deadlines.
    None,
    /// Calls have deadlines, and expired requests are not run.
    Deadlines,
    /// `Deadlines`, and [`Shedding::ExpectedWait`].
    Expected,
    /// Deadlines, and the default admission settings.
    Default,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::None, Self::Deadlines, Self::Expected, Self::Default];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::Deadlines => "deadlines",
            Policy::Expected => "expected",
            Policy::Default => "default",
        }
    }

    /// Returns the server's settings, with this target for queueing delays.
    pub fn admission(self, target: Duration) -> AdmissionConfig {
        let shedding = match self {
            Policy::None => return UNLIMITED,
            Policy::Deadlines => Shedding::LimitOnly,
            Policy::Expected => Shedding::ExpectedWait { target, services: 0 },
            Policy::Default => return AdmissionConfig::default(),
        };
        AdmissionConfig { shedding, ..AdmissionConfig::default() }
    }

    /// Returns true if calls carry a deadline.
    pub fn has_deadlines(self) -> bool {
        self != Policy::None
    }
}

const UNLIMITED: AdmissionConfig = AdmissionConfig {
    requests_max: usize::MAX,
    bytes_max: usize::MAX,
    shedding: Shedding::LimitOnly,
};

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|policy| policy.name() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{text}' is no policy; these are: {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_str__takes_every_name_and_lists_them() {
        assert!(Policy::ALL.iter().all(|policy| policy.name().parse() == Ok(*policy)));
        assert!("nothing".parse::<Policy>().unwrap_err().contains("expected"));
    }
}
