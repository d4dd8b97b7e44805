//! DCQCN's reaction point (Zhu et al., SIGCOMM'15): a rate from ECN marks.
//!
//! The published algorithm: a notification of a mark sets the target to the current rate, takes `alpha / 2`
//! off the current rate, and raises `alpha`, the estimate of the share of marked packets. Without
//! notifications `alpha` decays with a timer. Every expiry of a second timer, and every `increase_bytes`, move
//! the current rate half the way to the target. After the fifth time the target grows by itself (additive),
//! and when both have expired more often, faster and faster (hyper).
//!
//! Departures, with their reasons:
//!
//! * **Marks come with acknowledgements.** So this end, and not the receiver as in the paper, merges marks
//!   into one notification per `notify_ns`. One more condition: the marked packet was sent after the last
//!   reduction. The paper needs no such condition, with round trips shorter than `notify_ns`. But where a
//!   queue of 32 packets from every one of a hundred senders makes them 1.5 ms, every packet in the queue
//!   would reduce again. Until then marks still hold increases back.
//! * **A window follows the rate**: no more in flight than the rate sends in `window_ns`. With a pace alone,
//!   a hundred senders at 25 Gbit/s swung between an empty queue and 1.5 ms.
//! * **No rate exceeds the credits** at the round trip seen, as for [Timely](super::timely).
//! * **There are no timers.** Acknowledgements bring the time, and make up for up to 64 expiries since the
//!   last one.
//! * **The bypass**: at the line rate nothing is counted and nothing paced. A mark ends the bypass, and
//!   begins with `alpha = 1` and the line rate as the target, like a new rate limiter in the paper. One stray
//!   mark thus costs four expiries of the timer.
//! * **Losses count as marks** where they are too many for chance: the paper has a lossless fabric.

use std::sync::Arc;

use petrel_planted::planted;

use super::evidence::{Losses, answer_ns_max, saturating_u32_ns};
use super::{Ack, BASE_RTT_NS, Controller, Flow, Rate};

/// Parameters of DCQCN.
#[derive(Clone, Debug, PartialEq)]
pub struct DcqcnConfig {
    /// The rate of the host's own link: the limit of an uncongested session.
    pub line_rate: Rate,
    /// The least rate of a session.
    pub min_rate: Rate,
    /// Gain of the estimate of marks, 0 to 1.
    pub gain: f64,
    /// Least time between reductions, in nanoseconds.
    pub notify_ns: u32,
    /// Time after which the estimate of marks decays, in nanoseconds.
    pub alpha_ns: u32,
    /// Time of an increase, in nanoseconds.
    pub increase_ns: u32,
    /// Bytes of an increase.
    pub increase_bytes: u32,
    /// The round trip of an RPC without queues, in nanoseconds, for sessions without a value of their own
    /// ([`Flow::base_rtt_ns`]).
    pub base_rtt_ns: u32,
    /// A time in nanoseconds: the packets in flight are at most the rate's packets in this time.
    pub window_ns: u32,
    /// Increases that only recover a reduction.
    pub recovery_stages: u8,
    /// The additive increase of the target.
    pub step: Rate,
    /// The unit of hyper increases; every further increase adds another unit.
    pub hyper_step: Rate,
}

impl DcqcnConfig {
    /// Returns the defaults for a link, on a network of one switch or two: [`BASE_RTT_NS`].
    pub fn for_line(line_rate: Rate) -> Self {
        Self::for_path(line_rate, BASE_RTT_NS)
    }

    /// Returns the defaults for a link and paths with this round trip without queues; `docs/congestion.md`
    /// explains every value.
    pub fn for_path(line_rate: Rate, base_rtt_ns: u32) -> Self {
        Self {
            line_rate,
            min_rate: Rate::mbit(10),
            gain: 1.0 / 256.0,
            notify_ns: 50_000,
            alpha_ns: 55_000,
            increase_ns: 55_000,
            increase_bytes: 64 << 10,
            base_rtt_ns,
            window_ns: base_rtt_ns.saturating_add(30_000),
            recovery_stages: 5,
            step: Rate::bytes_per_second(line_rate.get() / 1000),
            hyper_step: Rate::bytes_per_second(line_rate.get() / 100),
        }
    }
}

impl Default for DcqcnConfig {
    /// Returns the defaults for a line of 100 Gbit/s, which serve slower lines as well: see
    /// `docs/congestion.md`. Only the rate from which reductions start and the steps of growth depend on the
    /// line.
    fn default() -> Self {
        Self::for_line(Rate::gbit(100))
    }
}

/// A session that reaches this share of the line rate is uncongested again.
const UNCONGESTED_SHARE: f64 = 0.95;

/// Most expiries made up for at one acknowledgement: all within 3.5 ms of silence. A longer silence does not
/// show that the path is free.
const CATCH_UP_MAX: u64 = 64;

/// A session under DCQCN.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    config: Arc<DcqcnConfig>,
    flow: Flow,
    /// The current rate and the target, in bytes per second.
    rate: f64,
    target: f64,
    /// The estimate of the share of marked packets.
    alpha: f64,
    /// The time of the last reduction.
    reduced_ns: u64,
    /// The times of the timers' last expiries.
    decayed_ns: u64,
    increased_ns: u64,
    bytes: u32,
    time_stage: u8,
    byte_stage: u8,
    losses: Losses,
    is_limited: bool,
}

impl Dcqcn {
    /// Makes an uncongested session. The configuration has been validated.
    pub(super) fn new(config: Arc<DcqcnConfig>, flow: Flow) -> Self {
        assert!(config.validate().is_ok(), "a configuration is checked before sessions use it");
        let line = config.line_rate.as_f64();
        Self {
            config,
            flow,
            rate: line,
            target: line,
            alpha: 1.0,
            reduced_ns: 0,
            decayed_ns: 0,
            increased_ns: 0,
            bytes: 0,
            time_stage: 0,
            byte_stage: 0,
            losses: Losses::default(),
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

    fn on_mark(&mut self, now_ns: u64, rtt_ns: Option<u64>) {
        let rtt_ns = rtt_ns.unwrap_or(0);
        let is_news = now_ns.saturating_sub(rtt_ns) >= self.reduced_ns
            && now_ns.saturating_sub(self.reduced_ns) >= u64::from(self.config.notify_ns);
        if !self.is_limited || is_news {
            self.reduce(now_ns, rtt_ns);
        } else if !planted("proto_dcqcn_second_mark_unheard") {
            self.restart_increases(now_ns);
        }
    }

    /// Reacts to a notification as in the paper.
    fn reduce(&mut self, now_ns: u64, rtt_ns: u64) {
        if !self.is_limited {
            self.is_limited = true;
            if !planted("proto_dcqcn_alpha_stays") {
                self.alpha = 1.0;
            }
        }
        assert!((0.0..=1.0).contains(&self.alpha), "the share of marked packets is at most 1");
        let least = self.config.min_rate.as_f64();
        self.target = self.rate.min(self.flow.rate_most(saturating_u32_ns(rtt_ns))).max(least);
        self.rate = (self.target * (1.0 - self.alpha / 2.0)).max(least);
        self.alpha = (1.0 - self.config.gain) * self.alpha + self.config.gain;
        (self.reduced_ns, self.decayed_ns) = (now_ns, now_ns);
        self.restart_increases(now_ns);
        self.assert_sound();
    }

    /// Checks the rates of a limited session.
    fn assert_sound(&self) {
        let (least, line) = (self.config.min_rate.as_f64(), self.config.line_rate.as_f64());
        assert!(self.rate >= least, "a session sends at the least rate at least");
        assert!(self.rate <= self.target, "a rate is at most its target");
        assert!(self.target <= line, "a target is at most the rate of the line");
    }

    fn restart_increases(&mut self, now_ns: u64) {
        (self.time_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        self.increased_ns = now_ns;
    }

    /// Makes up for expiries of the timers and the byte counter.
    fn catch_up(&mut self, now_ns: u64, bytes: u32) {
        for _ in 0..expiries(&mut self.decayed_ns, now_ns, self.config.alpha_ns) {
            self.alpha *= 1.0 - self.config.gain;
        }
        for _ in 0..expiries(&mut self.increased_ns, now_ns, self.config.increase_ns) {
            self.time_stage = self.time_stage.saturating_add(1);
            self.increase();
        }
        assert!(
            self.bytes < self.config.increase_bytes,
            "bytes that are enough for an increase cause it at once"
        );
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= self.config.increase_bytes {
            self.bytes %= self.config.increase_bytes;
            self.byte_stage = self.byte_stage.saturating_add(1);
            self.increase();
        }
        self.assert_sound();
        if self.rate >= UNCONGESTED_SHARE * self.config.line_rate.as_f64() {
            self.rate = self.config.line_rate.as_f64();
            self.is_limited = false;
        }
    }

    fn increase(&mut self) {
        assert!(self.is_limited, "only a limited rate grows");
        assert!(self.rate <= self.target, "a rate is at most its target");
        let recovery = self.config.recovery_stages;
        let (less, more) = match self.time_stage < self.byte_stage {
            true => (self.time_stage, self.byte_stage),
            false => (self.byte_stage, self.time_stage),
        };
        if less > recovery {
            self.target += f64::from(less - recovery) * self.config.hyper_step.as_f64();
        } else if more > recovery {
            self.target += self.config.step.as_f64();
        }
        self.target = self.target.min(self.config.line_rate.as_f64());
        let before = self.rate;
        self.rate = (self.target + before) / 2.0;
        assert!(self.rate >= before, "an increase does not lower the rate");
    }
}

/// Returns the expiries of a timer of `interval_ns` since `last_ns`, and advances `last_ns`.
fn expiries(last_ns: &mut u64, now_ns: u64, interval_ns: u32) -> u64 {
    let passed_ns = now_ns.saturating_sub(*last_ns);
    let count = passed_ns / u64::from(interval_ns);
    *last_ns += count * u64::from(interval_ns);
    count.min(CATCH_UP_MAX)
}

impl Controller for Dcqcn {
    fn on_ack(&mut self, ack: &Ack) {
        let answer_ns_max = answer_ns_max(self.is_limited, self.flow.base_rtt_ns);
        self.losses.on_ack(ack.now_ns, ack.packets, answer_ns_max);
        if self.is_limited {
            self.catch_up(ack.now_ns, ack.bytes);
        }
        if ack.ce {
            self.on_mark(ack.now_ns, ack.rtt_ns);
        }
    }

    fn on_loss(&mut self, now_ns: u64, packets: u32) {
        if self.losses.on_loss(packets) {
            self.reduce(now_ns, 0);
        } else if self.losses.forbid_growth() {
            self.restart_increases(now_ns);
        }
    }

    fn on_timeout(&mut self, now_ns: u64) {
        if self.losses.on_timeout(now_ns) {
            self.reduce(now_ns, 0);
        }
    }

    fn pacing(&self) -> Option<Rate> {
        self.is_limited.then(|| Rate::from_f64(self.rate))
    }

    fn window(&self) -> Option<u32> {
        let window_ns = self.config.window_ns.saturating_add(self.excess_ns());
        self.is_limited.then(|| self.flow.packets_in(self.rate, window_ns))
    }

    fn bypass_rtt_ns(&self) -> Option<u32> {
        let is_calm = !self.is_limited && !self.losses.is_counting();
        is_calm.then_some(u32::MAX)
    }
}

#[cfg(test)]
mod tests;
