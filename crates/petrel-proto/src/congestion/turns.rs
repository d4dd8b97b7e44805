//! Timely and DCQCN beside their papers' rules, through several congestions in the life of a session.
//!
//! The models state the rules of the papers, with the departures in the documentation of the modules. Later congestions begin at the
//! line rate, or in the middle of a recovery: state of the first congestion must not act again.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Enough credits for any rate in these tests.
const WIDE: Flow = Flow { credits: 65_536, packet_bytes: 1408, base_rtt_ns: 0 };
const LINE: f64 = 3.125e9;
const LEAST: f64 = 1.25e6;

/// Compares the pace of a session with a rate, or with none.
fn assert_paced(controller: &impl Controller, rate: Option<f64>, at: &str) {
    let pace = controller.pacing().map(|rate| rate.get() as f64);
    let is_near = match (pace, rate) {
        (Some(pace), Some(rate)) => (pace - rate).abs() < 1.0 + rate * 1e-9,
        (pace, rate) => pace == rate,
    };
    assert!(is_near, "{pace:?}, not {rate:?}, {at}");
}

/// Timely by SIGCOMM'15, algorithm 1, or with `is_weighted` by CoNEXT'16, algorithm 2. Times are in microseconds.
struct TimelyPaper {
    is_weighted: bool,
    recovery: f64,
    rate: f64,
    difference: f64,
    previous: f64,
    /// Increases without a decrease between.
    increases: u32,
    is_limited: bool,
    has_round: bool,
}

impl TimelyPaper {
    const T_LOW: f64 = 50.0;
    const T_HIGH: f64 = 1_000.0;
    const MIN_RTT: f64 = 10.0;
    const ALPHA: f64 = 0.46;
    const BETA: f64 = 0.26;
    const DELTA: f64 = LINE / 625.0;

    fn round(&mut self, rtt: f64) {
        if !self.is_limited {
            // The bypass: a second long round after a first.
            if rtt <= Self::T_LOW || !self.has_round {
                self.has_round = rtt > Self::T_LOW;
                return;
            }
            (self.is_limited, self.previous, self.difference, self.increases) = (true, rtt, 0.0, 0);
        }
        self.difference += Self::ALPHA * (rtt - self.previous - self.difference);
        self.previous = rtt;
        let gradient = self.difference / Self::MIN_RTT;
        if rtt <= Self::T_LOW {
            return self.recover(1.0 - rtt / Self::T_LOW);
        }
        if self.is_weighted {
            let weight =
                if rtt > Self::T_HIGH { 1.0 } else { (2.0 * gradient + 0.5).clamp(0.0, 1.0) };
            self.decrease(Self::BETA * weight * (rtt - Self::T_LOW) / Self::T_LOW);
            self.set(self.rate + (1.0 - weight) * Self::DELTA);
        } else if rtt > Self::T_HIGH {
            self.decrease(Self::BETA * (1.0 - Self::T_HIGH / rtt));
        } else if gradient > 0.0 {
            self.decrease(Self::BETA * gradient);
        } else {
            self.increases += 1;
            let steps = if self.increases >= 5 { 5.0 } else { 1.0 };
            self.set(self.rate + steps * Self::DELTA);
        }
    }

    /// An increase below the low threshold. From the fifth on, a departure lets the rate grow with the room below the threshold.
    fn recover(&mut self, room: f64) {
        self.increases += 1;
        let (steps, share) =
            if self.increases >= 5 { (1.0 + 4.0 * room, self.recovery * room) } else { (1.0, 0.0) };
        self.set(self.rate * (1.0 + share) + steps * Self::DELTA);
        if self.rate >= 0.95 * LINE {
            (self.rate, self.is_limited, self.has_round) = (LINE, false, false);
        }
    }

    fn decrease(&mut self, part: f64) {
        self.increases = 0;
        self.set(self.rate * (1.0 - part.min(0.5)));
    }

    fn set(&mut self, rate: f64) {
        self.rate = rate.clamp(LEAST, LINE);
    }
}

/// DCQCN, SIGCOMM'15, §3.1: the reaction point with two timers and a byte counter. Times are in nanoseconds.
struct DcqcnPaper {
    current: f64,
    target: f64,
    alpha: f64,
    cut_at: u64,
    decay_at: u64,
    increase_at: u64,
    bytes: u32,
    /// Expiries of the timer and of the byte counter since the last mark.
    stages: [u32; 2],
    is_limited: bool,
}

impl DcqcnPaper {
    const G: f64 = 1.0 / 256.0;
    const F: u32 = 5;
    const TIMER: u64 = 55_000;
    const BYTES: u32 = 64 << 10;

    fn ack(&mut self, ack: &Ack) {
        if self.is_limited {
            while self.decay_at <= ack.now_ns {
                self.alpha *= 1.0 - Self::G;
                self.decay_at += Self::TIMER;
            }
            while self.increase_at <= ack.now_ns {
                self.increase(0);
                self.increase_at += Self::TIMER;
            }
            self.bytes += ack.bytes;
            if self.bytes >= Self::BYTES {
                self.bytes -= Self::BYTES;
                self.increase(1);
            }
            if self.current >= 0.95 * LINE {
                (self.current, self.is_limited) = (LINE, false);
            }
        }
        if ack.ce {
            self.mark(ack.now_ns, ack.now_ns - ack.rtt_ns.unwrap());
        }
    }

    fn mark(&mut self, now: u64, sent: u64) {
        if !self.is_limited {
            (self.is_limited, self.alpha, self.cut_at) = (true, 1.0, 0);
        }
        if self.cut_at == 0 || (sent >= self.cut_at && now >= self.cut_at + 50_000) {
            self.target = self.current;
            self.current = (self.current * (1.0 - self.alpha / 2.0)).max(LEAST);
            self.alpha = (1.0 - Self::G) * self.alpha + Self::G;
            (self.cut_at, self.decay_at) = (now, now + Self::TIMER);
        }
        (self.stages, self.bytes, self.increase_at) = ([0, 0], 0, now + Self::TIMER);
    }

    fn increase(&mut self, cause: usize) {
        self.stages[cause] += 1;
        let (least, most) =
            (self.stages[0].min(self.stages[1]), self.stages[0].max(self.stages[1]));
        if least > Self::F {
            self.target += f64::from(least - Self::F) * LINE / 100.0;
        } else if most > Self::F {
            self.target += LINE / 1000.0;
        }
        self.target = self.target.min(LINE);
        self.current = (self.current + self.target) / 2.0;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A congestion has runs of long round trips, with a first round trip and a change per round, and then short round trips.
    #[test]
    fn timely__follows_its_paper_in_each_of_several_congestions(
        is_weighted: bool,
        has_recovery: bool,
        congestions in vec((vec((51..1_500u64, -60..60i64, 1..14i64), 1..4), 0..700u64, 10..50u64), 3..=5),
    ) {
        let gradient = if is_weighted { Gradient::Weighted } else { Gradient::Signed };
        let recovery = if has_recovery { 0.25 } else { 0.0 };
        let config = TimelyConfig { gradient, recovery, ..TimelyConfig::for_line(Rate::gbit(25)) };
        let mut timely = Timely::new(Arc::new(config), WIDE);
        let mut paper = TimelyPaper {
            is_weighted,
            recovery,
            rate: LINE,
            difference: 0.0,
            previous: 0.0,
            increases: 0,
            is_limited: false,
            has_round: false,
        };
        let mut now_ns = 1_000_000;
        for (number, (runs, calm, short)) in congestions.into_iter().enumerate() {
            let long = runs.iter().flat_map(|&(first, change, rounds)| {
                (0..rounds).map(move |round| first.saturating_add_signed(round * change).max(51))
            });
            for rtt in long.chain((0..calm).map(|_| short)) {
                now_ns += rtt * 1_000;
                let rtt_ns = Some(rtt * 1_000);
                timely.on_ack(&Ack { now_ns, rtt_ns, packets: 1, bytes: 1408, ce: false });
                paper.round(rtt as f64);
                let rate = paper.is_limited.then_some(paper.rate);
                assert_paced(&timely, rate, &format!("congestion {number}, {rtt} µs"));
            }
        }
    }

    /// A congestion is some marked acknowledgements, and then some without marks.
    #[test]
    fn dcqcn__follows_its_paper_in_each_of_several_congestions(
        congestions in vec(((1..7u32, 1..120_000u64), (0..200u32, 1..90_000u64), 0..60_000u32, 5_000..300_000u64), 3..=5),
    ) {
        let config = DcqcnConfig::for_line(Rate::gbit(25));
        let mut dcqcn = Dcqcn::new(Arc::new(config), WIDE);
        let mut paper = DcqcnPaper {
            current: LINE,
            target: LINE,
            alpha: 1.0,
            cut_at: 0,
            decay_at: 0,
            increase_at: 0,
            bytes: 0,
            stages: [0, 0],
            is_limited: false,
        };
        let mut now_ns = 1_000_000;
        for (number, (marked, calm, bytes, rtt_ns)) in congestions.into_iter().enumerate() {
            for ((acks, gap_ns), ce) in [(marked, true), (calm, false)] {
                for at in 0..acks {
                    now_ns += gap_ns;
                    let ack = Ack { now_ns, rtt_ns: Some(rtt_ns), packets: 1, bytes, ce };
                    dcqcn.on_ack(&ack);
                    paper.ack(&ack);
                    let rate = paper.is_limited.then_some(paper.current);
                    assert_paced(&dcqcn, rate, &format!("congestion {number}, {at}, mark {ce}"));
                }
            }
        }
    }
}
