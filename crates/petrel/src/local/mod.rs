//! Futures on an endpoint's own thread: calls started now and awaited later (RAMCloud's `start` and `wait`), and tasks
//! that await them.
//!
//! There is no runtime to set up: the endpoint's event loop polls the tasks. In each turn it receives frames, which
//! completes calls, polls the tasks that wait for these, starts their new calls, and sends. Futures queue their orders
//! in the shared [`Hub`], and the loop carries them out, because only the loop has the endpoint. So a future needs no
//! borrow of the endpoint, can be kept anywhere on the thread, and is `'static`.
//!
//! Calls are in a slab, and the continuation of a call is a plain function with the slab's key: starting a call
//! allocates nothing once the slab has grown.

mod calls;
mod connect;
mod executor;
mod handle;
mod hub;
mod parallel;
mod ready;
mod serve;
mod session;
mod slab;
mod sleep;
mod timers;
#[cfg(test)]
pub(crate) mod wakes;

pub use calls::Call;
pub use executor::Task;
pub use handle::Handle;
pub use parallel::Parallel;
pub use serve::OwnRequest;
pub use session::{Session, SessionCall};
pub use sleep::{Sleep, Timeout};

pub(crate) use calls::Start;
pub(crate) use connect::ConnectAnswer;
pub(crate) use hub::{Command, Hub};
pub(crate) use ready::MainWaker;
pub(crate) use slab::{Key, Slab};
pub(crate) use timers::{TimerId, Timers};
