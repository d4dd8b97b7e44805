//! What may be wished for a call.

use std::time::Duration;

/// What may be wished for a call, beside what it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// How long the call may take.
    pub timeout: Option<Duration>,
    /// Bytes of the buffer for the response, for calls that are futures: a longer response gets a
    /// larger buffer when it comes, which costs a copy less if it is known before.
    pub response_bytes: Option<usize>,
}
