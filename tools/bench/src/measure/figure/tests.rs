//! Tests of figures, made from synthetic windows.

use petrel_command::output::latency::Latencies;

use super::*;

fn setting() -> Setting {
    Setting {
        cores: Some(1),
        baseline: Some(Baseline::BareMedium),
        ..Setting::new("rate", "shm", "petrel bench rate".to_owned())
    }
}

fn window(answered: u64) -> Window {
    Window { calls: answered, checked: answered, elapsed_ns: 1_000, ..Window::new(None) }
}

fn pair(library: u64, baseline: u64, distance: Distance) -> Pair {
    let distance = Some(distance);
    Pair {
        library: window(library),
        baseline: Some(window(baseline)),
        distance,
        line_ns: Some(100),
    }
}

fn pairs() -> Pairs {
    Pairs {
        kept: vec![
            pair(10, 100, Distance::Near),
            pair(30, 100, Distance::Near),
            pair(10, 20, Distance::Far),
        ],
        dropped: vec![pair(1, 1, Distance::Near)],
    }
}

/// Returns a figure without failures.
pub(crate) fn figure() -> Figure {
    Figure::new(Quantity::Rate, setting(), pairs())
}

#[test]
fn new__takes_medians_of_the_kept_pairs() {
    let figure = Figure::new(Quantity::Rate, setting(), pairs());
    assert_eq!((figure.value, figure.bare, figure.ratio), (10.0, Some(100.0), Some(0.3)));
    assert_eq!((figure.windows, figure.dropped_windows), (3, 1));
    assert_eq!((figure.distance, figure.ns_per_call), (Some("both"), Some(100.0)));
    let near = figure.near.unwrap();
    assert_eq!((near.windows, near.value, near.ratio), (2, 20.0, Some(0.2)));
    assert_eq!(figure.far.unwrap().ratio, Some(0.5));
    assert_eq!((figure.calls, figure.bare_checked), (51, 221), "dropped ones count here");
    assert!(figure.is_valid());
}

#[test]
fn new__says_near_and_far_apart_only_where_there_are_both() {
    let pairs = Pairs { kept: vec![pair(1, 2, Distance::Far)], dropped: Vec::new() };
    let figure = Figure::new(Quantity::Rate, setting(), pairs);
    assert_eq!((figure.distance, figure.far), (Some("far"), None));
}

#[test]
fn is_valid__not_with_a_wrong_answer_on_either_side() {
    for (library, baseline) in [(1, 0), (0, 1)] {
        let mut pairs = pairs();
        pairs.dropped[0].library.mismatched = library;
        pairs.dropped[0].baseline.as_mut().unwrap().mismatched = baseline;
        assert!(!Figure::new(Quantity::Rate, setting(), pairs).is_valid());
    }
}

#[test]
fn new__of_latencies_has_differences() {
    let timed = |ns: u64| {
        let mut latencies = Latencies::default();
        latencies.record(ns);
        Window { checked: 1, elapsed_ns: 1, ..Window::new(Some(latencies)) }
    };
    let pair =
        Pair { library: timed(190), baseline: Some(timed(100)), distance: None, line_ns: None };
    let pairs = Pairs { kept: vec![pair], dropped: Vec::new() };
    let figure = Figure::new(Quantity::Latency, setting(), pairs);
    assert_eq!((figure.value, figure.difference_ns), (0.19, Some(90)));
    let json = serde_json::to_value(&figure).unwrap();
    assert_eq!((&json["value_ns"], &json["bare_ns"]), (&190.into(), &100.into()), "{json}");
    assert_eq!(figure.latency.unwrap().p50_ns, 190);
    assert_eq!(figure.bare_latency.unwrap().p50_ns, 100);
    assert_eq!(figure.ns_per_call, None);
}
