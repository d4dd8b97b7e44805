//! Transports for Petrel: unreliable datagrams, sent and received in bursts.
//!
//! A [`Transport`] carries *frames* between this endpoint and its peers. It may lose, duplicate
//! and reorder them, never change them silently and never mix the bytes of two. What a frame means
//! is the business of the protocol core; a transport only moves bytes.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`buf`] | message memory: regions, a pool by size class, and [`buf::PacketBuf`] |
//! | [`bundle`] | several frames in one datagram |
//! | [`clock`] | nanoseconds from a calibrated time stamp counter |
//! | [`wake`] | waking an endpoint that blocks |
//! | [`udp`] | kernel UDP, with GSO and GRO where the kernel has them |
//! | [`shm`] | rings in shared memory, between processes of one host |
//! | [`heap`] | giving memory back that the allocator keeps |
//! | [`path`] | what the kernel knows of the path to a peer |
//! | [`host`] | both at once: what an endpoint uses by default |
//! | [`conformance`] | the suite that every transport passes |
//!
//! What this crate does not do: reliability, sessions, congestion control, encryption. Those
//! belong to the protocol core above it.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

pub mod buf;
pub mod bundle;
pub mod clock;
pub mod conformance;
mod copy;
pub mod heap;
pub mod host;
pub mod path;
mod shared;
pub mod shm;
pub mod transport;
pub mod udp;
pub mod wake;

pub use shared::{PRIVATE_BYTES_MAX, SharedBytes};
pub use transport::{
    FrameHandler, LinkError, MIN_FRAME_BYTES, PeerId, PeerProcess, RX_BURST_MAX, ReturnPath,
    SharedFrame, TX_BURST_MAX, Transport, TransportStats, TxFrame,
};
