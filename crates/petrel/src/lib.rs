//! Petrel: datacenter RPC.

pub mod control;
mod endpoint;
mod msgbuf;
pub mod nexus;

pub use endpoint::{
    CallWaitError, ConnectError, Context, Endpoint, EndpointConfig, EndpointStats, Handled,
    IdlePolicy, Reply, Request, Responder, SessionConfig, SessionState, StartError, Stop,
};
pub use msgbuf::MsgBuf;
pub use nexus::{Nexus, NexusBuilder, NexusError};
pub use petrel_proto as proto;
pub use petrel_proto::{
    CallError, CallFailure, CallRejected, Execution, SessionId, Status,
};
pub use petrel_transport as transport;
