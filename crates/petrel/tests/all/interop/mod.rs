//! Calls to a second process, after the cases by which gRPC's implementations test each other (the
//! "interoperability test case descriptions" in the documents of gRPC), and what is seen of one that is
//! killed, stopped or started again.
//!
//! The second process is this program, started again: [`process`] tells how.

mod failures;
mod giving_up;
mod messages;
mod pair;
mod process;
mod restarts;
mod service;
mod statuses;
