//! A deterministic simulator for Petrel.
//!
//! Real endpoints run here on virtual hosts: the same code as on a NIC, over a [transport](SimTransport) with packets
//! that travel through a simulated [`fabric`] in virtual time. Links have rate and delay, queues and switches have
//! finite buffers. Faults can be injected: loss, duplication, reordering, corruption, delay spikes, partitions, pauses,
//! crashes and restarts. A seed determines a run to the picosecond.
//!
//! ```
//! use petrel_sim::fabric::{FabricConfig, FabricHandle, HostId, LinkConfig, SimAddr, Topology};
//! use petrel_sim::{SimTransport, SimTransportConfig};
//! use petrel_transport::{Transport, TxFrame};
//!
//! let topology = Topology::pair(Default::default(), LinkConfig::gbit(100, 500));
//! let fabric = FabricHandle::new(&topology, FabricConfig::default(), 7)?;
//! let bind = |host| {
//!     SimTransport::bind(&fabric, SimAddr::new(HostId(host), 1), SimTransportConfig::default())
//! };
//! let (mut a, mut b) = (bind(0)?, bind(1)?);
//! let peer = a.add_peer(b.addr().into())?;
//! b.add_peer(a.addr().into())?;
//! assert_eq!(a.tx_burst(&[TxFrame { peer, head: b"hello", body: b"" }]), 0);
//! fabric.advance(1_000);
//! let mut got = Vec::new();
//! b.rx_burst(64, |_, frame| got.extend_from_slice(frame));
//! assert_eq!(got, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | item | purpose |
//! | --- | --- |
//! | [`fabric`] | topologies, queues, links, switches, faults of links and hosts |
//! | [`SimTransport`] | the transport of an endpoint on the fabric |
//! | [`control`] | the production nexuses of a fabric, in virtual time |
//! | [`check`] | scenarios drawn from a seed, and the rules that each run must keep |
//! | [`service`] | an application's servers and clients in simulated scenarios |
//! | [`nexus`] | scenarios of the production nexus alone |
//! | [`multicast_world`] | calls to groups by multicast in simulated scenarios |
//! | [`Simulation`], [`Actor`] | the scheduling of actors |
//! | [`World`] | actors and control planes under rules: the loop of all checkers |
//! | [`Trace`] | a line for each event |
//! | [`Rng`], [`Time`] | randomness that never changes; picoseconds |
//!
//! The simulator has no threads, real TCP, memory shared by two running processes, processor caches or real
//! time of day.

// Tests are named `function__condition`.
#![cfg_attr(test, allow(non_snake_case))]

pub mod check;
pub mod control;
mod device;
pub mod fabric;
pub mod multicast_world;
mod net;
pub mod nexus;
mod peers;
mod push_check;
mod queue;
mod ring;
mod rng;
pub mod seeds;
pub mod service;
mod simulation;
mod time;
mod trace;
mod transport;
mod udp;
mod world;

pub use ring::{DataLink, RingLink, SealedPath, WakeFaults};
pub use rng::{Probability, Rng};
pub use simulation::{Actor, Simulation, Stop};
pub use time::Time;
pub use trace::{FrameDecoder, LineSink, Trace};
pub use transport::{FRAME_BYTES, Medium, SOURCE_PORTS_MAX, SimTransport, SimTransportConfig};
pub use world::{SimEndpoint, World, run_turn, start_endpoint};

/// Its programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing-services.md")]
struct TestingServices;
