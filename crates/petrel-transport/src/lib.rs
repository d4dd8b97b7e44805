//! Transports for Petrel: unreliable datagrams, sent and received in bursts.
//!
//! A [`Transport`] carries *frames* between an endpoint and its peers. It may lose, duplicate and
//! reorder frames. It never changes a frame silently and never mixes the bytes of two frames. The
//! protocol core interprets frames; a transport only moves bytes.
//!
//! | module | contents |
//! | --- | --- |
//! | [`buf`] | message memory: regions, a pool by size class, and [`buf::PacketBuf`] |
//! | [`bundle`] | several frames in one datagram |
//! | [`clock`] | nanoseconds from a calibrated time stamp counter |
//! | [`wake`] | waking an endpoint that blocks |
//! | [`udp`] | kernel UDP, with GSO and GRO where the kernel has them |
//! | [`seal`] | the keys of sealed datagrams |
//! | [`shm`] | rings in shared memory, between processes of one host |
//! | [`stream`] | frames over TCP connections, where datagrams do not get through |
//! | [`heap`] | returning freed memory from the allocator to the system |
//! | [`huge_pages`] | memory in huge pages, for tables |
//! | [`words`] | memory that several processes access word by word |
//! | [`path`] | the kernel's measurements of the path to a peer |
//! | [`mux`] | two media as one transport |
//! | [`far`] | UDP, streams and an RDMA card as one transport |
//! | [`host`] | shared memory, UDP, TCP streams and an RDMA card as one transport, an endpoint's default |
//! | [`conformance`] | the test suite that every transport passes |
//!
//! Reliability, sessions and congestion control belong to the protocol core above this crate. The ciphers of sealed links come with
//! their keys, from another crate.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

#[cfg(test)]
#[macro_use]
extern crate petrel_planted;

pub mod buf;
pub mod bundle;
pub mod clock;
pub mod conformance;
mod copy;
#[doc(hidden)]
pub mod device;
pub mod far;
pub mod heap;
pub mod host;
pub mod huge_pages;
mod link;
pub mod mux;
pub mod path;
pub mod prefetch;
pub mod seal;
mod shared;
pub mod shm;
#[doc(hidden)]
pub mod socket_option;
pub mod stream;
pub mod transport;
pub mod udp;
#[doc(hidden)]
pub mod verbs;
pub mod wake;
pub mod words;

pub use shared::{PRIVATE_BYTES_MAX, SharedBytes};
pub use transport::{
    FrameHandler, LinkError, MIN_FRAME_BYTES, NoReturn, PeerId, PeerProcess, RX_BURST_MAX,
    ReceiveQueue, ReturnPath, Ring, SharedFrame, TX_BURST_MAX, Transport, TransportStats, TxFrame,
};
