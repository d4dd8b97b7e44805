use super::*;

const WIDE: Flow = Flow { credits: 4096, packet_bytes: 1408, base_rtt_ns: 0 };
const LINE: f64 = 3.125e9;
const STEP: f64 = 3.125e6;
const GAIN: f64 = 1.0 / 256.0;

/// The time of the first mark.
const FIRST_NS: u64 = 1_000_000;

fn dcqcn() -> Dcqcn {
    let config = DcqcnConfig { increase_bytes: 1 << 20, ..DcqcnConfig::for_line(Rate::gbit(25)) };
    Dcqcn::new(Arc::new(config), WIDE)
}

fn ack(now_ns: u64, ce: bool) -> Ack {
    Ack { now_ns, rtt_ns: Some(10_000), packets: 1, bytes: 1000, ce }
}

/// A session with its first mark at [`FIRST_NS`].
fn marked() -> Dcqcn {
    let mut dcqcn = dcqcn();
    dcqcn.on_ack(&ack(FIRST_NS, true));
    dcqcn
}

fn assert_near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 1e-9, "{value}, not {expected}");
}

#[test]
fn first_mark__halves() {
    let dcqcn = marked();
    assert_near(dcqcn.rate, LINE / 2.0);
    assert_near(dcqcn.target, LINE);
    assert_near(dcqcn.alpha, 1.0);
    assert_eq!((dcqcn.pacing(), dcqcn.bypass_rtt_ns()), (Some(Rate::mbit(12_500)), None));
}

#[test]
fn unmarked__stays_at_the_line_for_any_round_trip() {
    let mut dcqcn = dcqcn();
    dcqcn.on_ack(&Ack { rtt_ns: Some(90_000_000), ..ack(FIRST_NS, false) });
    assert_eq!((dcqcn.pacing(), dcqcn.window()), (None, None));
    assert_eq!(dcqcn.bypass_rtt_ns(), Some(u32::MAX));
}

#[test]
fn fast_recovery__halves_the_way_to_the_target() {
    let mut dcqcn = marked();
    dcqcn.on_ack(&ack(FIRST_NS + 54_999, false));
    assert_near(dcqcn.rate, LINE / 2.0);
    dcqcn.on_ack(&ack(FIRST_NS + 55_000, false));
    assert_near(dcqcn.rate, LINE * 0.75);
    assert_near(dcqcn.alpha, 1.0 - GAIN);
    // Two expiries at once.
    dcqcn.on_ack(&ack(FIRST_NS + 165_000, false));
    assert_near(dcqcn.rate, LINE * 0.9375);
    assert_near(dcqcn.alpha, (1.0 - GAIN) * (1.0 - GAIN) * (1.0 - GAIN));
    // A stray mark is over with the fourth expiry.
    dcqcn.on_ack(&ack(FIRST_NS + 220_000, false));
    assert_eq!((dcqcn.pacing(), dcqcn.bypass_rtt_ns()), (None, Some(u32::MAX)));
}

#[test]
fn catch_up__ends_the_limit_from_its_share_of_the_line_on() {
    let share = UNCONGESTED_SHARE * LINE;
    for (rate, is_limited) in [(share.next_down(), true), (share, false), (share.next_up(), false)]
    {
        let mut dcqcn = marked();
        dcqcn.rate = rate;
        dcqcn.catch_up(FIRST_NS, 0);
        assert_eq!(dcqcn.is_limited, is_limited, "{rate}");
        assert_eq!(dcqcn.rate, if is_limited { rate } else { LINE });
    }
}

#[test]
fn second_mark__takes_half_of_alpha_off() {
    let mut dcqcn = marked();
    dcqcn.on_ack(&ack(FIRST_NS + 55_000, true));
    let alpha = 1.0 - GAIN;
    assert_near(dcqcn.target, LINE * 0.75);
    assert_near(dcqcn.rate, LINE * 0.75 * (1.0 - alpha / 2.0));
    assert_near(dcqcn.alpha, (1.0 - GAIN) * alpha + GAIN);
}

#[test]
fn marks__of_one_round_trip_reduce_once_and_hold_increases_back() {
    let mut dcqcn = marked();
    let late = |at| Ack { rtt_ns: Some(300_000), ..ack(FIRST_NS + at, true) };
    for at in (10_000..300_000).step_by(10_000) {
        dcqcn.on_ack(&late(at));
        assert_near(dcqcn.rate, LINE / 2.0);
    }
    dcqcn.on_ack(&late(300_000));
    assert!(dcqcn.rate < LINE / 3.0, "sent after the first reduction, and marked");
}

#[test]
fn marks__come_at_most_once_in_the_interval() {
    let mut dcqcn = marked();
    dcqcn.on_ack(&ack(FIRST_NS + 49_999, true));
    assert_near(dcqcn.rate, LINE / 2.0);
    dcqcn.on_ack(&ack(FIRST_NS + 50_000, true));
    assert_near(dcqcn.rate, LINE / 4.0);
}

#[test]
fn additive_increase__follows_recovery() {
    let mut dcqcn = marked();
    // Two more reductions: an eighth of the line, with a quarter as the target.
    dcqcn.on_ack(&ack(FIRST_NS + 50_000, true));
    dcqcn.on_ack(&ack(FIRST_NS + 100_000, true));
    assert_near(dcqcn.target, LINE / 4.0);
    assert_near(dcqcn.rate, LINE / 8.0);
    dcqcn.on_ack(&ack(FIRST_NS + 100_000 + 5 * 55_000, false));
    assert_near(dcqcn.target, LINE / 4.0);
    assert_near(dcqcn.rate, LINE / 4.0 - LINE / 8.0 / 32.0);
    dcqcn.on_ack(&ack(FIRST_NS + 100_000 + 6 * 55_000, false));
    assert_near(dcqcn.target, LINE / 4.0 + STEP);
    assert_near(dcqcn.rate, (LINE / 4.0 - LINE / 8.0 / 32.0 + LINE / 4.0 + STEP) / 2.0);
}

#[test]
fn hyper_increase__needs_time_and_bytes() {
    let mut dcqcn = marked();
    dcqcn.on_ack(&ack(FIRST_NS + 50_000, true));
    let start_ns = FIRST_NS + 50_000;
    for _ in 0..6 {
        dcqcn.on_ack(&Ack { bytes: 1 << 20, ..ack(start_ns + 1, false) });
    }
    // Six expiries of the byte counter alone: one additive increase.
    assert_near(dcqcn.target, LINE / 2.0 + STEP);
    dcqcn.on_ack(&ack(start_ns + 5 * 55_000, false));
    assert_near(dcqcn.target, LINE / 2.0 + 6.0 * STEP);
    dcqcn.on_ack(&ack(start_ns + 6 * 55_000, false));
    assert_near(dcqcn.target, LINE / 2.0 + 6.0 * STEP + LINE / 100.0);
}

#[test]
fn silence__earns_a_bounded_number_of_increases() {
    let mut dcqcn = marked();
    for at in 1..8 {
        dcqcn.on_ack(&ack(FIRST_NS + at * 50_000, true));
    }
    let target = dcqcn.target;
    dcqcn.on_ack(&ack(FIRST_NS + 3_600_000_000_000, false));
    assert_near(dcqcn.target, target + (64.0 - 5.0) * STEP);
    assert!(dcqcn.pacing().is_some());
}

#[test]
fn window__is_what_the_rate_sends_in_its_time() {
    // 1.5625 GB/s · 40 µs are 62 500 bytes, 44.4 packets.
    assert_eq!(marked().window(), Some(45));
}

panics! {
    increase__of_an_unlimited_session: "only a limited rate grows" => dcqcn().increase();
    increase__beyond_the_target: "a rate is at most its target" => {
        let mut dcqcn = marked();
        dcqcn.target = dcqcn.rate / 2.0;
        dcqcn.increase();
    };
    reduce__with_more_marks_than_packets: "the share of marked packets is at most 1" => {
        let mut dcqcn = marked();
        dcqcn.alpha = 1.5;
        dcqcn.reduce(2 * FIRST_NS, 0);
    };
    new__with_a_configuration_that_was_not_checked:
        "a configuration is checked before sessions use it" => {
        let config = DcqcnConfig { alpha_ns: 0, ..DcqcnConfig::default() };
        Dcqcn::new(Arc::new(config), WIDE);
    };
    reduce__from_a_rate_above_the_line: "a target is at most the rate of the line" => {
        let mut dcqcn = Dcqcn { rate: 2.0 * LINE, ..dcqcn() };
        dcqcn.on_ack(&ack(FIRST_NS, true));
    };
    catch_up__with_an_increase_forgotten:
        "bytes that are enough for an increase cause it at once" => {
        let mut dcqcn = Dcqcn { bytes: 1 << 20, ..marked() };
        dcqcn.on_ack(&ack(FIRST_NS + 1, false));
    };
}
