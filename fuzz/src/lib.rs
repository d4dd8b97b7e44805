//! The checks of the fuzz targets: every target has a `check` function, which panics when an input
//! causes a failure.
//!
//! | module | subject |
//! | --- | --- |
//! | [`frame`] | the parsers of frames |
//! | [`bundle`] | the iterator over the frames of a datagram |
//! | [`control`] | the decoder of the control plane's messages |
//! | [`cores`] | two protocol cores that communicate over a medium under the input's control |
//! | [`multicast`] | a member of multicast groups, with frames from any sender |
//! | [`congestion`] | the congestion controller of a session, with any events and times |
//! | [`kv`] | messages, commands and images of the replicated store |
//! | [`cache`] | memcached's protocol, with a partition of the cache behind it |
//! | [`table`] | a server's tables of its typed services |
//! | [`metadata`] | bodies of calls with metadata, and details of errors |
//! | [`postcards`] | the reader of postcard's messages |
//! | [`tls`] | an end of a connection inside TLS, with bytes that its peer has not sent |
//! | [`ring`] | producer and consumer of a shared-memory ring whose shared words the input corrupts |
//! | [`worlds`] | whole worlds of the simulator |
//!
//! Some targets need private items, or share code with unit tests, and stand in the tested crates: `petrel_kv::fuzzing`,
//! `petrel::region::fuzzing`, `petrel::stream::fuzzing`, `petrel_transport::udp::fuzzing` and `petrel_transport::device::ether::fuzzing`, behind `cfg(fuzzing)`.
//!
//! The modules depend only on the tested crates. The ordinary tests of the crates include the modules as
//! files and replay the corpora, on stable Rust and without the fuzzer.

pub mod bundle;
pub mod cache;
pub mod congestion;
pub mod control;
pub mod cores;
pub mod frame;
pub mod input;
pub mod kv;
pub mod metadata;
pub mod multicast;
pub mod postcards;
pub mod ring;
pub mod table;
pub mod tls;
pub mod worlds;
