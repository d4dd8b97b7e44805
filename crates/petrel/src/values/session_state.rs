//! The state of a session, as applications see it.

use crate::control::Reason;

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// The peer has not answered yet. Calls wait.
    Opening,
    /// Calls are sent.
    Open,
    /// The server is about to end: outstanding calls continue, further ones are rejected, and the session closes after
    /// the last.
    Draining,
    /// The session has ended; with the reason, if recent.
    Ended(Option<Reason>),
}
