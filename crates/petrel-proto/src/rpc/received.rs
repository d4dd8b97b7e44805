//! The meaning of a received frame for the application.

use super::{Completion, RequestHandle, Shared};
use crate::buffer::{Buffer, Placed};

/// The meaning of a received frame for the application.
#[derive(Debug)]
pub enum Received<'f, B, T = u64> {
    /// Nothing: the frame was for the core, or was dropped and counted.
    Nothing,
    /// A request of one packet, still in the receive buffer. It must be answered.
    Request {
        /// Names the request in the answer.
        handle: RequestHandle,
        /// The method called.
        method: u16,
        /// The whole request.
        payload: &'f [u8],
        /// The buffer of the slot's former answer, for reuse (eRPC §4.3: the preallocated response).
        spare: Option<B>,
        /// The request's deadline, if any: later than now, on this core's clock.
        deadline_ns: Option<u64>,
    },
    /// A request of several packets, reassembled. It must be answered.
    Message {
        /// Names the request in the answer.
        handle: RequestHandle,
        /// The method called.
        method: u16,
        /// The whole request.
        message: B,
        /// The application's memory that has the request's bytes; the message is then empty.
        placed: Option<Placed>,
        /// The request's deadline, if any: later than now, on this core's clock.
        deadline_ns: Option<u64>,
    },
    /// A call ended.
    Completed(Completion<B, T>),
}

/// Counts a frame that violates the format.
#[cold]
pub(in crate::rpc) fn malformed<'f, B: Buffer, T>(shared: &mut Shared<B>) -> Received<'f, B, T> {
    shared.counters.dropped_malformed += 1;
    Received::Nothing
}
