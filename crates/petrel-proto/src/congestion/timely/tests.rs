use super::super::{CongestionConfig, CongestionControl, CongestionCounters};
use super::*;

/// Enough credits for any rate in these tests.
const WIDE: Flow = Flow { credits: 65_536, packet_bytes: 1408, base_rtt_ns: 0 };

const LINE: f64 = 3.125e9;
const STEP: f64 = 5e6;

fn timely(gradient: Gradient, flow: Flow) -> Timely {
    let config = TimelyConfig { gradient, ..TimelyConfig::for_line(Rate::gbit(25)) };
    Timely::new(Arc::new(config), flow)
}

fn ack(now_ns: u64, rtt_ns: u64) -> Ack {
    Ack { now_ns, rtt_ns: Some(rtt_ns), packets: 1, bytes: 1408, ce: false }
}

/// Acknowledges round trips in sequence. The first opens a round, and every later one ends a round.
fn rounds(timely: &mut Timely, now_ns: &mut u64, rtts_ns: &[u64]) {
    for &rtt_ns in rtts_ns {
        *now_ns += rtt_ns;
        timely.on_ack(&ack(*now_ns, rtt_ns));
    }
}

fn assert_near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 1e-9, "{value}, not {expected}");
}

#[test]
fn hiccup__of_the_host_costs_nothing() {
    let mut timely = timely(Gradient::Weighted, WIDE);
    // The host halts for 5 ms: two bursts of packets then in flight, and a quick one.
    for at in [0, 700] {
        for packet in 0..32 {
            timely.on_ack(&ack(9_000_000 + at, 5_000_000 + at + packet));
        }
    }
    assert_eq!(timely.pacing(), None, "nothing that was sent since is known to be late");
    timely.on_ack(&ack(9_010_000, 9_300));
    assert_eq!((timely.pacing(), timely.bypass_rtt_ns()), (None, Some(50_000)));
}

#[test]
fn hiccup__repeated_every_round_trip_is_forgotten_in_a_millisecond() {
    let mut timely = timely(Gradient::Weighted, Flow { credits: 32, ..WIDE });
    let mut now_ns = 1_000_000;
    rounds(&mut timely, &mut now_ns, &[300_000; 4]);
    assert!(timely.pacing().unwrap() < Rate::gbit(2), "it was taken for congestion");
    rounds(&mut timely, &mut now_ns, &[10_000; 60]);
    assert_eq!((timely.pacing(), timely.bypass_rtt_ns()), (None, Some(50_000)));
}

#[test]
fn congestion__needs_a_whole_round() {
    let mut timely = timely(Gradient::Weighted, WIDE);
    timely.on_ack(&ack(1_000_000, 400_000));
    for late in 0..399 {
        timely.on_ack(&ack(1_000_000 + late * 1000, 400_000));
        assert_eq!(timely.pacing(), None, "sent before the first long one came back");
    }
    timely.on_ack(&ack(1_400_000, 400_000));
    assert!(timely.pacing().is_some());
}

#[test]
fn weighted__steady_long_round_trip() {
    let mut timely = timely(Gradient::Weighted, WIDE);
    let mut now_ns = 1_000_000;
    rounds(&mut timely, &mut now_ns, &[100_000, 100_000]);
    // Gradient 0, so weight 1/2; error (100 - 50) / 50.
    assert_near(timely.rate, LINE * (1.0 - 0.26 * 0.5) + 0.5 * STEP);
    let before = timely.rate;
    rounds(&mut timely, &mut now_ns, &[102_000]);
    // Smoothed change 0.46 · 2 µs, gradient 0.092, weight 0.684, error 1.04.
    assert_near(timely.rate, before * (1.0 - 0.26 * 0.684 * 1.04) + 0.316 * STEP);
}

#[test]
fn weighted__falling_round_trip_lets_the_rate_grow() {
    let mut timely = timely(Gradient::Weighted, WIDE);
    let mut now_ns = 1_000_000;
    rounds(&mut timely, &mut now_ns, &[100_000, 100_000]);
    let before = timely.rate;
    // Smoothed change -4.6 µs, gradient -0.46: weight 0.
    rounds(&mut timely, &mut now_ns, &[90_000]);
    assert_near(timely.rate, before + STEP);
}

#[test]
fn weighted__above_high_the_rate_is_halved() {
    let mut timely = timely(Gradient::Weighted, WIDE);
    rounds(&mut timely, &mut 1_000_000, &[1_500_000, 1_500_000]);
    assert_near(timely.rate, LINE / 2.0);
}

#[test]
fn signed__as_published() {
    let mut timely = timely(Gradient::Signed, WIDE);
    let mut now_ns = 1_000_000;
    rounds(&mut timely, &mut now_ns, &[100_000, 100_000]);
    assert_near(timely.rate, LINE);
    // Smoothed change 0.46 · 5 µs over 10 µs.
    rounds(&mut timely, &mut now_ns, &[105_000]);
    let reduced = LINE * (1.0 - 0.26 * 0.23);
    assert_near(timely.rate, reduced);
    // Negative from here on; the fifth in a row is hyperactive.
    rounds(&mut timely, &mut now_ns, &[101_000, 101_000, 101_000, 101_000]);
    assert_near(timely.rate, reduced + 4.0 * STEP);
    rounds(&mut timely, &mut now_ns, &[101_000]);
    assert_near(timely.rate, reduced + 9.0 * STEP);
    // Above high: 1 - 0.26 (1 - 1 / 2).
    rounds(&mut timely, &mut now_ns, &[2_000_000]);
    assert_near(timely.rate, (reduced + 9.0 * STEP) * 0.87 * 1.0);
}

#[test]
fn low__hyperactive_increase_lessens_with_the_round_trip() {
    let mut timely = timely(Gradient::Weighted, WIDE);
    let mut now_ns = 1_000_000;
    rounds(&mut timely, &mut now_ns, &[1_500_000, 1_500_000, 25_000, 25_000, 25_000, 25_000]);
    let before = LINE / 2.0 + 4.0 * STEP;
    assert_near(timely.rate, before);
    rounds(&mut timely, &mut now_ns, &[25_000]);
    // Half of `low` is left: half of 25 %, and 1 + 4 / 2 steps.
    assert_near(timely.rate, before * 1.125 + 3.0 * STEP);
    let before = timely.rate;
    rounds(&mut timely, &mut now_ns, &[50_000]);
    assert_near(timely.rate, before + STEP);
}

#[test]
fn rate__is_never_more_than_the_credits_allow() {
    let mut timely =
        timely(Gradient::Weighted, Flow { credits: 32, packet_bytes: 1408, base_rtt_ns: 0 });
    rounds(&mut timely, &mut 1_000_000, &[1_500_000, 1_500_000]);
    assert_near(timely.rate, 32.0 * 1408.0 / 1.5e-3 / 2.0);
}

#[test]
fn window__is_what_the_rate_sends_in_low() {
    let mut timely = timely(Gradient::Weighted, WIDE);
    assert_eq!(timely.window(), None);
    rounds(&mut timely, &mut 1_000_000, &[1_500_000, 1_500_000]);
    // 1.5625 GB/s · 50 µs are 78 125 bytes, 55.5 packets.
    assert_eq!(timely.window(), Some(56));
}

#[test]
fn unmeasured_acknowledgements__are_no_round_trips() {
    let mut timely = timely(Gradient::Weighted, WIDE);
    timely.on_ack(&ack(1_000_000, 400_000));
    timely.on_ack(&Ack { rtt_ns: None, ..ack(3_000_000, 0) });
    assert_eq!((timely.pacing(), timely.bypass_rtt_ns()), (None, None), "still in the round");
}

#[test]
fn long_path__moves_the_thresholds() {
    let far = Flow { base_rtt_ns: 80_000, ..WIDE };
    let mut timely = timely(Gradient::Weighted, far);
    assert_eq!((timely.bypass_rtt_ns(), timely.high_ns()), (Some(120_000), 1_070_000));
    let mut now_ns = 1_000_000;
    rounds(&mut timely, &mut now_ns, &[120_000; 9]);
    assert_eq!(timely.pacing(), None);
    rounds(&mut timely, &mut now_ns, &[180_000, 180_000]);
    // Weight 1/2, error (180 - 120) / 120.
    assert_near(timely.rate, LINE * (1.0 - 0.26 * 0.25) + 0.5 * STEP);
}

panics! {
    set_rate__to_none: "a rate is a number" => timely(Gradient::Weighted, WIDE).set_rate(f64::NAN);
    reduce__by_more_than_all: "a reduction does not raise the rate"
        => timely(Gradient::Weighted, WIDE).reduce(1, 1.1);
    end_round__of_an_unlimited_session: "a round changes the rate of a limited session"
        => timely(Gradient::Weighted, WIDE).end_round(1);
    pacing__of_a_rate_above_the_line: "a rate is between the least rate and the line's" => {
        let timely = Timely { rate: 2.0 * LINE, ..timely(Gradient::Weighted, WIDE) };
        timely.pacing();
    };
    increase_when_low__after_a_long_round_trip: "a low round trip is below the threshold" => {
        let mut timely = Timely { rtt_before_ns: u32::MAX, ..timely(Gradient::Weighted, WIDE) };
        timely.increases = timely.config.hai_rounds;
        timely.increase_when_low();
    };
}

#[test]
fn bypass__switched_off_the_controller_hears_every_round_trip_and_stays_calm() {
    let config = TimelyConfig { bypass: false, ..TimelyConfig::for_line(Rate::gbit(25)) };
    let control = CongestionControl::new(CongestionConfig::Timely(config)).unwrap();
    let (mut session, mut counters) = (control.start(WIDE), CongestionCounters::default());
    for at in 1..=10 {
        assert!(!session.is_bypassed(9_000, false));
        session.on_ack(&ack(at * 10_000, 9_000), &mut counters);
        assert!(!session.is_limited() && !session.needs_every_ack(), "it keeps to the fast paths");
    }
    assert_eq!((counters.updates, counters.acks_bypassed), (10, 0));
}

#[test]
fn pacer_bypass__switched_off_an_uncongested_session_is_paced_at_the_line_rate() {
    let line = Rate::gbit(25);
    let config = TimelyConfig { pacer_bypass: false, ..TimelyConfig::for_line(line) };
    let control = CongestionControl::new(CongestionConfig::Timely(config)).unwrap();
    let (mut session, mut counters) = (control.start(WIDE), CongestionCounters::default());
    assert_eq!((session.rate(), session.is_paced()), (Some(line), true));
    session.on_ack(&ack(10_000, 9_000), &mut counters);
    assert_eq!((session.rate(), session.is_paced()), (Some(line), true));
    assert!(session.needs_every_ack(), "the controller of a paced session hears of all");
}
