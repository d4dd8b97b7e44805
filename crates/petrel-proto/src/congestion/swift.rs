//! Swift (Kumar et al., SIGCOMM'20): a window from the distance of the delay to a target.
//!
//! The published algorithm, for every acknowledgement: below the target delay the window grows by `increase`
//! packets in a round trip. Above the target the window shrinks, at most once a round trip, to `1 - beta
//! (delay - target) / delay` of itself, and by no more than `reduction_max`. The target rises as the window
//! falls, with the inverse root of the window (*flow scaling*): more flows need a longer queue to keep the
//! link busy. A window below one packet is a pace: one packet every `rtt / window`.
//!
//! Departures, with their reasons:
//!
//! * **Endpoint delay is part of the delay.** Swift has two windows, one for the fabric's delay and one for
//!   the hosts', told apart by time stamps of the NICs. Petrel's acknowledgements carry no time of the
//!   peer's, hence a single window for the whole round trip; `target_ns` includes the delay of two hosts.
//! * **The number of hops** is unknown too, and part of `target_ns`.
//! * **The bypass**, as for [Timely](super::timely): with the window at the credits, round trips up to
//!   `target_ns` change nothing, and a longer round trip only opens a round. After one hiccup Swift's window would
//!   be back in some 16 round trips; without the round the session would leave the bypass at every hiccup.
//! * **A loss counts** only with others, see `evidence.rs`: at a random loss of 10⁻² the published rule would
//!   hold the window at a dozen packets on an empty path.

use std::sync::Arc;

use petrel_planted::planted;

use super::evidence::{Losses, Round, answer_ns_max, saturating_u32_ns};
use super::{Ack, BASE_RTT_NS, Controller, Flow, Rate};

/// The longest time between two packets of a paced session. The published window goes down to a thousandth;
/// after many losses a session would then get no feedback for seconds.
const GAP_NS_MAX: f64 = 1e6;

/// Parameters of Swift.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiftConfig {
    /// The round trip of an RPC without queues, in nanoseconds, for sessions without a value of their own
    /// ([`Flow::base_rtt_ns`]).
    pub base_rtt_ns: u32,
    /// Target round trip for a large window, in nanoseconds: the path without queues, the hosts, and some
    /// queueing.
    pub target_ns: u32,
    /// The most that small windows add to the target, in nanoseconds.
    pub scaling_ns: u32,
    /// The window, in packets, at which the target has grown by all of `scaling_ns`.
    pub scaling_window_min: f64,
    /// The window, in packets, at which the target has not grown.
    pub scaling_window_max: f64,
    /// Growth of the window in a round trip, in packets.
    pub increase: f64,
    /// Strength of reductions, 0 to 1.
    pub beta: f64,
    /// The largest reduction, as a share of the window, 0 to 1.
    pub reduction_max: f64,
    /// Least window, in packets.
    pub window_min: f64,
}

impl SwiftConfig {
    /// Returns the defaults for any link, on a network of one switch or two: [`BASE_RTT_NS`].
    pub fn new() -> Self {
        Self::for_path(BASE_RTT_NS)
    }

    /// Returns the defaults for paths with this round trip of an RPC from host to host, without queues;
    /// `docs/congestion.md` explains every value.
    pub fn for_path(base_rtt_ns: u32) -> Self {
        Self {
            base_rtt_ns,
            target_ns: base_rtt_ns.saturating_add(20_000),
            scaling_ns: 50_000,
            scaling_window_min: 0.1,
            scaling_window_max: 100.0,
            increase: 1.0,
            beta: 0.8,
            reduction_max: 0.5,
            window_min: 0.01,
        }
    }

    /// Returns the target for a window (SIGCOMM'20, §3.5, without hops), in nanoseconds.
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

/// IEEE 754 demands exact rounding of the square root, as of a division: the result is equal on every
/// machine.
fn inverse_root(of: f64) -> f64 {
    1.0 / of.sqrt()
}

/// A session under Swift.
#[derive(Clone, Debug)]
pub struct Swift {
    config: Arc<SwiftConfig>,
    /// Packets.
    window: f64,
    /// The time of the last reduction.
    reduced_ns: u64,
    round: Round,
    rtt_ns: u32,
    flow: Flow,
    losses: Losses,
    is_limited: bool,
}

impl Swift {
    /// Makes an uncongested session. The configuration has been validated.
    pub(super) fn new(config: Arc<SwiftConfig>, flow: Flow) -> Self {
        assert!(config.validate().is_ok(), "a configuration is checked before sessions use it");
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

    /// Returns true if the session's window is near its least value.
    pub(super) fn is_at_floor(&self) -> bool {
        self.is_limited && self.window <= 2.0 * self.config.window_min
    }

    pub(super) fn flow_mut(&mut self) -> &mut Flow {
        &mut self.flow
    }

    /// The extra length of this path over the configured round trip, in nanoseconds.
    fn excess_ns(&self) -> u32 {
        self.flow.base_rtt_ns.saturating_sub(self.config.base_rtt_ns)
    }

    /// The target of the largest windows.
    fn target_ns_least(&self) -> u32 {
        self.config.target_ns.saturating_add(self.excess_ns())
    }

    fn adjust(&mut self, ack: &Ack, rtt_ns: u32) {
        let delay = f64::from(rtt_ns);
        let target = self.config.target_ns(self.window) + f64::from(self.excess_ns());
        assert!(self.is_limited, "only a limited window is adjusted");
        assert!(target > 0.0, "the target of a round trip is a time");
        if delay <= target {
            if !self.losses.forbid_growth() {
                self.grow(ack.packets);
            }
        } else if self.can_reduce(ack.now_ns, rtt_ns) {
            let factor = 1.0 - self.config.beta * (delay - target) / delay;
            self.reduce(ack.now_ns, factor);
        }
    }

    /// Repeated packets were acknowledged. No round trip is known; but a session with nothing but repetitions
    /// to send would otherwise stay at its least window for as long as they last.
    fn on_untimed(&mut self, packets: u32) {
        if self.window < 1.0 && !self.losses.forbid_growth() {
            let added = self.config.increase * f64::from(packets);
            self.window = (self.window + added).min(1.0);
        }
    }

    fn grow(&mut self, packets: u32) {
        let added = self.config.increase * f64::from(packets);
        assert!(added >= 0.0, "a window grows by a share of a packet");
        self.window += if self.window >= 1.0 { added / self.window } else { added };
        if self.window >= f64::from(self.flow.credits) {
            self.window = f64::from(self.flow.credits);
            self.is_limited = false;
        }
    }

    /// Returns true if the packet with this round trip was sent with the current window.
    fn can_reduce(&self, now_ns: u64, rtt_ns: u32) -> bool {
        now_ns.saturating_sub(u64::from(rtt_ns)) >= self.reduced_ns
    }

    fn reduce(&mut self, now_ns: u64, factor: f64) {
        assert!(self.is_limited, "only a limited window is reduced");
        assert!(factor <= 1.0, "a reduction does not make a window larger");
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
        let answer_ns_max = answer_ns_max(self.is_limited, self.flow.base_rtt_ns);
        self.losses.on_ack(ack.now_ns, ack.packets, answer_ns_max);
        match ack.rtt_ns {
            Some(rtt_ns) => self.on_round_trip(ack, saturating_u32_ns(rtt_ns)),
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
        assert!(self.window >= self.config.window_min, "a window is at least the least one");
        let per_packet_ns = (f64::from(self.rtt_ns.max(1)) / self.window).min(GAP_NS_MAX);
        Some(Rate::from_f64(packet_bytes * 1e9 / per_packet_ns))
    }

    fn window(&self) -> Option<u32> {
        assert!(
            self.window > 0.0 && self.window <= f64::from(self.flow.credits),
            "a window is above 0 and at most the credits"
        );
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
