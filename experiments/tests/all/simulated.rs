//! The experiments, in their short variants: properties that hold with any tuning.

use crate::common::same_twice;
use petrel_experiments::sim::Controller;
use petrel_experiments::sim::ExperimentError;
use petrel_experiments::sim::cc_cost::{self, CostConfig};
use petrel_experiments::sim::incast::{self, IncastConfig, IncastRow};
use petrel_experiments::sim::loss::{self, LossConfig, LossRow};
use petrel_experiments::sim::overload::{self, OverloadConfig, OverloadRow, Policy, Service};
use petrel_experiments::sim::scale::{self, ScaleConfig};
use petrel_experiments::sim::small_loss::{self, SmallLossConfig};

const SEED: u64 = 7;

/// Capacity of 25 Gbit/s for requests in packets with 1 440 of 1 530 bytes.
const LINE_GBIT: f64 = 25.0 * 1_440.0 / 1_530.0;

fn find<'a>(rows: &'a [LossRow], recovery: &str, loss: f64) -> &'a LossRow {
    let is_it = |row: &&LossRow| row.recovery == recovery && row.loss == loss;
    rows.iter().find(is_it).unwrap()
}

#[test]
fn loss__fills_the_line_without_and_selective_beats_go_back_n() {
    let config = LossConfig::quick(SEED);
    let rows = same_twice(|on_row| loss::run(&config, on_row));
    assert_eq!(rows.len(), 6);
    for recovery in ["selective", "go-back-n"] {
        let none = find(&rows, recovery, 0.0);
        assert_eq!((none.losses, none.retransmissions, none.timeouts), (0, 0, 0), "{none:?}");
        assert!(none.goodput_gbit > 0.95 * LINE_GBIT && none.goodput_gbit <= LINE_GBIT);
        let some = find(&rows, recovery, 1e-2);
        assert!(some.losses > 500 && some.retransmissions > 0, "{some:?}");
        assert!(some.relative < 1.0, "{some:?}");
    }
    let at = |recovery| find(&rows, recovery, 1e-2).relative;
    assert!(at("selective") > 4.0 * at("go-back-n"), "{rows:?}");
}

#[test]
fn loss__go_back_n_waits_for_the_least_timeout_and_selective_does_not() {
    const RTO_MIN_NS: [u64; 2] = [1_000_000, 5_000_000];
    let config = LossConfig {
        rto_min_ns: RTO_MIN_NS.to_vec(),
        loss_ppb: vec![1_000_000],
        ..LossConfig::quick(SEED)
    };
    let rows = loss::run(&config, |_| {}).unwrap();
    assert_eq!(rows.iter().map(|row| row.rto_min_ns).collect::<Vec<_>>(), RTO_MIN_NS.repeat(2));
    let [selective, selective_late, go_back_n, go_back_n_late] = &rows[..] else {
        panic!("{rows:?}")
    };
    for row in [selective, selective_late] {
        assert!(row.timeouts == 0 && row.relative > 0.95, "{row:?}");
    }
    assert!(go_back_n.timeouts > 0 && go_back_n_late.timeouts > 0, "{rows:?}");
    assert!(go_back_n.relative > 2.0 * go_back_n_late.relative, "{rows:?}");
}

#[test]
fn loss__at_100_gbit_is_held_by_the_core_not_by_the_line() {
    let config = LossConfig { gbit: vec![100], loss_ppb: vec![0], ..LossConfig::quick(SEED) };
    for row in loss::run(&config, |_| {}).unwrap() {
        assert!((60.0..98.0).contains(&row.goodput_gbit), "{row:?}");
    }
}

#[test]
fn small_loss__without_loss_nothing_is_late_and_with_it_every_call_ends() {
    let config = SmallLossConfig::quick(SEED);
    let rows = same_twice(|on_row| small_loss::run(&config, on_row));
    let none = &rows[0];
    assert_eq!((none.losses, none.retransmissions, none.timeouts), (0, 0, 0));
    assert!(none.latency.max_ns < 2 * none.latency.p50_ns, "{none:?}");
    for row in &rows {
        assert_eq!((row.calls, row.latency.count), (config.calls, config.calls), "{row:?}");
        assert_eq!(row.latency.p50_ns, none.latency.p50_ns, "most calls lose nothing");
    }
    assert!(rows[3].losses > rows[2].losses && rows[2].losses > rows[1].losses, "{rows:?}");
}

fn of(rows: &[IncastRow], controller: Controller) -> &IncastRow {
    rows.iter().find(|row| row.controller == controller).unwrap()
}

#[test]
fn incast__credits_alone_fill_port_and_queue_and_control_shortens_it() {
    let config = IncastConfig::quick(SEED);
    let rows = same_twice(|on_row| incast::run(&config, on_row));
    assert_eq!(rows.len(), Controller::ALL.len());
    let none = of(&rows, Controller::None);
    // Ten senders with 32 packets each fill the port's queue, except for packets in flight.
    let credits_ns = 10.0 * 32.0 * 1_538.0 * 8.0 / 25.0;
    assert!(none.share > 0.98 && none.jain > 0.99, "{none:?}");
    assert!((0.8..1.0).contains(&(none.queue_mean_ns / credits_ns)), "{none:?}");
    assert!(none.probe.p50_ns as f64 > none.queue_mean_ns, "a probe waits in the queue");
    for row in rows.iter().filter(|row| row.controller != Controller::None) {
        assert!(row.share > 0.9, "{row:?}");
        assert!(row.probe.p50_ns < none.probe.p50_ns / 2, "{row:?}");
        assert!(row.background.is_none());
    }
    assert!(of(&rows, Controller::Dcqcn).marked > 0 && none.marked == 0);
}

/// eRPC §6.5: without the common-case optimisations, the round trips of an incast are the same.
#[test]
fn incast__timely_without_its_bypasses_has_the_same_queue() {
    let controllers = vec![Controller::Timely, Controller::TimelyWithoutBypasses];
    let config = IncastConfig { controllers, ..IncastConfig::quick(SEED) };
    let rows = incast::run(&config, |_| {}).unwrap();
    assert_ne!(rows[0].probe, rows[1].probe, "the bypasses are on in both");
    for row in &rows {
        let ratio = row.probe.p50_ns as f64 / rows[0].probe.p50_ns as f64;
        assert!((0.8..1.25).contains(&ratio) && row.share > 0.9, "{rows:?}");
    }
}

#[test]
fn incast__background_alone_has_no_queue_and_beside_it_is_counted() {
    let config = IncastConfig {
        controllers: vec![Controller::Timely],
        warm_up_ns: 500_000,
        measured_ns: 1_000_000,
        ..IncastConfig::quick(SEED).with_background()
    };
    let rows = incast::run(&config, |_| {}).unwrap();
    let alone = &rows[0];
    assert_eq!((alone.senders, alone.goodput_gbit, alone.marked), (0, 0.0, 0));
    for row in &rows {
        assert!(row.background.is_some_and(|latency| latency.count > 500), "{row:?}");
    }
    assert!(rows[1].goodput_gbit > 0.0);
}

#[test]
fn scale__same_seed_same_bytes_and_all_calls_are_counted() {
    let config = ScaleConfig::quick(SEED);
    let rows = same_twice(|on_row| scale::run(&config, on_row));
    for row in &rows {
        assert_eq!(row.sessions_per_host, u64::from(row.threads).pow(2) * 9);
        assert!(row.calls > 0 && row.calls_checked > row.calls, "{row:?}");
        assert_eq!((row.drops, row.timeouts), (0, 0), "{row:?}");
        // Little's law: 60 calls of each endpoint are outstanding at any time.
        let in_flight = row.rate_per_host_mrps * row.latency.p50_ns as f64 / 1e3;
        assert!(in_flight < 1.5 * 60.0 * f64::from(row.threads), "{row:?}");
    }
    let other = scale::run(&ScaleConfig { seed: SEED + 1, ..config }, |_| {}).unwrap();
    assert_ne!(other[0].digest, rows[0].digest, "another seed, another run");
}

#[test]
fn scale__without_links_is_refused() {
    let config = ScaleConfig { oversubscription: 0, ..ScaleConfig::quick(SEED) };
    assert!(matches!(scale::run(&config, |_| {}), Err(ExperimentError::Parameters(_))));
}

#[test]
fn cc_cost__nobody_is_limited_where_nothing_is_congested() {
    let config = CostConfig::quick(SEED);
    let rows = same_twice(|on_row| cc_cost::run(&config, on_row));
    assert_eq!(rows.len(), 2 * Controller::ALL.len());
    for row in &rows {
        assert_eq!(row.sessions_limited, 0, "{row:?}");
        assert!((row.relative - 1.0).abs() < 0.01, "{row:?}");
    }
}

/// Eight workers, with a mean service time of 10 µs; up to twice their capacity.
fn overload_of(policy: Policy, config: OverloadConfig) -> Vec<OverloadRow> {
    let config =
        OverloadConfig { loads_percent: vec![80, 100, 200], policies: vec![policy], ..config };
    overload::run(&config, |_| {}).unwrap()
}

fn at_twice(rows: &[OverloadRow]) -> impl Iterator<Item = &OverloadRow> {
    rows.iter().filter(|row| row.load == 2.0)
}

/// A round trip between hosts under one switch, with both ends' cores: 3 µs unloaded.
const RTT_NS: u64 = 6_000;

/// Bound of the 99th percentile of answered calls, if queueing delays are bounded by the target: the
/// target, a quarter more because the expectation uses means, the longest service of a hundred, and the
/// network.
fn accepted_p99_bound_ns(target_ns: u64) -> u64 {
    target_ns + target_ns / 4 + EXPONENTIAL_P99_NS + RTT_NS
}

/// The 99th percentile of the exponential service time: -ln(0.01) times the mean.
const EXPONENTIAL_P99_NS: u64 = 46_052;

#[test]
fn overload__at_twice_the_load_goodput_stays_and_waits_are_bounded() {
    let config = OverloadConfig { measured_ns: 30_000_000, ..OverloadConfig::full(SEED) };
    let (slo_ns, target_ns) = (config.slo_ns, config.target_ns);
    for row in at_twice(&overload_of(Policy::Expected, config.clone())) {
        assert!(row.of_best >= 0.9 && row.of_capacity >= 0.9, "{row:?}");
        assert!(row.latency.p99_ns <= accepted_p99_bound_ns(target_ns), "by the target: {row:?}");
    }
    let rows = overload_of(Policy::Default, config);
    assert_eq!(at_twice(&rows).count(), 2, "with and without back-pressure");
    for row in at_twice(&rows) {
        assert!(row.of_best >= 0.9 && row.of_capacity >= 0.9, "{row:?}");
        assert!(row.latency.p99_ns <= slo_ns + RTT_NS, "by the deadlines: {row:?}");
        assert!(row.wasted * 50 <= row.executed, "{row:?}");
        assert!(row.refusal.p99_ns < 10_000, "who is refused knows at once: {row:?}");
        // Refusals are answers, too: back-pressure prevents calls altogether.
        assert_eq!(row.held_back > 0, row.back_pressure);
    }
    let refused: Vec<_> = at_twice(&rows).map(|row| row.refused).collect();
    assert!(refused[1] * 4 < refused[0], "{refused:?}");
}

#[test]
fn overload__without_a_policy_work_is_for_nothing() {
    let config = OverloadConfig { measured_ns: 20_000_000, ..OverloadConfig::full(SEED) };
    for policy in [Policy::None, Policy::Deadlines] {
        let rows = overload_of(policy, config.clone());
        for row in at_twice(&rows) {
            // Calls that end by their deadlines show the overload to the client's limit.
            let (of_best_max, executed_per_wasted) = match (policy, row.back_pressure) {
                (_, false) => (0.1, 4),
                (Policy::Deadlines, true) => (0.9, 8),
                (_, true) => (0.8, 4),
            };
            assert!(row.of_best < of_best_max, "{row:?}");
            assert!(row.wasted * executed_per_wasted > row.executed, "{row:?}");
            match policy {
                // An answer after its deadline is not reported as OK.
                Policy::Deadlines => {
                    assert!(row.late == 0 && row.latency.max_ns <= config.slo_ns, "{row:?}");
                }
                _ => assert!(row.latency.p99_ns > config.slo_ns + RTT_NS, "{row:?}"),
            }
        }
        let below = rows.iter().find(|row| row.load == 0.8).unwrap();
        assert!(below.late == 0 && below.of_capacity > 0.75, "nothing is wrong with it: {below:?}");
    }
}

#[test]
fn overload__every_call_is_counted_and_the_same_seed_gives_the_same() {
    let mut config = OverloadConfig::quick(SEED);
    config.services = Service::ALL.to_vec();
    config.measured_ns /= 2;
    let one = OverloadConfig { services: vec![Service::Bimodal], ..config.clone() };
    same_twice(|on_row| overload::run(&one, on_row));
    let rows = overload::run(&config, |_| {}).unwrap();
    assert_eq!(rows.len(), 3 * 3 * 2 * Policy::ALL.len());
    for row in &rows {
        let ended = row.good + row.late + row.refused + row.expired + row.held_back + row.unsent;
        assert_eq!(ended, row.offered, "{row:?}");
        assert_eq!(row.latency.count, row.good + row.late, "{row:?}");
        assert!(row.busy <= 1.01 && row.of_best <= 1.0, "{row:?}");
        // Arrivals are Poisson: five standard deviations.
        let expected = row.load * config.capacity_per_s() * config.measured_ns as f64 / 1e9;
        assert!((row.offered as f64 - expected).abs() < 5.0 * expected.sqrt(), "{row:?}");
    }
}

#[test]
fn overload__a_session_full_of_old_calls_is_emptied_by_their_deadlines() {
    // Few clients: their sessions' slots keep the server's queue short, and calls wait before the slots.
    let config = OverloadConfig {
        clients: 5,
        measured_ns: 50_000_000,
        back_pressure: vec![false],
        ..OverloadConfig::full(SEED)
    };
    for row in at_twice(&overload_of(Policy::Default, config)) {
        assert!(row.of_best >= 0.9 && row.of_capacity >= 0.9, "{row:?}");
    }
}

#[test]
fn overload__short_objectives_lock_nobody_out() {
    for slo_ns in [20_000, 50_000] {
        let config =
            OverloadConfig { slo_ns, measured_ns: 20_000_000, ..OverloadConfig::full(SEED) };
        for row in at_twice(&overload_of(Policy::Default, config)) {
            assert!(row.of_best >= 0.9 && row.of_capacity > 0.5, "{row:?}");
        }
    }
}
