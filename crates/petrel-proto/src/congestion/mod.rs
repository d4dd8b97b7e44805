//! Congestion control of client sessions (`docs/congestion.md`).
//!
//! A session in the client role has a [`Congestion`]. Acknowledgements, losses and timeouts are its input; the pace of
//! packets and the window of packets in flight are its output. Servers have no controller and pay nothing: every packet
//! of a server answers a packet of the client (eRPC §5.2).
//!
//! The common case is an uncongested session. Then an acknowledgement costs two comparisons
//! ([`Congestion::is_bypassed`]), and a packet to send one ([`Congestion::is_paced`]).
//!
//! ```
//! use petrel_proto::congestion::{
//!     Ack, CongestionConfig, CongestionControl, CongestionCounters, Flow, Rate, TimelyConfig,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = CongestionConfig::Timely(TimelyConfig::for_line(Rate::gbit(25)));
//! let control = CongestionControl::new(config)?;
//! let mut counters = CongestionCounters::default();
//! let mut session = control.start(Flow { credits: 32, packet_bytes: 1408, base_rtt_ns: 0 });
//!
//! // A short round trip changes nothing.
//! let mut ack = Ack { now_ns: 20_000, rtt_ns: Some(12_000), packets: 1, bytes: 1408, ce: false };
//! session.on_ack(&ack, &mut counters);
//! assert!(!session.is_paced());
//!
//! // Long ones for a whole round do.
//! for now_ns in [500_000, 900_000] {
//!     ack = Ack { now_ns, rtt_ns: Some(400_000), ..ack };
//!     session.on_ack(&ack, &mut counters);
//! }
//! assert!(session.is_paced());
//!
//! // A packet leaves when the pacer says so, and is charged then.
//! assert!(session.next_send_ns() <= 900_000);
//! session.charge(900_000, 1408);
//! # Ok(())
//! # }
//! ```
//!
//! # Where the state is
//!
//! All state is in the session, at most 136 bytes, of which the common case reads the first 12. The state
//! could be boxed when a session first leaves the bypass; but an allocation, or a pool with its own limit,
//! just when the network is congested, would only save some 80 bytes of a session that has a kilobyte for its
//! slots. The parameters are shared by all sessions of an endpoint.

mod config;
mod counters;
pub mod dcqcn;
mod evidence;
pub mod pacing;
mod rate;
mod state;
pub mod swift;
pub mod timely;

pub use config::{CongestionConfig, CongestionConfigError, CongestionControl};
pub use counters::CongestionCounters;
pub use dcqcn::{Dcqcn, DcqcnConfig};
pub use pacing::Pacer;
pub use rate::{Pace, Rate};
pub use state::Congestion;
pub use swift::{Swift, SwiftConfig};
pub use timely::{Gradient, Timely, TimelyConfig};

/// The default of the round trip of an RPC in a network without queues, in nanoseconds: one switch or two,
/// and hosts that poll. Longer paths, as between most virtual machines, must be configured by `for_path` or
/// [`Flow::base_rtt_ns`]. Otherwise a controller of round trips mistakes the distance for a queue and hardly
/// sends.
pub const BASE_RTT_NS: u32 = 10_000;

/// The input of a controller when packets of its session are acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The current time, in nanoseconds.
    pub now_ns: u64,
    /// The round trip of the acknowledged packet, less the handler's time, in nanoseconds; `None` if the
    /// packet was sent twice (Karn) or not measured.
    pub rtt_ns: Option<u64>,
    /// Packets newly acknowledged.
    pub packets: u32,
    /// Payload of these packets, in bytes.
    pub bytes: u32,
    /// True if a packet met congestion (ECN's CE, echoed by the peer).
    pub ce: bool,
}

/// The constant parameters of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Most packets in flight.
    pub credits: u32,
    /// Payload of a full packet, in bytes.
    pub packet_bytes: u32,
    /// The round trip of the session's path without queues, in nanoseconds: the shortest ever seen to this peer, by any
    /// session. Values below the configured round trip, 0 included, mean the configured round trip.
    ///
    /// A session cannot measure this value alone. When tried, a session that began in the middle of an incast
    /// took the queue for its path: after ninety latecomers the queue was more than four times as long, and
    /// Jain's index at 0.2 to 0.4.
    pub base_rtt_ns: u32,
}

impl Flow {
    /// The rate that the credits allow at a round trip, in bytes per second. Higher rates have no effect.
    fn rate_most(self, rtt_ns: u32) -> f64 {
        assert!(self.credits > 0, "a session with a controller has credits");
        let window_bytes = f64::from(self.credits) * f64::from(self.packet_bytes);
        window_bytes * 1e9 / f64::from(rtt_ns.max(1))
    }

    /// Packets sent at a rate in a round trip, the last one counted whole.
    fn packets_in(self, rate: f64, rtt_ns: u32) -> u32 {
        assert!(self.packet_bytes > 0, "a packet of a session with a controller has bytes");
        let bytes = rate * f64::from(rtt_ns) / 1e9;
        // The cast saturates.
        ((bytes / f64::from(self.packet_bytes)) as u32).saturating_add(1)
    }
}

/// A congestion controller of one session. Times are in nanoseconds and never decrease.
pub trait Controller {
    /// Packets were acknowledged.
    fn on_ack(&mut self, ack: &Ack);

    /// Packets were found lost.
    fn on_loss(&mut self, now_ns: u64, packets: u32);

    /// A retransmission timeout passed.
    fn on_timeout(&mut self, now_ns: u64);

    /// The rate at which packets may leave; `None` means at once.
    fn pacing(&self) -> Option<Rate>;

    /// Most packets in flight, at least one; `None` if the credits are the only bound.
    fn window(&self) -> Option<u32>;

    /// The longest round trip, in nanoseconds, without effect if unmarked; `None` if the controller needs
    /// every acknowledgement.
    fn bypass_rtt_ns(&self) -> Option<u32>;
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod turns;
