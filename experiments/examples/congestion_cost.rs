//! Measures the cost of congestion control, in instructions. Run under callgrind, which counts instructions
//! by function:
//!
//! ```text
//! cargo build --release --manifest-path experiments/Cargo.toml --example congestion_cost
//! valgrind --tool=callgrind --callgrind-out-file=cost.out experiments/target/release/examples/congestion_cost
//! callgrind_annotate --inclusive=yes cost.out | grep 'measured_.*(1x)'
//! ```
//!
//! Every `measured_…` function repeats its operation [`COUNT`] times; `measured_loop` is the loop alone. Two
//! functions with equal instructions may share a name; they are listed in the order of `main`.

use std::hint::black_box;

use petrel_proto::congestion::{
    Ack, Congestion, CongestionConfig, CongestionControl, CongestionCounters, DcqcnConfig, Flow,
    Rate, SwiftConfig, TimelyConfig,
};
use petrel_proto::timer::{TimerKey, TimerWheel};

/// Repetitions of every operation.
const COUNT: u64 = 100_000;

fn start(config: CongestionConfig) -> Congestion {
    let control = CongestionControl::new(config).expect("the defaults are valid");
    control.start(Flow { credits: 32, packet_bytes: 1408, base_rtt_ns: 0 })
}

fn ack(now_ns: u64, rtt_ns: u64, ce: bool) -> Ack {
    Ack { now_ns, rtt_ns: Some(rtt_ns), packets: 1, bytes: 1408, ce }
}

/// Acknowledges a packet every 1 µs with this round trip, every 64th packet with a mark.
#[inline(always)]
fn acks(session: &mut Congestion, counters: &mut CongestionCounters, rtt_ns: u64, marks: bool) {
    let session = black_box(session);
    for packet in 1..=COUNT {
        let ce = marks && packet % 64 == 0;
        session.on_ack(&ack(black_box(packet * 1000), rtt_ns, ce), counters);
    }
}

#[inline(never)]
fn measured_loop() {
    for packet in 1..=COUNT {
        black_box(packet * 1000);
    }
}

#[inline(never)]
fn measured_bypass(session: &mut Congestion, counters: &mut CongestionCounters) {
    acks(session, counters, black_box(12_000), false);
}

#[inline(never)]
fn measured_timely(session: &mut Congestion, counters: &mut CongestionCounters) {
    acks(session, counters, black_box(90_000), false);
}

#[inline(never)]
fn measured_dcqcn(session: &mut Congestion, counters: &mut CongestionCounters) {
    acks(session, counters, black_box(90_000), true);
}

#[inline(never)]
fn measured_swift(session: &mut Congestion, counters: &mut CongestionCounters) {
    acks(session, counters, black_box(90_000), false);
}

#[inline(never)]
fn measured_is_paced(session: &Congestion) -> u64 {
    let session = black_box(session);
    (1..=COUNT).map(|packet| u64::from(black_box(packet) != 0 && session.is_paced())).sum()
}

#[inline(never)]
fn measured_charge(session: &mut Congestion) {
    let session = black_box(session);
    for packet in 1..=COUNT {
        session.charge(black_box(packet * 1000), 1408);
    }
}

fn key(session: u64) -> TimerKey {
    TimerKey { session: session as u32, generation: 0, slot: 0 }
}

/// A hundred paced sessions: an insertion and a due entry every microsecond.
#[inline(never)]
fn measured_releases(wheel: &mut TimerWheel) -> u64 {
    let mut due = 0;
    for packet in 1..=COUNT {
        let now_ns = black_box(packet * 1024);
        wheel.insert_release(now_ns, key(packet), now_ns + 100 * 1024);
        wheel.advance(now_ns);
        while wheel.pop_release().is_some() {
            due += 1;
        }
    }
    due
}

/// Inserts and takes timeouts likewise, at the pace of the coarse ticks.
#[inline(never)]
fn measured_timeouts(wheel: &mut TimerWheel) -> u64 {
    let mut due = 0;
    for packet in 1..=COUNT {
        let now_ns = black_box(packet << 18);
        wheel.insert(key(packet), now_ns + (100 << 18));
        wheel.advance(now_ns);
        while wheel.pop_due().is_some() {
            due += 1;
        }
    }
    due
}

/// The cost of a turn of the event loop for an endpoint without paced sessions.
#[inline(never)]
fn measured_advance(wheel: &mut TimerWheel) {
    let wheel = black_box(wheel);
    for turn in 1..=COUNT {
        wheel.advance(black_box(turn));
    }
}

fn main() {
    let line = Rate::gbit(25);
    let mut counters = CongestionCounters::default();
    let mut timely = start(CongestionConfig::Timely(TimelyConfig::for_line(line)));
    let mut dcqcn = start(CongestionConfig::Dcqcn(DcqcnConfig::for_line(line)));
    let mut swift = start(CongestionConfig::Swift(SwiftConfig::new()));
    measured_loop();
    measured_bypass(&mut timely, &mut counters);
    assert_eq!((counters.acks_bypassed, counters.updates), (COUNT, 0));
    measured_timely(&mut timely, &mut counters);
    measured_dcqcn(&mut dcqcn, &mut counters);
    measured_swift(&mut swift, &mut counters);
    assert!([&timely, &dcqcn, &swift].into_iter().all(Congestion::is_limited));
    println!("bytes of a session's state: {}", size_of::<Congestion>());
    println!("acknowledgements heard: {}", counters.updates);
    assert_eq!(measured_is_paced(&timely), COUNT);
    measured_charge(&mut timely);
    let releases = measured_releases(&mut TimerWheel::new(0));
    let timeouts = measured_timeouts(&mut TimerWheel::new(0));
    assert!(releases.abs_diff(COUNT) < 200 && timeouts.abs_diff(COUNT) < 200);
    measured_advance(&mut TimerWheel::new(0));
}
