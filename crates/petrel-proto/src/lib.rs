//! The protocol core of Petrel.

pub mod bitmap;
pub mod buffer;
pub mod control;
pub mod counters;
pub mod limits;
pub mod recovery;
pub mod rpc;
pub mod session;
pub mod status;
pub mod timer;
pub mod wire;

pub use rpc::{
    Accepted, CallError, CallFailure, CallRejected, Closed, Completion, Config, Core, Event,
    Execution, OpenError, Received, RequestHandle, RespondError, RespondRejected, Transmit,
};
pub use session::{Agreed, PeerKey, SessionId};
pub use status::Status;
