//! The experiments, in their short variants: what must hold in them whatever is tuned.

#![allow(non_snake_case, reason = "tests are named function__condition")]

use petrel_sim::experiment::cc_cost::{self, CostConfig};
use petrel_sim::experiment::incast::{self, IncastConfig, IncastRow};
use petrel_sim::experiment::loss::{self, LossConfig, LossRow};
use petrel_sim::experiment::scale::{self, ScaleConfig};
use petrel_sim::experiment::small_loss::{self, SmallLossConfig};
use petrel_sim::experiment::{Controller, ExperimentError};

const SEED: u64 = 7;

/// Runs twice; both must give the same rows, each of which was shown as soon as it was there.
fn same_twice<R: Clone + PartialEq + std::fmt::Debug>(
    run: impl Fn(&mut dyn FnMut(&R)) -> Result<Vec<R>, ExperimentError>,
) -> Vec<R> {
    let mut shown = Vec::new();
    let rows = run(&mut |row: &R| shown.push(row.clone())).unwrap();
    assert_eq!(rows, shown);
    assert_eq!(run(&mut |_| {}).unwrap(), rows, "the same seed, other figures");
    rows
}

/// What 25 Gbit/s carry of requests in packets of 1 440 of 1 538 bytes.
const LINE_GBIT: f64 = 25.0 * 1_440.0 / 1_538.0;

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
    // Ten senders with 32 packets each are at the port, but for those on the way.
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
        // Little's law: 60 calls of each endpoint are under way at any time.
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
