//! Futures on an endpoint's own thread: calls started now and awaited later (RAMCloud's `start` and `wait`), and tasks
//! that await them.
//!
//! There is no runtime to set up: the endpoint's event loop polls the tasks. A turn receives frames, completes calls, polls
//! the tasks that wait for the calls, and sends. The loop lends the endpoint to the tasks that it polls, whose calls are
//! thus made at once. Outside of tasks, and for other orders, futures queue in the shared [`Hub`], and the loop carries the
//! orders out. So a future needs no borrow of the endpoint, can be kept anywhere on the thread, and is `'static`.
//!
//! The tables of the hub (`calls`, `tasks`, `orders`, `timers`, `watch`) do not know the hub, and the hub does not know the futures.
//! Nothing here knows the endpoint, which lends itself without a type. Calls of sessions, and handlers that are futures, use the endpoint
//! and belong to it (`endpoint/session_call.rs`, `endpoint/serve.rs`).
//!
//! Calls are in a slab, and the continuation of a call has the slab's key as its number: starting a call allocates
//! nothing once the slab has grown.

mod call;
mod calls;
pub(crate) mod client_call;
mod completions;
mod connect;
mod handle;
mod hub;
mod lent;
mod object_counts;
mod orders;
mod parallel;
mod ready;
mod session;
mod slab;
mod sleep;
mod spares;
mod task;
mod tasks;
mod timers;
#[cfg(test)]
pub(crate) mod wakes;
mod watch;

pub use call::Call;
pub use handle::Handle;
pub use object_counts::LocalObjectCounts;
pub use parallel::Parallel;
pub use session::Session;
pub use sleep::{Sleep, Timeout};
pub use task::Task;

pub(crate) use calls::Start;
pub(crate) use hub::{Hub, endpoint_gone};
pub(crate) use orders::{Command, Destination};
pub(crate) use ready::MainWaker;
pub(crate) use slab::{Key, Slab};
pub(crate) use spares::Spares;
pub(crate) use tasks::TaskFuture;
pub(crate) use timers::{TimerId, Timers};
pub(crate) use watch::SessionMedium;
