//! Futures on an endpoint's own thread: calls that are started now and waited for later, and tasks that await them.
//!
//! There is no runtime to set up: the endpoint's event loop polls the tasks. [`Endpoint::handle`](crate::Endpoint::handle) and
//! [`Endpoint::session`](crate::Endpoint::session) are the ways in.

pub use crate::local::{
    Call, Handle, OwnRequest, Parallel, Session, SessionCall, Sleep, Task, Timeout,
};
