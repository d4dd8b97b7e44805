//! Futures on an endpoint's own thread: calls started now and awaited later, and tasks that await them.
//!
//! There is no runtime to set up: the endpoint's event loop polls the tasks. Start with
//! [`Endpoint::handle`](crate::Endpoint::handle) or [`Endpoint::session`](crate::Endpoint::session).

pub use crate::endpoint::serve::OwnRequest;
pub use crate::local::{Call, Handle, Parallel, Session, Sleep, Task, Timeout};
