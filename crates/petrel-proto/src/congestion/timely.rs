//! Timely (Mittal et al., SIGCOMM'15), with eRPC's bypass (§5.2.2): a rate from round trips.
//!
//! The published algorithm, for every completion with its round trip:
//!
//! 1. Below `low_ns` the rate grows by `step`.
//! 2. Above `high_ns` the rate shrinks to `1 - beta (1 - high / rtt)` of itself.
//! 3. In between the gradient decides, the smoothed change of the round trip over `min_rtt_ns`. If not
//!    positive, the rate grows by `step`, five times as fast from the fifth time on (HAI). If positive, the
//!    rate shrinks to `1 - beta gradient`.
//!
//! Departures, with their reasons:
//!
//! * **Once a round** (`evidence.rs`), with the round's shortest round trip. eRPC updates with every packet
//!   and weighs by the time since the last; then the first packet of a burst decides.
//! * **The bypass has a memory.** In eRPC a session is uncongested as long as its rate *equals* the line's.
//!   So one round trip of 50 µs in an interrupted host costs thousands of RPCs: the rate falls at once, and
//!   climbs back by 5 MB/s at a time. Here a long round trip only opens a round; the session leaves the
//!   bypass when the whole round was long.
//! * **The rate climbs back faster.** After `hai_rounds` rounds below `low_ns` the rate also grows by a share
//!   of itself every round, the larger the shorter the round trip: without a queue the competing senders have
//!   left.
//! * **A window follows the rate**: no more in flight than the rate sends in `low_ns`. With a pace alone the
//!   queue is the integral of the senders' excess rates. The controllers see the queue a round trip late, and
//!   the queue swings: with 20 senders at 25 Gbit/s between 20 and 300 µs. With the window the round trip is
//!   in proportion to the sum of the rates, and settles.
//! * **Gradients are weighted** by default (Zhu et al., CoNEXT'16, "patched Timely"). The published rule is
//!   at rest with any division of the link and any length of the queue. Zhu's has one fixed point, equal
//!   rates and a round trip of `low (1 + flows · step / (beta · line))`.
//! * **No rate exceeds the credits** at the round trip seen: `window / rtt`. A hundred sessions that start at
//!   line rate are near their fair shares after the first reduction.
//! * **A reduction at most halves** the rate, as in eRPC's code and Zhu's.

use std::sync::Arc;

use petrel_planted::planted;

use super::evidence::{Losses, Round, answer_ns_max, saturating_u32_ns};
use super::{Ack, BASE_RTT_NS, Controller, Flow, Rate};

/// The rule that derives a rate from the round trip's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradient {
    /// By its sign, as published in 2015.
    Signed,
    /// By Zhu's weight, which also depends on the distance of the round trip above `low_ns`.
    Weighted,
}

/// Parameters of Timely.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelyConfig {
    /// The rate of the host's own link: the limit of an uncongested session.
    pub line_rate: Rate,
    /// The least rate of a session.
    pub min_rate: Rate,
    /// The round trip of an RPC without queues, in nanoseconds, for sessions without a value of their own
    /// ([`Flow::base_rtt_ns`]).
    pub base_rtt_ns: u32,
    /// The longest uncongested round trip, in nanoseconds.
    pub low_ns: u32,
    /// The round trip above which the rate shrinks for any gradient, in nanoseconds.
    pub high_ns: u32,
    /// The unit of gradients, and the shortest round, in nanoseconds.
    pub min_rtt_ns: u32,
    /// Weight of the newest round in the smoothed change of the round trip, 0 to 1.
    pub alpha: f64,
    /// Strength of reductions, 0 to 1.
    pub beta: f64,
    /// Additive increase of a round.
    pub step: Rate,
    /// Rounds of increase after which increases are hyperactive.
    pub hai_rounds: u8,
    /// The share by which the rate grows in a hyperactive round below `low_ns`, 0 to 1; 0 as published.
    pub recovery: f64,
    /// The rule for gradients.
    pub gradient: Gradient,
    /// Whether short round trips of an uncongested session bypass the controller (eRPC §5.2.2); true, except to measure
    /// the effect.
    pub bypass: bool,
    /// Whether packets of an uncongested session bypass the pacer; true, except to measure the effect. Otherwise they
    /// are paced at the line rate.
    pub pacer_bypass: bool,
}

impl TimelyConfig {
    /// Returns the defaults for a link, on a network of one switch or two: [`BASE_RTT_NS`].
    pub fn for_line(line_rate: Rate) -> Self {
        Self::for_path(line_rate, BASE_RTT_NS)
    }

    /// Returns the defaults for a link and paths with this round trip of an RPC from host to host, without
    /// queues; `docs/congestion.md` explains every value.
    pub fn for_path(line_rate: Rate, base_rtt_ns: u32) -> Self {
        let low_ns = base_rtt_ns.saturating_add(40_000);
        Self {
            line_rate,
            min_rate: Rate::mbit(10),
            base_rtt_ns,
            low_ns,
            high_ns: low_ns.saturating_mul(20),
            min_rtt_ns: base_rtt_ns.max(1_000),
            alpha: 0.46,
            beta: 0.26,
            step: Rate::bytes_per_second(line_rate.get() / 625),
            hai_rounds: 5,
            recovery: 0.25,
            gradient: Gradient::Weighted,
            bypass: true,
            pacer_bypass: true,
        }
    }
}

/// A session that reaches this share of the line rate is uncongested again. Pacing the last steps to the line
/// rate would be useless.
const UNCONGESTED_SHARE: f64 = 0.95;

/// Steps of a hyperactive increase (SIGCOMM'15, §4.3).
const HAI_STEPS: f64 = 5.0;

/// The least factor of a reduction.
const REDUCTION_MIN: f64 = 0.5;

/// A session under Timely.
#[derive(Clone, Debug)]
pub struct Timely {
    config: Arc<TimelyConfig>,
    /// Bytes per second.
    rate: f64,
    /// Smoothed change of the round trip per round, in nanoseconds.
    change_ns: f64,
    round: Round,
    rtt_before_ns: u32,
    flow: Flow,
    losses: Losses,
    /// Rounds of increase in a row.
    increases: u8,
    is_limited: bool,
}

impl Timely {
    /// Makes an uncongested session. The configuration has been validated.
    pub(super) fn new(config: Arc<TimelyConfig>, flow: Flow) -> Self {
        assert!(config.validate().is_ok(), "a configuration is checked before sessions use it");
        Self {
            rate: config.line_rate.as_f64(),
            config,
            change_ns: 0.0,
            round: Round::CLOSED,
            rtt_before_ns: 0,
            flow,
            losses: Losses::default(),
            increases: 0,
            is_limited: false,
        }
    }

    pub(super) fn flow_mut(&mut self) -> &mut Flow {
        &mut self.flow
    }

    /// The extra length of this path over the configured round trip, in nanoseconds.
    fn excess_ns(&self) -> u32 {
        self.flow.base_rtt_ns.saturating_sub(self.config.base_rtt_ns)
    }

    fn low_ns(&self) -> u32 {
        self.config.low_ns.saturating_add(self.excess_ns())
    }

    fn high_ns(&self) -> u32 {
        self.config.high_ns.saturating_add(self.excess_ns())
    }

    fn on_round_trip(&mut self, now_ns: u64, rtt_ns: u32) {
        if !self.is_limited && rtt_ns <= self.low_ns() {
            self.round = Round::CLOSED;
            return;
        }
        if !self.round.is_open() {
            self.round = Round::open(now_ns);
            return;
        }
        if let Some(shortest) = self.round.note(now_ns, rtt_ns, self.config.min_rtt_ns) {
            if !self.is_limited {
                self.limit(shortest);
            }
            self.end_round(shortest);
        }
    }

    /// Leaves the bypass. Nothing is known about gradients yet.
    fn limit(&mut self, rtt_ns: u32) {
        self.is_limited = true;
        self.rtt_before_ns = rtt_ns;
        if !planted("proto_timely_gradient_stays") {
            self.change_ns = 0.0;
        }
        self.increases = 0;
    }

    fn end_round(&mut self, rtt_ns: u32) {
        assert!(self.is_limited, "a round changes the rate of a limited session");
        let gradient = self.note_gradient(rtt_ns);
        if rtt_ns <= self.low_ns() {
            return self.increase_when_low();
        }
        match self.config.gradient {
            Gradient::Signed => self.by_sign(rtt_ns, gradient),
            Gradient::Weighted => self.by_weight(rtt_ns, gradient),
        }
    }

    fn note_gradient(&mut self, rtt_ns: u32) -> f64 {
        let change_ns = f64::from(rtt_ns) - f64::from(self.rtt_before_ns);
        let alpha = self.config.alpha;
        self.rtt_before_ns = rtt_ns;
        self.change_ns = (1.0 - alpha) * self.change_ns + alpha * change_ns;
        assert!(self.change_ns.is_finite(), "a gradient is a number");
        self.change_ns / f64::from(self.config.min_rtt_ns)
    }

    /// Hyperactive increases lessen as the round trip nears `low_ns`. Otherwise many sessions together would
    /// run far beyond `low_ns` before any of them notices.
    fn increase_when_low(&mut self) {
        let mut steps = 1.0;
        if self.count_increase() {
            let room = 1.0 - f64::from(self.rtt_before_ns) / f64::from(self.low_ns());
            assert!(room >= 0.0, "a low round trip is below the threshold");
            let share = self.config.recovery * room * self.rate;
            steps += (HAI_STEPS - 1.0) * room + share / self.config.step.as_f64();
        }
        self.add_steps(steps);
        self.release_at_line();
    }

    fn by_sign(&mut self, rtt_ns: u32, gradient: f64) {
        if rtt_ns > self.high_ns() {
            let excess = 1.0 - f64::from(self.high_ns()) / f64::from(rtt_ns);
            self.reduce(rtt_ns, 1.0 - self.config.beta * excess);
        } else if gradient > 0.0 {
            self.reduce(rtt_ns, 1.0 - self.config.beta * gradient);
        } else {
            let steps = if self.count_increase() { HAI_STEPS } else { 1.0 };
            self.add_steps(steps);
        }
    }

    /// Zhu et al., CoNEXT'16, algorithm 2; but above `high_ns` all weight is on the round trip. In this range
    /// the published reduction is weaker: 1.5 ms would take 9 % of the rate, 0.9 ms half of it.
    fn by_weight(&mut self, rtt_ns: u32, gradient: f64) {
        let low = f64::from(self.low_ns());
        let is_high = rtt_ns > self.high_ns();
        let weight = if is_high { 1.0 } else { (2.0 * gradient + 0.5).clamp(0.0, 1.0) };
        let error = (f64::from(rtt_ns) - low) / low;
        assert!(error >= 0.0, "a round trip below the threshold has no weight");
        self.reduce(rtt_ns, 1.0 - self.config.beta * weight * error);
        self.add_steps(1.0 - weight);
    }

    /// Counts an increase. Returns true if increases are hyperactive now.
    fn count_increase(&mut self) -> bool {
        self.increases = self.increases.saturating_add(1);
        self.increases >= self.config.hai_rounds
    }

    fn add_steps(&mut self, steps: f64) {
        assert!(steps >= 0.0, "an increase does not lower the rate");
        if self.losses.forbid_growth() {
            return;
        }
        self.set_rate(self.rate + steps * self.config.step.as_f64());
    }

    fn release_at_line(&mut self) {
        let line = self.config.line_rate.as_f64();
        if self.rate >= UNCONGESTED_SHARE * line {
            self.rate = line;
            self.round = Round::CLOSED;
            self.is_limited = false;
        }
    }

    fn reduce(&mut self, rtt_ns: u32, factor: f64) {
        assert!(factor <= 1.0, "a reduction does not raise the rate");
        let useful = self.flow.rate_most(rtt_ns);
        self.increases = 0;
        self.set_rate(self.rate.min(useful) * factor.max(REDUCTION_MIN));
    }

    fn set_rate(&mut self, rate: f64) {
        assert!(!rate.is_nan(), "a rate is a number");
        self.rate = rate.clamp(self.config.min_rate.as_f64(), self.config.line_rate.as_f64());
    }

    /// Reacts to losses that are too many for chance: halves the rate, and opens a new round.
    fn on_losses(&mut self, now_ns: u64) {
        let rtt_ns = self.rtt_before_ns.max(self.config.min_rtt_ns);
        if !self.is_limited {
            self.limit(rtt_ns);
        }
        self.reduce(rtt_ns, REDUCTION_MIN);
        self.round = Round::open(now_ns);
    }
}

impl Timely {
    fn is_calm(&self) -> bool {
        !self.is_limited && !self.round.is_open() && !self.losses.is_counting()
    }

    /// Returns true if the controller hears of round trips that change nothing, because its bypass is off.
    pub(super) fn hears_when_calm(&self) -> bool {
        !self.config.bypass && self.is_calm()
    }
}

impl Controller for Timely {
    fn on_ack(&mut self, ack: &Ack) {
        let answer_ns_max = answer_ns_max(self.is_limited, self.flow.base_rtt_ns);
        self.losses.on_ack(ack.now_ns, ack.packets, answer_ns_max);
        if let Some(rtt_ns) = ack.rtt_ns {
            self.on_round_trip(ack.now_ns, saturating_u32_ns(rtt_ns));
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
        let Self { config, rate, .. } = self;
        assert!(
            *rate >= config.min_rate.as_f64() && *rate <= config.line_rate.as_f64(),
            "a rate is between the least rate and the line's"
        );
        (self.is_limited || !config.pacer_bypass).then(|| Rate::from_f64(self.rate))
    }

    fn window(&self) -> Option<u32> {
        self.is_limited.then(|| self.flow.packets_in(self.rate, self.low_ns()))
    }

    fn bypass_rtt_ns(&self) -> Option<u32> {
        let has_bypasses = self.config.bypass && self.config.pacer_bypass;
        (has_bypasses && self.is_calm()).then_some(self.low_ns())
    }
}

#[cfg(test)]
mod tests;
