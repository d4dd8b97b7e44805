//! Overload control: keeps an overloaded server useful, and makes its clients back off.
//!
//! State machines without clocks, threads or randomness of their own: times are nanoseconds of any clock that does not
//! go back, and random numbers are arguments. The owner of the calls or of the queue drives them.
//!
//! | type | used by | decision |
//! | --- | --- | --- |
//! | [`Admission`] | a server, per queue | whether a request is queued, and whether it is still run |
//! | [`ConcurrencyLimit`] | a client, per server | whether another call may be sent now |
//! | [`RetryBudget`] | a client | whether a failed call may be made again |
//! | [`Backoff`] | a client | how long to wait before a retry or a reconnect |
//!
//! A refused call costs the server a received and a sent frame, but not the work. A server therefore refuses as soon as
//! it expects a call to wait too long, and clients send fewer calls to a server that refuses. `docs/overload.md` has
//! the measurements.

mod admission;
mod backoff;
mod concurrency;
mod expected;
mod retry;

pub use admission::{Admission, AdmissionConfig, Shed, Shedding, Waiting};
pub use backoff::{Backoff, BackoffConfig};
pub use concurrency::{ConcurrencyLimit, ConcurrencyLimitConfig, Permit};
pub use retry::{RetryBudget, RetryBudgetConfig};
