use super::*;

const FLOW: Flow = Flow { credits: 32, packet_bytes: 1408, base_rtt_ns: 0 };

fn swift() -> Swift {
    Swift::new(Arc::new(SwiftConfig::new()), FLOW)
}

/// A congested session with this window.
fn limited(window: f64) -> Swift {
    Swift { window, is_limited: true, ..swift() }
}

fn ack(now_ns: u64, rtt_ns: u64) -> Ack {
    Ack { now_ns, rtt_ns: Some(rtt_ns), packets: 1, bytes: 1408, ce: false }
}

fn assert_near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 1e-6, "{value}, not {expected}");
}

#[test]
fn target__scales_with_the_window() {
    let config = SwiftConfig::new();
    assert_near(config.target_ns(100.0), 30_000.0);
    assert_near(config.target_ns(1000.0), 30_000.0);
    assert_near(config.target_ns(0.1), 80_000.0);
    assert_near(config.target_ns(0.01), 80_000.0);
    // (1 - 1/10) / (√10 - 1/10) of 50 µs.
    assert_near(config.target_ns(1.0), 44_694.939);
}

#[test]
fn below_the_target__grows_by_one_in_a_round_trip() {
    let mut swift = limited(10.0);
    swift.on_ack(&ack(1_000_000, 20_000));
    assert_near(swift.window, 10.1);
    swift.on_ack(&Ack { packets: 4, ..ack(1_001_000, 20_000) });
    assert_near(swift.window, 10.1 + 4.0 / 10.1);
}

#[test]
fn below_one__grows_by_one_for_each() {
    let mut swift = limited(0.25);
    swift.on_ack(&ack(1_000_000, 20_000));
    assert_near(swift.window, 1.25);
}

/// An acknowledgement of repeated packets, without a round trip.
fn untimed(packets: u32) -> Ack {
    Ack { rtt_ns: None, packets, ..ack(1_000_000, 0) }
}

#[test]
fn repetitions__bring_a_window_up_to_one_and_no_further() {
    let config = Arc::new(SwiftConfig { increase: 0.25, ..SwiftConfig::new() });
    let limited = |window| Swift { config: Arc::clone(&config), ..limited(window) };
    for (window, packets, expected) in [
        (0.25, 1, 0.5),
        (0.25, 2, 0.75),
        (0.25, 3, 1.0),
        // As many packets as credits, and more: the session stays limited.
        (0.25, 200, 1.0),
        (1.0, 8, 1.0),
        (1.5, 8, 1.5),
    ] {
        let mut swift = limited(window);
        swift.on_ack(&untimed(packets));
        assert_near(swift.window, expected);
        assert!(swift.is_limited);
    }
    let mut lossy = limited(0.25);
    lossy.on_loss(1_000_000, 3);
    lossy.on_ack(&untimed(1));
    assert_near(lossy.window, 0.25);
}

#[test]
fn growth__ends_at_the_credits() {
    for (window, packets, expected, is_limited) in [
        (1.0, 1, 2.0, true),
        (1.5, 1, 1.5 + 1.0 / 1.5, true),
        (16.0, 255, 31.9375, true),
        (16.0, 256, 32.0, false),
        (16.0, 1_000, 32.0, false),
    ] {
        let mut swift = limited(window);
        swift.on_ack(&Ack { packets, ..ack(1_000_000, 10_000) });
        assert_near(swift.window, expected);
        assert_eq!(swift.is_limited, is_limited, "{window} and {packets}");
    }
}

#[test]
fn pace__is_for_windows_below_one() {
    for window in [1.0, 1.5, 32.0] {
        assert_eq!(limited(window).pacing(), None, "{window}");
    }
    // Before the first measurement the shortest possible round trip is assumed.
    let expected = Rate::from_f64(1408.0 * 1e9 / 2.0);
    assert_eq!(limited(0.5).pacing(), Some(expected));
}

#[test]
fn losses__are_heard_while_they_are_counted_and_close_the_round() {
    let mut swift = swift();
    swift.on_loss(1_000_000, 1);
    assert_eq!((swift.window(), swift.bypass_rtt_ns()), (None, None));
    swift.on_ack(&Ack { packets: 64, ..ack(1_000_000, 10_000) });
    assert_eq!(swift.bypass_rtt_ns(), Some(30_000));
    swift.on_ack(&ack(1_000_000, 60_000));
    swift.on_loss(1_000_000, 8);
    assert_eq!(swift.window(), Some(16));
    swift.on_ack(&Ack { packets: 256, ..ack(2_000_000, 10_000) });
    assert_eq!((swift.window(), swift.bypass_rtt_ns()), (None, Some(30_000)));
}

#[test]
fn at_the_target__grows() {
    let wide = Flow { credits: 200, ..FLOW };
    let mut swift = Swift { flow: wide, ..limited(100.0) };
    swift.on_ack(&ack(1_000_000, 30_000));
    assert_near(swift.window, 100.01);
}

#[test]
fn at_the_least_target__a_round_is_over_without_a_sign() {
    let mut swift = swift();
    swift.on_ack(&ack(1_000_000, 60_000));
    assert_eq!(swift.bypass_rtt_ns(), None);
    swift.on_ack(&ack(1_100_000, 30_000));
    assert_eq!((swift.window(), swift.bypass_rtt_ns()), (None, Some(30_000)));
}

#[test]
fn reduction__the_first_may_be_of_a_packet_sent_at_any_time() {
    let mut swift = limited(32.0);
    swift.on_ack(&ack(40_000, 40_000));
    assert!(swift.window < 32.0);
}

#[test]
fn pace__is_that_of_the_last_round_trip() {
    let mut swift = limited(0.5);
    swift.on_ack(&ack(1_000_000, 200_000));
    let per_packet_ns = 200_000.0 / swift.window;
    let rate = swift.pacing().expect("a pace").as_f64();
    assert!((rate / (1408.0 * 1e9 / per_packet_ns) - 1.0).abs() < 1e-3, "{rate}");
}

#[test]
fn above_the_target__shrinks_in_proportion_once_a_round_trip() {
    let mut swift = limited(32.0);
    swift.on_ack(&ack(1_000_000, 40_000));
    // The target is 31 253.6 ns: 1 - 0.8 · 8 746.4 / 40 000.
    assert_near(swift.window, 32.0 * 0.825_072);
    let reduced = swift.window;
    swift.on_ack(&ack(1_039_999, 40_000));
    assert_near(swift.window, reduced);
    swift.on_ack(&ack(1_040_000, 40_000));
    assert!(swift.window < reduced);
}

#[test]
fn far_above_the_target__halves() {
    let mut swift = limited(32.0);
    swift.on_ack(&ack(10_000_000, 1_000_000));
    assert_near(swift.window, 16.0);
}

#[test]
fn window__below_one_becomes_a_pace() {
    let mut swift = limited(2.9);
    assert_eq!((swift.window(), swift.pacing()), (Some(2), None));
    swift = Swift { rtt_ns: 100_000, ..limited(0.5) };
    // Half a packet in 100 µs.
    assert_eq!(swift.window(), Some(1));
    assert_eq!(swift.pacing(), Some(Rate::bytes_per_second(7_040_000)));
}

#[test]
fn window__has_a_least() {
    let mut swift = limited(0.015);
    swift.on_ack(&ack(10_000_000, 1_000_000));
    assert_near(swift.window, 0.01);
    assert!(swift.pacing().is_some());
}

#[test]
fn hiccup__of_the_host_costs_nothing() {
    let mut swift = swift();
    for at in [0, 700] {
        for packet in 0..32 {
            swift.on_ack(&ack(9_000_000 + at, 5_000_000 + at + packet));
        }
    }
    assert_eq!(swift.window(), None);
    swift.on_ack(&ack(9_010_000, 9_300));
    assert_eq!((swift.window(), swift.bypass_rtt_ns()), (None, Some(30_000)));
}

#[test]
fn congestion__needs_a_whole_round_and_ends_at_the_credits() {
    let mut swift = swift();
    swift.on_ack(&ack(1_000_000, 60_000));
    swift.on_ack(&ack(1_059_999, 60_000));
    assert_eq!(swift.window(), None);
    swift.on_ack(&ack(1_060_000, 60_000));
    // The target is 31 253.6 ns: 1 - 0.8 · 28 746.4 / 60 000.
    assert_eq!(swift.window(), Some(19));
    let mut round_trips = 0;
    while swift.window().is_some() {
        let window = swift.window as u32;
        swift.on_ack(&Ack { packets: window, ..ack(2_000_000 + round_trips * 10_000, 10_000) });
        round_trips += 1;
    }
    assert_eq!((round_trips, swift.bypass_rtt_ns()), (13, Some(30_000)));
}

#[test]
fn long_path__moves_the_target() {
    let far = Flow { base_rtt_ns: 80_000, ..FLOW };
    let mut swift = Swift { flow: far, ..limited(32.0) };
    swift.on_ack(&ack(1_000_000, 101_000));
    assert!(swift.window > 32.0 - 1e-9, "the target is 101 253.6 ns");
    let mut swift = Swift { flow: far, ..limited(32.0) };
    swift.on_ack(&ack(1_000_000, 110_000));
    assert_near(swift.window, 32.0 * (1.0 - 0.8 * 8_746.4 / 110_000.0));
}

#[test]
fn is_at_floor__up_to_twice_the_smallest_window() {
    let least = SwiftConfig::new().window_min;
    assert!(limited(least).is_at_floor() && limited(2.0 * least).is_at_floor());
    assert!(!limited(2.1 * least).is_at_floor());
    assert!(!Swift { is_limited: false, ..limited(least) }.is_at_floor());
}

panics! {
    pacing__of_a_window_below_the_least: "a window is at least the least one"
        => _ = limited(SwiftConfig::new().window_min / 2.0).pacing();
    reduce__by_more_than_all: "a reduction does not make a window larger"
        => limited(8.0).reduce(1, 1.1);
    reduce__of_an_unlimited_window: "only a limited window is reduced" => swift().reduce(1, 0.5);
    window__beyond_the_credits: "a window is above 0 and at most the credits"
        => limited(33.0).window();
}
