//! A packet model of parallel paths, to choose between the policies of `petrel_proto::path`.
//!
//! A sender with a host's link of 40 Gbit/s sends one endless message over parallel links to a receiver, which
//! answers every packet with a CREDIT. Sender and receiver use the objects of the protocol core: [`Paths`], the
//! record of each packet's path, and the bitmap. There is no session, no congestion controller besides the policy's
//! window, no bundle of packets, and no processor. So the model shows which rules fit, and the simulator
//! (`petrel-sim`) shows later what sessions reach with them.
//!
//! | item | purpose |
//! | --- | --- |
//! | [`World`], [`Setup`] | a world to run |
//! | [`Link`], [`Marking`] | a link with a queue, marks, loss, and cuts |
//! | [`rows`] | the measurements of `docs/design/12-a-window-for-each-path.md` |
//! | [`figures`] | MP-RDMA's figures of queues, marks, cuts and disorder |
//!
//! [`Paths`]: petrel_proto::path::Paths

mod endless;
pub mod figures;
mod link;
mod random;
pub mod rows;
mod sender;
mod world;

pub use link::{Link, Marking, SLOPE, STEP};
pub use sender::Counts;
pub use world::{Change, Setup, World};

/// Payload of a packet in bytes.
pub const PAYLOAD_BYTES: u64 = 1_408;

/// A packet on the wire: with the headers of the core, UDP, IP and Ethernet, and Ethernet's gap.
pub const WIRE_BYTES: u64 = PAYLOAD_BYTES + 24 + 28 + 38;

/// The interval at which senders look at their timers, in nanoseconds.
pub const TICK_NS: u64 = 10_000;
