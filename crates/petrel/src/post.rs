//! What other threads post to an endpoint.

use petrel_proto::{CallLimits, RequestHandle, SessionId, Status};

use crate::client::state::{CallState, Pending};
use crate::sync::{Arc, AtomicBool};

/// Something that an endpoint is to do for another thread.
pub(crate) enum Post {
    /// Answer a request.
    Answer(Answer),
    /// Answer a request whose handler was not run and will not be.
    Refuse(Refuse),
    /// Make a call.
    Start(StartCall),
    /// Cancel a call: nobody wants its outcome.
    Cancel(Arc<CallState>),
}

/// The answer to a request: the message, or a text for people if `status` is not OK.
pub(crate) struct Answer {
    pub(crate) handle: RequestHandle,
    pub(crate) status: Status,
    pub(crate) message: Vec<u8>,
    /// The request's flag, to be used again.
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// The refusal of a request, with a text for people.
pub(crate) struct Refuse {
    pub(crate) handle: RequestHandle,
    pub(crate) status: Status,
    pub(crate) text: &'static str,
}

/// A call to make.
pub(crate) struct StartCall {
    pub(crate) pending: Pending,
    pub(crate) session: SessionId,
    pub(crate) method: u16,
    pub(crate) request: Vec<u8>,
    pub(crate) response_max: usize,
    pub(crate) limits: CallLimits,
}
