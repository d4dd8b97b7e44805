//! Properties of all controllers.

use proptest::prelude::*;

use super::*;

fn configs(line: Rate) -> [CongestionConfig; 4] {
    let signed = TimelyConfig { gradient: Gradient::Signed, ..TimelyConfig::for_line(line) };
    [
        CongestionConfig::Timely(TimelyConfig::for_line(line)),
        CongestionConfig::Timely(signed),
        CongestionConfig::Dcqcn(DcqcnConfig::for_line(line)),
        CongestionConfig::Swift(SwiftConfig::new()),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Ack { rtt_ns: Option<u64>, packets: u32, bytes: u32, ce: bool },
    Loss(u32),
    Timeout,
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let rtt = prop_oneof![0u64..100_000, 0u64..3_000_000, any::<u64>()];
    let ack = (prop::option::of(rtt), any::<u8>(), any::<u32>(), any::<bool>());
    let ack = ack.prop_map(|(rtt_ns, packets, bytes, ce)| {
        let packets = u32::from(packets);
        Step::Ack { rtt_ns, packets, bytes, ce }
    });
    let kind = prop_oneof![
        20 => ack,
        1 => any::<u32>().prop_map(Step::Loss),
        1 => Just(Step::Timeout),
    ];
    (prop_oneof![0u64..200_000, 0u64..1 << 40], kind)
}

fn take(session: &mut Congestion, now_ns: u64, step: &Step, counters: &mut CongestionCounters) {
    match *step {
        Step::Ack { rtt_ns, packets, bytes, ce } => {
            session.on_ack(&Ack { now_ns, rtt_ns, packets, bytes, ce }, counters);
        }
        Step::Loss(packets) => session.on_loss(now_ns, packets, counters),
        Step::Timeout => session.on_timeout(now_ns, counters),
    }
}

/// A session whose round trips were all `rtt_ns` for two rounds, with marks or without.
fn after(config: &CongestionConfig, rtt_ns: u64, ce: bool) -> Congestion {
    let control = CongestionControl::new(config.clone()).unwrap();
    let mut session = control.start(Flow { credits: 32, packet_bytes: 1408, base_rtt_ns: 0 });
    let mut counters = CongestionCounters::default();
    for now_ns in [1_000_000_000, 2_000_000_000] {
        let ack = Ack { now_ns, rtt_ns: Some(rtt_ns), packets: 1, bytes: 1408, ce };
        session.on_ack(&ack, &mut counters);
    }
    session
}

/// Returns the rate that a session's pace or window allows, in bytes per second.
fn allowance(session: &Congestion, rtt_ns: u64) -> f64 {
    let by_pace = session.rate().map_or(f64::INFINITY, Rate::as_f64);
    let packets = session.window_packets().min(32);
    by_pace.min(f64::from(packets) * 1408.0 * 1e9 / rtt_ns as f64)
}

proptest! {
    #[test]
    fn longer_round_trips__never_allow_more(one in 1u64..4_000_000, more in 0u64..4_000_000) {
        let line = Rate::gbit(25);
        for config in [&configs(line)[0], &configs(line)[3]] {
            let (shorter, longer) = (after(config, one, false), after(config, one + more, false));
            prop_assert!(
                allowance(&longer, one + more) <= allowance(&shorter, one) * 1.000_001,
                "{:?}", config
            );
        }
    }

    #[test]
    fn marks__never_allow_more(steps in prop::collection::vec(step(), 0..50)) {
        let config = &configs(Rate::gbit(25))[2];
        let mut unmarked = CongestionControl::new(config.clone())
            .unwrap()
            .start(Flow { credits: 32, packet_bytes: 1408, base_rtt_ns: 0 });
        let mut counters = CongestionCounters::default();
        let mut now_ns = 1 << 40;
        for (pass_ns, step) in &steps {
            now_ns += pass_ns;
            take(&mut unmarked, now_ns, step, &mut counters);
        }
        let mut marked = unmarked.clone();
        let last = |ce| Ack { now_ns, rtt_ns: Some(10_000), packets: 1, bytes: 1408, ce };
        marked.on_ack(&last(true), &mut counters);
        unmarked.on_ack(&last(false), &mut counters);
        let rate = |session: &Congestion| session.rate().unwrap_or(Rate::gbit(25));
        prop_assert!(rate(&marked) <= rate(&unmarked));
    }

    #[test]
    fn same_history__same_state(steps in prop::collection::vec(step(), 1..100)) {
        for config in configs(Rate::gbit(100)) {
            let end = || {
                let control = CongestionControl::new(config.clone()).unwrap();
                let mut session = control.start(Flow { credits: 32, packet_bytes: 1408, base_rtt_ns: 0 });
                let mut counters = CongestionCounters::default();
                let mut now_ns = 0;
                for (pass_ns, step) in &steps {
                    now_ns += pass_ns;
                    take(&mut session, now_ns, step, &mut counters);
                }
                format!("{session:?} {counters:?}")
            };
            let one = end();
            prop_assert!(!one.contains("NaN") && !one.contains("inf"));
            prop_assert_eq!(one, end());
        }
    }
}

/// Found by the fuzz target `congestion`: the sum wrapped to a window of no packet at all.
#[test]
fn packets_in__of_more_than_can_be_counted_are_the_most() {
    let flow = Flow { credits: 1, packet_bytes: 1, base_rtt_ns: 0 };
    assert_eq!(flow.packets_in(1.25e11, u32::MAX), u32::MAX);
    assert_eq!(flow.packets_in(0.0, u32::MAX), 1);
}
