//! Overload: what keeps a server that is asked for more than it can do useful, and its clients patient.
//!
//! State machines without clocks, threads or randomness of their own: times are nanoseconds of any clock
//! that does not go back, and random numbers are passed in. Whoever owns calls or a queue asks them.
//!
//! | type | whose | what it decides |
//! | --- | --- | --- |
//! | [`Admission`] | a server's, for one queue | whether a request is taken in, and whether it is still run |
//! | [`ConcurrencyLimit`] | a client's, for one server | whether another call may be sent now |
//! | [`RetryBudget`] | a client's | whether a failed call may be made again |
//! | [`Backoff`] | a client's | how long to wait before that, or before connecting anew |
//!
//! A refused call costs the server a frame in and a frame out, but not the work: so a server refuses as
//! soon as it knows that a call would wait too long, and clients send fewer calls to a server that
//! refuses. `docs/overload.md` has the measurements.

mod admission;
mod backoff;
mod codel;
mod concurrency;
mod controlled;
mod expected;
mod retry;

pub use admission::{Admission, AdmissionConfig, Shed, Shedding, Waiting};
pub use backoff::{Backoff, BackoffConfig};
pub use concurrency::{ConcurrencyLimit, ConcurrencyLimitConfig, Permit};
pub use retry::{RetryBudget, RetryBudgetConfig};
