//! The controllers in a closed loop with one bottleneck, compared with their requirements. `cargo test -p
//! petrel-proto --test congestion -- --nocapture --test-threads 1` prints the table of `docs/congestion.md`.

mod bottleneck;

use bottleneck::{Bottleneck, Marking, Seen, Setup};
use petrel_proto::congestion::{
    CongestionConfig, DcqcnConfig, Gradient, Rate, SwiftConfig, TimelyConfig,
};

const MS: u64 = 1_000_000;
const FLOWS: [usize; 4] = [2, 20, 50, 100];

/// 32 credits on a network of one switch: a round trip of 10 µs without queues at 25 Gbit/s, 5 µs at 100, so
/// that the credits of two flows fill the link.
fn setup(gbit: u64, flows: usize, control: CongestionConfig) -> Setup {
    // RED between 1.25 and 6.25 round trips without queues of 25 Gbit/s, in proportion for other rates.
    let marking =
        Marking { from_bytes: 40_000 * gbit / 25, all_bytes: 200_000 * gbit / 25, most: 0.2 };
    Setup {
        link: Rate::gbit(gbit),
        base_rtt_ns: if gbit > 25 { 5_000 } else { 10_000 },
        noise_ns: 2_000,
        known_rtt_ns: 0,
        credits: 32,
        flows,
        marking: Some(marking),
        buffer_bytes: u64::MAX,
        control,
    }
}

fn timely(gbit: u64) -> CongestionConfig {
    CongestionConfig::Timely(TimelyConfig::for_line(Rate::gbit(gbit)))
}

fn dcqcn(gbit: u64) -> CongestionConfig {
    CongestionConfig::Dcqcn(DcqcnConfig::for_line(Rate::gbit(gbit)))
}

fn swift(_gbit: u64) -> CongestionConfig {
    CongestionConfig::Swift(SwiftConfig::new())
}

fn none(_gbit: u64) -> CongestionConfig {
    CongestionConfig::None
}

fn as_published(gbit: u64) -> CongestionConfig {
    let config = TimelyConfig::for_line(Rate::gbit(gbit));
    CongestionConfig::Timely(TimelyConfig { gradient: Gradient::Signed, ..config })
}

fn show(name: &str, gbit: u64, flows: usize, seen: &Seen) {
    let [p50, p99, max] =
        [seen.rtt_p50_ns, seen.rtt_p99_ns, seen.rtt_max_ns].map(|ns| ns as f64 / 1e3);
    println!(
        "| {name} | {gbit} | {flows} | {:.3} | {:.3} | {p50:.0} | {p99:.0} | {max:.0} |",
        seen.utilisation, seen.jain
    );
}

/// Measures flows over 40 ms, 20 ms after their common start.
fn steady(name: &str, gbit: u64, flows: usize, config: CongestionConfig) -> Seen {
    let mut net = Bottleneck::new(setup(gbit, flows, config));
    net.run(20 * MS);
    let seen = net.run(40 * MS);
    show(name, gbit, flows, &seen);
    seen
}

fn assert_steady(name: &str, config: fn(u64) -> CongestionConfig) {
    for gbit in [25, 100] {
        for flows in FLOWS {
            let seen = steady(name, gbit, flows, config(gbit));
            assert!(seen.utilisation >= 0.95, "{name} {gbit} {flows} {seen:?}");
            assert!(seen.jain >= 0.95, "{name} {gbit} {flows} {seen:?}");
            assert!(seen.rtt_max_ns <= 120_000, "{name} {gbit} {flows} {seen:?}");
        }
    }
}

#[test]
fn steady__timely() {
    assert_steady("Timely", timely);
}

#[test]
fn steady__dcqcn() {
    assert_steady("DCQCN", dcqcn);
}

#[test]
fn steady__swift() {
    assert_steady("Swift", swift);
}

/// Without control the credits of all flows fill the queue, less the part in flight on the path.
#[test]
fn steady__none_is_bounded_by_the_credits_alone() {
    for gbit in [25, 100] {
        for flows in FLOWS {
            let seen = steady("none", gbit, flows, none(gbit));
            let bytes = flows as u64 * 32 * bottleneck::WIRE_BYTES;
            let expected_ns = bytes * 1_000_000_000 / Rate::gbit(gbit).get();
            assert!(seen.rtt_p50_ns.abs_diff(expected_ns) < 3_000, "{gbit} {flows} {seen:?}");
        }
    }
}

/// The published rule keeps the link busy, and Petrel's additional window bounds the queue by four times
/// `low_ns`; fairness is not required.
#[test]
fn steady__timely_as_published() {
    for gbit in [25, 100] {
        for flows in FLOWS {
            let seen = steady("Timely, signed", gbit, flows, as_published(gbit));
            assert!(seen.utilisation >= 0.9, "{gbit} {flows} {seen:?}");
            assert!(seen.rtt_max_ns <= 200_000, "{gbit} {flows} {seen:?}");
        }
    }
}

/// Compared with no control, at 25 Gbit/s: a fifth of the median round trip with 20 and 50 senders, a third
/// of the 99th percentile with 100.
#[test]
fn incast__queues_are_a_fraction_of_those_without_control() {
    for (name, config) in [("Timely", timely(25)), ("DCQCN", dcqcn(25)), ("Swift", swift(25))] {
        for flows in [20, 50] {
            let bare = steady("none", 25, flows, none(25));
            let seen = steady(name, 25, flows, config.clone());
            assert!(5 * seen.rtt_p50_ns <= bare.rtt_p50_ns, "{name} {flows} {seen:?}");
        }
        let bare = steady("none", 25, 100, none(25));
        let seen = steady(name, 25, 100, config.clone());
        assert!(3 * seen.rtt_p99_ns <= bare.rtt_p99_ns, "{name} {seen:?}");
    }
}

/// All but two flows stop; the two get the whole link within 5 ms. Then all flows resume.
#[test]
fn flows__leave_and_return() {
    for (name, config) in [("Timely", timely as fn(u64) -> _), ("DCQCN", dcqcn), ("Swift", swift)] {
        for gbit in [25, 100] {
            for flows in [20, 50, 100] {
                let mut net = Bottleneck::new(setup(gbit, flows, config(gbit)));
                net.run(20 * MS);
                net.stop_from(2);
                net.run(5 * MS);
                let alone = net.run(10 * MS);
                assert!(alone.utilisation >= 0.9, "{name} {gbit} {flows} {alone:?}");
                assert!(alone.jain >= 0.9, "{name} {gbit} {flows} {alone:?}");
                net.resume_below(flows);
                net.run(20 * MS);
                let together = net.run(20 * MS);
                assert!(together.utilisation >= 0.9, "{name} {gbit} {flows} {together:?}");
                assert!(together.jain >= 0.9, "{name} {gbit} {flows} {together:?}");
                assert!(together.rtt_max_ns <= 150_000, "{name} {gbit} {flows} {together:?}");
            }
        }
    }
}

/// With 256 credits the credits bound nothing.
#[test]
fn many_credits__are_controlled_too() {
    for (name, config) in [("Timely", timely(25)), ("DCQCN", dcqcn(25)), ("Swift", swift(25))] {
        for flows in FLOWS {
            let many = Setup { credits: 256, ..setup(25, flows, config.clone()) };
            let mut net = Bottleneck::new(many);
            net.run(60 * MS);
            let seen = net.run(40 * MS);
            show(&format!("{name}, 256 credits"), 25, flows, &seen);
            assert!(seen.utilisation >= 0.9, "{name} {flows} {seen:?}");
            assert!(seen.jain >= 0.9, "{name} {flows} {seen:?}");
            assert!(seen.rtt_max_ns <= 150_000, "{name} {flows} {seen:?}");
        }
    }
}

/// A switch whose buffer holds 40 packets, fewer than there are senders: no round trip is ever long, and only
/// losses show congestion. Without control nine packets in ten are lost, and a few senders get the whole
/// link.
#[test]
fn shallow_buffers__lose_less_and_share() {
    let shallow = |name: &str, flows, config| {
        let base = setup(25, flows, config);
        let mut net = Bottleneck::new(Setup { buffer_bytes: 60_000, marking: None, ..base });
        net.run(20 * MS);
        let seen = net.run(40 * MS);
        show(&format!("{name}, 40 packets, {:.3} lost", seen.loss), 25, flows, &seen);
        seen
    };
    for flows in [20, 50, 100] {
        let bare = shallow("none", flows, none(25));
        for (name, config) in [("Timely", timely(25)), ("DCQCN", dcqcn(25)), ("Swift", swift(25))] {
            let seen = shallow(name, flows, config);
            assert!(seen.utilisation >= 0.9, "{name} {flows} {seen:?}");
            assert!(seen.jain >= 0.9, "{name} {flows} {seen:?}");
            assert!(seen.loss <= 0.65 * bare.loss, "{name} {flows} {seen:?}");
        }
    }
}

/// A path longer than the default is no congestion, if the endpoint or the session knows the length.
fn assert_filled(base_rtt_ns: u32) {
    let line = Rate::gbit(25);
    for (name, control, known_rtt_ns) in [
        ("Timely", CongestionConfig::Timely(TimelyConfig::for_path(line, base_rtt_ns)), 0),
        ("DCQCN", CongestionConfig::Dcqcn(DcqcnConfig::for_path(line, base_rtt_ns)), 0),
        ("Swift", CongestionConfig::Swift(SwiftConfig::for_path(base_rtt_ns)), 0),
        ("Timely, session", timely(25), base_rtt_ns),
        ("DCQCN, session", dcqcn(25), base_rtt_ns),
        ("Swift, session", swift(25), base_rtt_ns),
    ] {
        for flows in [1, 20, 100] {
            // Twice the need of one flow, or the whole first round trip would be a queue.
            let credits = base_rtt_ns / 150 / u32::try_from(flows.min(5)).unwrap();
            let base = setup(25, flows, control.clone());
            let base_rtt_ns = u64::from(base_rtt_ns);
            let mut net = Bottleneck::new(Setup { base_rtt_ns, known_rtt_ns, credits, ..base });
            net.run(100 * MS);
            let seen = net.run(40 * MS);
            show(&format!("{name}, {} µs", base_rtt_ns / 1000), 25, flows, &seen);
            assert!(seen.utilisation >= 0.9, "{name} {base_rtt_ns} {flows} {seen:?}");
            assert!(seen.jain >= 0.9, "{name} {base_rtt_ns} {flows} {seen:?}");
            let most_ns = 2 * base_rtt_ns + 100_000;
            assert!(seen.rtt_max_ns <= most_ns, "{name} {base_rtt_ns} {flows} {seen:?}");
        }
    }
}

#[test]
fn long_paths__of_40_us_are_filled() {
    assert_filled(40_000);
}

#[test]
fn long_paths__of_80_us_are_filled() {
    assert_filled(80_000);
}

#[test]
fn long_paths__of_300_us_are_filled() {
    assert_filled(300_000);
}

/// Ten flows, and ten more every 5 ms, which find a queue from their first packet on.
#[test]
fn latecomers__do_not_raise_the_queue() {
    for (name, config) in [("Timely", timely(25)), ("DCQCN", dcqcn(25)), ("Swift", swift(25))] {
        let mut net = Bottleneck::new(setup(25, 100, config));
        net.stop_from(10);
        for flows in (20..=100).step_by(10) {
            net.run(5 * MS);
            net.resume_below(flows);
        }
        net.run(20 * MS);
        let seen = net.run(40 * MS);
        show(&format!("{name}, latecomers"), 25, 100, &seen);
        assert!(seen.utilisation >= 0.95 && seen.jain >= 0.95, "{name} {seen:?}");
        assert!(seen.rtt_max_ns <= 120_000, "{name} {seen:?}");
    }
}

/// The same, but every new flow takes the path's length from a control connection, measured in the queue of
/// the earlier flows. Controllers by round trips keep a queue of this length, and divide the link badly,
/// until a heartbeat measures a shorter one; DCQCN is not affected.
#[test]
fn latecomers__that_take_the_queue_for_their_path() {
    for (name, config) in [("Timely", timely(25)), ("DCQCN", dcqcn(25)), ("Swift", swift(25))] {
        let mut net = Bottleneck::new(setup(25, 100, config));
        net.stop_from(10);
        for flows in (20..=100).step_by(10) {
            net.run(5 * MS);
            net.tell_path(flows - 10..flows);
            net.resume_below(flows);
        }
        net.run(20 * MS);
        let wrongly = net.run(40 * MS);
        show(&format!("{name}, latecomers, told wrongly"), 25, 100, &wrongly);
        assert!(wrongly.utilisation >= 0.95, "{name} {wrongly:?}");
        if name == "DCQCN" {
            assert!(wrongly.jain >= 0.95 && wrongly.rtt_max_ns <= 150_000, "{wrongly:?}");
        }
        net.stop_from(10);
        net.run(5 * MS);
        net.tell_path(0..100);
        net.resume_below(100);
        net.run(20 * MS);
        let seen = net.run(40 * MS);
        show(&format!("{name}, latecomers, told again"), 25, 100, &seen);
        assert!(seen.utilisation >= 0.95 && seen.jain >= 0.95, "{name} {seen:?}");
        assert!(seen.rtt_max_ns <= 250_000, "{name} {seen:?}");
    }
}

/// DCQCN need not know the line rate: a quarter of the rate will do, or four times as much.
#[test]
fn wrong_line_rates__do_not_matter_to_dcqcn() {
    for gbit in [6, 100] {
        for (name, control) in [("Timely", timely(gbit)), ("DCQCN", dcqcn(gbit))] {
            for flows in [1, 20, 100] {
                let base = setup(25, flows, none(25));
                let mut net = Bottleneck::new(Setup { control: control.clone(), ..base });
                net.run(20 * MS);
                let seen = net.run(40 * MS);
                show(&format!("{name} for {gbit} Gbit/s"), 25, flows, &seen);
                assert!(seen.utilisation >= 0.95, "{name} {gbit} {flows} {seen:?}");
                if name == "DCQCN" {
                    assert!(seen.jain >= 0.95 && seen.rtt_max_ns <= 120_000, "{gbit} {seen:?}");
                }
            }
        }
    }
}

/// A flow alone on the link, with a host that halts for a millisecond at intervals.
#[test]
fn hiccups__limit_nobody() {
    for (name, config) in [("Timely", timely(25)), ("DCQCN", dcqcn(25)), ("Swift", swift(25))] {
        // The flow's own credits queue for 6 µs and are not marked.
        let mut net = Bottleneck::new(setup(25, 1, config));
        for _ in 0..20 {
            net.run(5 * MS);
            net.halt_hosts(MS);
        }
        net.run(5 * MS);
        let counters = net.counters();
        assert_eq!((counters.sessions_limited, net.limited_flows()), (0, 0), "{name}");
        assert!(counters.updates < 100 * 20, "{name}: {counters:?}");
        assert!(counters.acks_bypassed > 100_000, "{name}: {counters:?}");
    }
}

#[test]
fn same_setup__same_result() {
    let run = || {
        let mut net = Bottleneck::new(setup(25, 50, timely(25)));
        let seen = net.run(20 * MS);
        format!("{seen:?} {:?}", net.counters())
    };
    assert_eq!(run(), run());
}

/// Swift learns a path's length at the least window; `docs/congestion.md` has the time.
#[test]
fn long_paths__of_which_nobody_was_told_are_found_by_swift() {
    for base_rtt_ns in [100_000, 200_000, 300_000] {
        let credits = base_rtt_ns as u32 / 150;
        let mut net = Bottleneck::new(Setup { base_rtt_ns, credits, ..setup(25, 1, swift(25)) });
        let mut found_ms = 0;
        while net.run(MS).utilisation < 0.9 {
            found_ms += 1;
            assert!(found_ms < 200, "{base_rtt_ns}");
        }
        println!("Swift on {} µs: 0.9 of the link after {found_ms} ms", base_rtt_ns / 1000);
        net.run(10 * MS);
        let seen = net.run(40 * MS);
        show(&format!("Swift, untold {} µs", base_rtt_ns / 1000), 25, 1, &seen);
        assert!(seen.utilisation >= 0.9, "{base_rtt_ns} {seen:?}");
    }
}
