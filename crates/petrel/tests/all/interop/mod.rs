//! Calls to a second process, modelled on the interoperability tests of gRPC implementations (the "interoperability
//! test case descriptions" in the documents of gRPC), and the effects of killing, stopping or restarting it.
//!
//! The second process is this program, started again: see [`process`].

mod failures;
mod pair;
mod process;
mod restarts;
mod service;
mod statuses;
