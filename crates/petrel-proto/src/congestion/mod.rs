//! Congestion control of client sessions (`docs/congestion.md`).
//!
//! A session in its client role has a [`Congestion`]: it hears of acknowledgements, losses and
//! timeouts, and says how fast packets may follow each other and how many may be on the way. Servers
//! have none and pay nothing: each packet of theirs answers one of the client's (eRPC §5.2).
//!
//! The common case is a session that is not congested. Then an acknowledgement costs two
//! comparisons ([`Congestion::is_bypassed`]), and a packet to send one ([`Congestion::is_paced`]).
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
//! let mut session = control.start(Flow { credits: 32, packet_bytes: 1408, bare_rtt_ns: 0 });
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
//! All of it is in the session, 112 bytes, of which the common case reads the first 12. It
//! could be boxed, made when a session leaves the bypass for the first time; but that is an
//! allocation, or a pool with its own limit, at the moment when the network is in trouble, to save
//! some 80 bytes of a session that has a kilobyte for its slots. The parameters are not in it: the
//! sessions of an endpoint share them.

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

/// The round trip of an RPC in a network without queues that the defaults assume, in nanoseconds: one
/// switch or two, and hosts that poll. On longer paths, as between most virtual machines, a
/// controller of round trips has to be told, by `for_path` or [`Flow::bare_rtt_ns`], or it takes the
/// distance for a queue and hardly sends.
pub const BARE_RTT_NS: u32 = 10_000;

/// What a client hears when packets of its session are acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// Now, in nanoseconds.
    pub now_ns: u64,
    /// The round trip of the packet that is acknowledged, without the time that its handler took,
    /// in nanoseconds; `None` if it was sent twice (Karn) or not measured.
    pub rtt_ns: Option<u64>,
    /// Packets newly acknowledged.
    pub packets: u32,
    /// Their payload, in bytes.
    pub bytes: u32,
    /// Whether one of them met congestion (ECN's CE, echoed by the peer).
    pub ce: bool,
}

/// What does not change in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Most packets on the way.
    pub credits: u32,
    /// Payload of a full packet, in bytes.
    pub packet_bytes: u32,
    /// The round trip of the session's path when nothing is queued, in nanoseconds, as far as is
    /// known: the shortest ever seen to this peer, by any session. 0, and whatever is shorter than
    /// the configuration's, is the configuration's.
    ///
    /// A session cannot find it out alone. One that begins in the middle of an incast would take the
    /// queue for its path, and did, when it was tried: after ninety latecomers the queue was more
    /// than four times as long, and Jain's index at 0.2 to 0.4.
    pub bare_rtt_ns: u32,
}

impl Flow {
    /// The rate that the credits allow at a round trip, in bytes per second: a higher one is
    /// meaningless.
    fn rate_most(self, rtt_ns: u32) -> f64 {
        let window_bytes = f64::from(self.credits) * f64::from(self.packet_bytes);
        window_bytes * 1e9 / f64::from(rtt_ns.max(1))
    }

    /// Packets that a rate sends in a round trip, the one begun included.
    fn packets_in(self, rate: f64, rtt_ns: u32) -> u32 {
        let bytes = rate * f64::from(rtt_ns) / 1e9;
        // The cast saturates.
        ((bytes / f64::from(self.packet_bytes)) as u32).saturating_add(1)
    }
}

/// A congestion control of one session. Times are in nanoseconds and never go back.
pub trait Controller {
    /// Packets were acknowledged.
    fn on_ack(&mut self, ack: &Ack);

    /// Packets were found lost.
    fn on_loss(&mut self, now_ns: u64, packets: u32);

    /// A retransmission timeout passed.
    fn on_timeout(&mut self, now_ns: u64);

    /// The rate at which packets may leave; `None`: at once.
    fn pacing(&self) -> Option<Rate>;

    /// Most packets in flight, at least one; `None`: as many as there are credits.
    fn window(&self) -> Option<u32>;

    /// The longest round trip that changes nothing, in nanoseconds, if it comes without a mark;
    /// `None`: every acknowledgement has to be heard.
    fn bypass_rtt_ns(&self) -> Option<u32>;
}

#[cfg(test)]
mod tests;
