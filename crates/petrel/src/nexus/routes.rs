//! The ways to remote processes.

use super::ids::ConnectionId;
use super::request::OpenRequest;

/// The connection to a remote process, or the pause before the next attempt.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// A connection in any phase.
    Connection(ConnectionId),
    /// The last connection broke before any use; the next attempt is due soon.
    Pause {
        /// Requests that wait for the next attempt.
        waiting: Vec<OpenRequest>,
        /// The number of attempts so far.
        attempt: u32,
    },
}
