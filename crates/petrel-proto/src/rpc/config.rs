//! The configuration of a core.

use crate::congestion::CongestionControl;
use crate::limits;
use crate::recovery::Recovery;
use crate::recovery::rtt::RtoBounds;

/// The configuration of a core, common to all sessions of an endpoint.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bounds of the retransmission timeout.
    pub rto: RtoBounds,
    /// The method of recovery from loss.
    pub recovery: Recovery,
    /// The congestion control of the sessions in their client role.
    pub congestion: CongestionControl,
    /// Unanswered timeouts after which a call fails. With the default bounds, 14 take about 3.5 s after the
    /// first measurement: more than three heartbeats, so that the control plane detects a dead peer first.
    pub retries_max: u8,
    /// Time limit of a call without a deadline, in nanoseconds: 60 s, so that every call ends, and a handler
    /// may take longer than any network. Counted from the call while it waits for a slot, and from the first
    /// transmission after that. The limit is not sent to the server. `u64::MAX` means no limit.
    pub call_timeout_ns: u64,
    /// Most sessions, in both roles together, up to [`limits::SESSIONS_MAX`].
    pub sessions_max: u32,
    /// Memory of this endpoint for messages, in bytes. A server derives the shares of sessions and peers from
    /// it (`docs/wire-protocol.md` §6.4). An endpoint sets its pool's limit here.
    pub memory_bytes: u64,
    /// Most waiting calls in a session's queue.
    pub backlog_max: usize,
    /// Enables the fast paths. Without them all calls take the slower general path, to measure the
    /// difference.
    pub fast_path: bool,
    /// Enables grants for response packets beyond the first, so that a large response does not wait for
    /// another round trip.
    pub response_grants: bool,
}

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The violated rule.
    pub fn check(&self) -> Result<(), &'static str> {
        self.rto.check()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rto: RtoBounds::default(),
            recovery: Recovery::default(),
            congestion: CongestionControl::default(),
            retries_max: 14,
            call_timeout_ns: 60_000_000_000,
            sessions_max: limits::SESSIONS_MAX,
            memory_bytes: limits::MEMORY_BYTES_DEFAULT,
            backlog_max: limits::BACKLOG_CALLS_MAX,
            fast_path: true,
            response_grants: true,
        }
    }
}
