//! Swift (Kumar et al., SIGCOMM'20): a window from the distance of the delay to a target.
//!
//! The published algorithm, for each acknowledgement: below the target delay the window grows by
//! `increase` packets in a round trip; above it, at most once a round trip, it shrinks to
//! `1 - beta (delay - target) / delay` of itself, and at most by `reduction_max`. The target rises
//! as the window falls, by one over its root (*flow scaling*): more flows need a longer queue to
//! keep it busy. A window below one packet is a pace: one packet each `rtt / window`.
//!
//! Departures from it, each with its reason:
//!
//! * **Endpoint delay is part of the delay.** Swift has two windows, one for the fabric's delay and
//!   one for the hosts', told apart by time stamps of the NICs. Petrel's acknowledgements carry no
//!   time of the peer's, so there is one window, of the whole round trip; `target_ns` holds what
//!   two hosts need.
//! * **The number of hops** is not known either, and in `target_ns` too.
//! * **The bypass**, as for [Timely](super::timely): with the window at the credits, round trips up
//!   to `target_ns` change nothing, and a longer one only opens a round. Swift's window would be
//!   back after one hiccup in some 16 round trips; without the round it would leave at each.
//! * **A loss counts** where it is not alone, see `evidence.rs`: at a random loss of 10⁻² the
//!   published rule would hold the window at a dozen packets on an empty path.

use std::sync::Arc;

use petrel_planted::planted;

use super::evidence::{Losses, Round, answer_ns_max, narrow_ns};
use super::{Ack, BARE_RTT_NS, Controller, Flow, Rate};

/// The longest between two packets of a paced session. The published window goes down to a
/// thousandth; after a storm of losses a session then has nothing to learn from for seconds.
const GAP_NS_MAX: f64 = 1e6;

/// Parameters of Swift.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiftConfig {
    /// The round trip of an RPC when nothing is queued, in nanoseconds, where a session is not told of
    /// its own ([`Flow::bare_rtt_ns`]).
    pub bare_rtt_ns: u32,
    /// Target of the round trip with a large window, in nanoseconds: the bare path, the hosts, and
    /// some queueing.
    pub target_ns: u32,
    /// What the target grows by at most for small windows, in nanoseconds.
    pub scaling_ns: u32,
    /// Windows, in packets, at which the target has grown by all of `scaling_ns`, and by nothing.
    pub scaling_window_min: f64,
    /// See `scaling_window_min`.
    pub scaling_window_max: f64,
    /// Packets by which the window grows in a round trip.
    pub increase: f64,
    /// Strength of reductions, 0 to 1.
    pub beta: f64,
    /// The share of the window that one reduction takes at most, 0 to 1.
    pub reduction_max: f64,
    /// Least window, in packets.
    pub window_min: f64,
}

impl SwiftConfig {
    /// The defaults for any link, on a network of one switch or two: [`BARE_RTT_NS`].
    pub fn new() -> Self {
        Self::for_path(BARE_RTT_NS)
    }

    /// The defaults for paths with this round trip when nothing is queued, of an RPC from host to
    /// host; `docs/congestion.md` says where each comes from.
    pub fn for_path(bare_rtt_ns: u32) -> Self {
        Self {
            bare_rtt_ns,
            target_ns: bare_rtt_ns.saturating_add(20_000),
            scaling_ns: 50_000,
            scaling_window_min: 0.1,
            scaling_window_max: 100.0,
            increase: 1.0,
            beta: 0.8,
            reduction_max: 0.5,
            window_min: 0.01,
        }
    }

    /// The target for a window (SIGCOMM'20, §3.5, without hops), in nanoseconds.
    fn target_ns(&self, window: f64) -> f64 {
        let [of_window, of_min, of_max] =
            [window, self.scaling_window_min, self.scaling_window_max].map(inverse_root);
        let share = (of_window - of_max) / (of_min - of_max);
        f64::from(self.target_ns) + f64::from(self.scaling_ns) * share.clamp(0.0, 1.0)
    }
}

impl Default for SwiftConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// IEEE 754 asks for the square root to be exact to the last bit, as for a division: it is the same
/// on every machine.
fn inverse_root(of: f64) -> f64 {
    1.0 / of.sqrt()
}

/// A session under Swift.
#[derive(Clone, Debug)]
pub struct Swift {
    config: Arc<SwiftConfig>,
    /// Packets.
    window: f64,
    /// When the window was reduced last.
    reduced_ns: u64,
    round: Round,
    rtt_ns: u32,
    flow: Flow,
    losses: Losses,
    is_limited: bool,
}

impl Swift {
    /// An uncongested session. The configuration has been validated.
    pub(super) fn new(config: Arc<SwiftConfig>, flow: Flow) -> Self {
        Self {
            config,
            window: f64::from(flow.credits),
            reduced_ns: 0,
            round: Round::CLOSED,
            rtt_ns: 0,
            flow,
            losses: Losses::default(),
            is_limited: false,
        }
    }

    fn on_round_trip(&mut self, ack: &Ack, rtt_ns: u32) {
        self.rtt_ns = rtt_ns;
        if self.is_limited {
            self.adjust(ack, rtt_ns);
        } else if rtt_ns <= self.target_ns_least() {
            self.round = Round::CLOSED;
        } else if !self.round.is_open() {
            self.round = Round::open(ack.now_ns);
        } else if let Some(shortest) = self.round.note(ack.now_ns, rtt_ns, 0)
            && !planted("proto_swift_round_without_end")
        {
            self.round = Round::CLOSED;
            self.is_limited = true;
            self.adjust(ack, shortest);
        }
    }

    /// Whether the session sends about as little as it ever does.
    pub(super) fn is_at_floor(&self) -> bool {
        self.is_limited && self.window <= 2.0 * self.config.window_min
    }

    pub(super) fn flow_mut(&mut self) -> &mut Flow {
        &mut self.flow
    }

    /// By how much this path is longer than the configuration says, in nanoseconds.
    fn excess_ns(&self) -> u32 {
        self.flow.bare_rtt_ns.saturating_sub(self.config.bare_rtt_ns)
    }

    /// The target of the largest windows.
    fn target_ns_least(&self) -> u32 {
        self.config.target_ns.saturating_add(self.excess_ns())
    }

    fn adjust(&mut self, ack: &Ack, rtt_ns: u32) {
        let delay = f64::from(rtt_ns);
        let target = self.config.target_ns(self.window) + f64::from(self.excess_ns());
        if delay <= target {
            if !self.losses.forbid_growth() {
                self.grow(ack.packets);
            }
        } else if self.can_reduce(ack.now_ns, rtt_ns) {
            let factor = 1.0 - self.config.beta * (delay - target) / delay;
            self.reduce(ack.now_ns, factor);
        }
    }

    /// Packets that were repeated have come through. That tells no round trip; but a session that has
    /// nothing but repetitions to send would stay at its least window for as long as they last.
    fn on_untimed(&mut self, packets: u32) {
        if self.window < 1.0 && !self.losses.forbid_growth() {
            let added = self.config.increase * f64::from(packets);
            self.window = (self.window + added).min(1.0);
        }
    }

    fn grow(&mut self, packets: u32) {
        let added = self.config.increase * f64::from(packets);
        self.window += if self.window >= 1.0 { added / self.window } else { added };
        if self.window >= f64::from(self.flow.credits) {
            self.window = f64::from(self.flow.credits);
            self.is_limited = false;
        }
    }

    /// Whether the packet with this round trip was sent with the window of now.
    fn can_reduce(&self, now_ns: u64, rtt_ns: u32) -> bool {
        now_ns.saturating_sub(u64::from(rtt_ns)) >= self.reduced_ns
    }

    fn reduce(&mut self, now_ns: u64, factor: f64) {
        let factor = factor.max(1.0 - self.config.reduction_max);
        self.window = (self.window * factor).max(self.config.window_min);
        self.reduced_ns = now_ns;
    }

    /// Reacts to losses that are too many for chance.
    fn on_losses(&mut self, now_ns: u64) {
        self.is_limited = true;
        self.round = Round::CLOSED;
        self.reduce(now_ns, 0.0);
    }
}

impl Controller for Swift {
    fn on_ack(&mut self, ack: &Ack) {
        let answer_ns_max = answer_ns_max(self.is_limited, self.flow.bare_rtt_ns);
        self.losses.on_ack(ack.now_ns, ack.packets, answer_ns_max);
        match ack.rtt_ns {
            Some(rtt_ns) => self.on_round_trip(ack, narrow_ns(rtt_ns)),
            None => self.on_untimed(ack.packets),
        }
    }

    fn on_loss(&mut self, now_ns: u64, packets: u32) {
        if self.losses.on_loss(packets) {
            self.on_losses(now_ns);
        }
    }

    fn on_timeout(&mut self, now_ns: u64) {
        if self.losses.on_timeout(now_ns) {
            self.on_losses(now_ns);
        }
    }

    fn pacing(&self) -> Option<Rate> {
        if self.window >= 1.0 {
            return None;
        }
        let packet_bytes = f64::from(self.flow.packet_bytes);
        let per_packet_ns = (f64::from(self.rtt_ns.max(1)) / self.window).min(GAP_NS_MAX);
        Some(Rate::from_f64(packet_bytes * 1e9 / per_packet_ns))
    }

    fn window(&self) -> Option<u32> {
        // At least one: a smaller window is a pace.
        self.is_limited.then_some((self.window as u32).max(1))
    }

    fn bypass_rtt_ns(&self) -> Option<u32> {
        let is_calm = !self.is_limited && !self.round.is_open() && !self.losses.is_counting();
        is_calm.then(|| self.target_ns_least())
    }
}

#[cfg(test)]
mod tests;
