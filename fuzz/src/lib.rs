//! What the fuzz targets do with an input: one `check` function for each, which panics when an
//! input does harm.
//!
//! | module | what it feeds |
//! | --- | --- |
//! | [`frame`] | the parsers of frames |
//! | [`bundle`] | the iterator over the frames of a datagram |
//! | [`control`] | the decoder of the control plane's messages |
//! | [`cores`] | two protocol cores that talk over a medium which the input directs |
//! | [`multicast`] | a member of groups, with frames of anyone |
//! | [`congestion`] | the congestion control of a session, with any events and times |
//! | [`kv`] | messages, commands and images of the replicated store |
//! | [`index`] | the messages of the ordered index |
//! | [`ring`] | both ends of a shared-memory ring whose shared words the input spoils |
//!
//! Two targets stand in the crates that they test, which show them to nobody else: `petrel_kv::fuzzing` and
//! `petrel_transport::udp::fuzzing`, both behind `cfg(fuzzing)`.
//!
//! The modules depend on nothing but the crates that they test, so that the ordinary tests of those
//! crates include them as files and replay the corpora, on stable Rust and without the fuzzer.

pub mod bundle;
pub mod congestion;
pub mod control;
pub mod cores;
pub mod frame;
pub mod index;
pub mod input;
pub mod kv;
pub mod multicast;
pub mod ring;
