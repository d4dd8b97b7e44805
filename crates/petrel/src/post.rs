//! What other threads post to an endpoint.

use petrel_proto::{RequestHandle, SessionId, Status};

use crate::client::state::Pending;

/// Something that an endpoint is to do for another thread.
pub(crate) enum Post {
    /// Answer a request.
    Answer(Answer),
    /// Answer one that it was not executed.
    Refuse { handle: RequestHandle, status: Status, message: &'static str },
    /// Make a call.
    Start(StartCall),
}

/// The answer to a request: the message, or a text for people if `status` is not OK.
pub(crate) struct Answer {
    pub(crate) handle: RequestHandle,
    pub(crate) status: Status,
    pub(crate) message: Vec<u8>,
}

/// A call to make.
pub(crate) struct StartCall {
    pub(crate) pending: Pending,
    pub(crate) session: SessionId,
    pub(crate) method: u16,
    pub(crate) request: Vec<u8>,
    pub(crate) response_max: usize,
}
