//! How sessions end.

/// How a session ended. The [`Reason`](crate::control::Reason) explains it in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEnd {
    /// This side closed it.
    ClosedHere,
    /// The peer closed it.
    ClosedByPeer,
    /// The server drained.
    Drained,
    /// The link went down: the peer's process ended, was restarted, hung, or cannot be reached.
    LinkLost,
    /// The session never opened: no link could be made.
    NotReached,
    /// It never opened: the peer refused it. Or the server ended the session of a client without rights.
    Refused,
    /// The session's request numbers are used up, or the server was silent for too many timeouts.
    Exhausted,
    /// The peer accepted the session with impossible values, or after the local end was closed.
    Invalid,
}

impl SessionEnd {
    /// All kinds, in the order of their counters.
    pub(crate) const ALL: [Self; 8] = [
        Self::ClosedHere,
        Self::ClosedByPeer,
        Self::Drained,
        Self::LinkLost,
        Self::NotReached,
        Self::Refused,
        Self::Exhausted,
        Self::Invalid,
    ];

    /// Returns the name of its counter, without `sessions_ended_`.
    pub fn name(self) -> &'static str {
        &self.counter()["sessions_ended_".len()..]
    }

    /// Returns true if sessions end this way in normal operation.
    pub fn is_expected(self) -> bool {
        matches!(self, Self::ClosedHere | Self::ClosedByPeer | Self::Drained)
    }

    pub(crate) fn counter(self) -> &'static str {
        match self {
            Self::ClosedHere => "sessions_ended_closed_here",
            Self::ClosedByPeer => "sessions_ended_closed_by_peer",
            Self::Drained => "sessions_ended_drained",
            Self::LinkLost => "sessions_ended_link_lost",
            Self::NotReached => "sessions_ended_not_reached",
            Self::Refused => "sessions_ended_refused",
            Self::Exhausted => "sessions_ended_exhausted",
            Self::Invalid => "sessions_ended_invalid",
        }
    }
}
