//! The controllers in a closed loop with one bottleneck.

mod bottleneck;

use bottleneck::{Bottleneck, Marking, Seen, Setup};
use petrel_proto::congestion::{
    CongestionConfig, DcqcnConfig, Gradient, Rate, SwiftConfig, TimelyConfig,
};

const MS: u64 = 1_000_000;

fn setup(gbit: u64, flows: usize, control: CongestionConfig) -> Setup {
    let marking =
        Marking { from_bytes: 40_000 * gbit / 25, all_bytes: 200_000 * gbit / 25, most: 0.05 };
    Setup {
        link: Rate::gbit(gbit),
        bare_rtt_ns: if gbit > 25 { 5_000 } else { 10_000 },
        noise_ns: 2_000,
        credits: 32,
        flows,
        marking: Some(marking),
        control,
    }
}

fn configs(gbit: u64) -> Vec<(&'static str, CongestionConfig)> {
    let line = Rate::gbit(gbit);
    vec![
        ("none", CongestionConfig::None),
        ("timely", CongestionConfig::Timely(TimelyConfig::for_line(line))),
        (
            "timely2015",
            CongestionConfig::Timely(TimelyConfig {
                gradient: Gradient::Signed,
                ..TimelyConfig::for_line(line)
            }),
        ),
        ("dcqcn", CongestionConfig::Dcqcn(DcqcnConfig::for_line(line))),
        ("swift", CongestionConfig::Swift(SwiftConfig::new())),
    ]
}

fn show(name: &str, gbit: u64, flows: usize, what: &str, seen: &Seen) {
    println!(
        "{gbit:>3} {name:>10} {flows:>3} {what:>8}: util {:.3} jain {:.3} rtt p50 {:>6.1} p99 {:>6.1} max {:>6.1} us",
        seen.utilisation,
        seen.jain,
        seen.rtt_p50_ns as f64 / 1e3,
        seen.rtt_p99_ns as f64 / 1e3,
        seen.rtt_max_ns as f64 / 1e3
    );
}

#[test]
fn explore() {
    for gbit in [25, 100] {
        for (name, config) in configs(gbit) {
            for flows in [2, 20, 50, 100] {
                let mut net = Bottleneck::new(setup(gbit, flows, config.clone()));
                show(name, gbit, flows, "start", &net.run(5 * MS));
                net.run(15 * MS);
                show(name, gbit, flows, "steady", &net.run(40 * MS));
                net.stop_from(2);
                show(name, gbit, flows, "leave", &net.run(5 * MS));
                show(name, gbit, flows, "left", &net.run(10 * MS));
                println!("{:?}", net.counters());
            }
        }
    }
}
