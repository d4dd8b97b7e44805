//! The result of one check.

use serde::Serialize;

/// The outcome of a check. JSON uses the same words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// The feature works.
    Ok,
    /// A fact, or something that only a dedicated machine would tune.
    Info,
    /// Petrel works, but slower or with a limit.
    Warn,
    /// Petrel cannot run before the problem is fixed.
    Fail,
}

impl Status {
    /// Returns a sort key: smaller values are more urgent.
    pub(super) fn urgency(self) -> u8 {
        match self {
            Self::Fail => 0,
            Self::Warn => 1,
            Self::Info => 2,
            Self::Ok => 3,
        }
    }
}

/// The result of one check. The fields are the fields of its JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// Stable name, for scripts.
    pub(super) name: &'static str,
    /// The checked part of the host.
    pub(super) area: &'static str,
    pub(super) status: Status,
    /// The finding, for human readers.
    pub(super) found: String,
    /// Advice, if the finding calls for any.
    pub(super) advice: Option<String>,
}

impl Check {
    pub(super) fn ok(area: &'static str, name: &'static str, found: impl Into<String>) -> Self {
        Self { name, area, status: Status::Ok, found: found.into(), advice: None }
    }

    pub(super) fn info(area: &'static str, name: &'static str, found: impl Into<String>) -> Self {
        Self { status: Status::Info, ..Self::ok(area, name, found) }
    }

    pub(super) fn warn(
        area: &'static str,
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { status: Status::Warn, ..Self::ok(area, name, found) }.advise(advice)
    }

    pub(super) fn fail(
        area: &'static str,
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { status: Status::Fail, ..Self::ok(area, name, found) }.advise(advice)
    }

    pub(super) fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
}
