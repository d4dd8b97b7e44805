//! The experiments with several paths, in their short variants: properties that hold with any tuning.

use crate::common::same_twice;
use petrel_experiments::sim::ExperimentError;
use petrel_experiments::sim::paths::{
    self, CutKind, CutRow, FlowsConfig, PathsConfig, Policy, ThroughputRow,
};
use petrel_experiments::sim::traffic::SizeClass;
use petrel_proto::Recovery;

const SEED: u64 = 7;

/// The goodput of 40 Gbit/s in packets with 1 440 of 1 530 bytes.
const HOST_GBIT: f64 = 40.0 * 1_440.0 / 1_530.0;

/// One path, with both recoveries.
fn single() -> PathsConfig {
    PathsConfig { policies: vec![Policy::SINGLE], ..PathsConfig::quick(SEED) }
}

fn selective() -> PathsConfig {
    PathsConfig { recoveries: vec![Recovery::Selective], ..single() }
}

fn coupled() -> PathsConfig {
    PathsConfig { policies: vec![Policy::COUPLED], ..selective() }
}

fn check_counts(row: &ThroughputRow) {
    assert_eq!(row.session_gbit.len() as u64, row.runs * row.sessions as u64, "{row:?}");
    assert!(row.session_gbit.is_sorted() && row.share <= 1.0 && row.calls > 0, "{row:?}");
    let sum = row.session_gbit.iter().fold(0.0, |sum, gbit| sum + gbit) / row.runs as f64;
    assert!((sum / row.goodput_gbit - 1.0).abs() < 1e-9, "{row:?}");
}

#[test]
fn loss__selective_recovery_hardly_feels_it_and_go_back_n_keeps_the_good_path() {
    let config = single();
    let rows = same_twice(|on_row| paths::loss(&config, on_row));
    rows.iter().for_each(check_counts);
    let [none, none_by_timeouts, some, some_by_timeouts] = &rows[..] else { panic!("{rows:?}") };
    for row in [none, none_by_timeouts] {
        assert!(row.goodput_gbit > 0.99 * HOST_GBIT, "one path carries the host: {row:?}");
        assert_eq!((row.drops, row.retransmissions, row.needless), (0, 0, 0));
    }
    assert!(some.relative > 0.95 && some.retransmissions > 0, "{some:?}");
    // One run of four is on the path without loss, and has all of it.
    assert!(some_by_timeouts.session_gbit[3] > 0.99 * HOST_GBIT, "{some_by_timeouts:?}");
    assert!((0.25..0.5).contains(&some_by_timeouts.relative), "{some_by_timeouts:?}");
}

#[test]
fn loss__several_paths_leave_those_that_lose() {
    let rows = same_twice(|on_row| paths::loss(&coupled(), on_row));
    rows.iter().for_each(check_counts);
    let [none, some] = &rows[..] else { panic!("{rows:?}") };
    assert!(none.goodput_gbit > 0.9 * HOST_GBIT && none.drops == 0, "{none:?}");
    // Without loss all paths are in use.
    assert!(none.paths.iter().all(|path| path.gbit > 1.0), "{none:?}");
    assert!(some.relative > 0.9 && some.retransmissions > 0, "{some:?}");
}

#[test]
fn unequal__several_paths_use_more_than_the_best() {
    let rows = paths::unequal(&coupled(), |_| {}).unwrap();
    rows.iter().for_each(check_counts);
    for row in &rows {
        assert!(row.share > 0.7, "{row:?}");
        let used = row.paths.iter().filter(|path| path.gbit > 1.0).count();
        // The fourth path of the last row is hardly worth a look.
        assert_eq!(used, if row.network == "10/10/10/0.25" { 3 } else { 4 }, "{row:?}");
    }
}

#[test]
fn small__a_dead_path_delays_the_calls_on_it_and_plb_leaves_it() {
    let plb = "plb".parse().unwrap();
    let config = PathsConfig { policies: vec![Policy::SINGLE, plb], ..selective() };
    let rows = same_twice(|on_row| paths::small(&config, on_row));
    let [one, several, one_dead, several_dead] = &rows[..] else { panic!("{rows:?}") };
    for row in [one, several] {
        assert!(row.over_limit == 0 && row.timeouts == 0 && row.latency.count > 100, "{row:?}");
    }
    // The path is dead for 4 ms, and some sessions have no other.
    assert!(one_dead.over_limit > 0 && one_dead.latency.max_ns > 4_000_000, "{one_dead:?}");
    assert!(several_dead.latency.p999_ns < one_dead.latency.p999_ns, "{several_dead:?}");
    assert!(several_dead.retransmissions > 0, "{several_dead:?}");
}

#[test]
fn fair__sessions_that_come_and_go_share_the_receiver() {
    let rows = same_twice(|on_row| paths::fair(&coupled(), on_row));
    let sessions: Vec<_> = rows.iter().map(|row| (row.change, row.sessions)).collect();
    assert_eq!(sessions, [("comes", 1), ("comes", 2), ("comes", 3), ("goes", 2), ("goes", 1)]);
    for row in &rows {
        assert_eq!(row.session_gbit.len(), row.sessions);
        assert!((0.9..1.01).contains(&row.share) && row.jain > 0.8, "{row:?}");
    }
}

#[test]
fn pinned__several_paths_give_way_and_keep_the_others() {
    let rows = same_twice(|on_row| paths::pinned(&coupled(), on_row));
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert!(row.share_before > 0.8, "the fourth path is used before: {row:?}");
    assert!(row.share_after < row.share_before && row.pinned > 0.2, "{row:?}");
    assert!(row.others > 0.8, "{row:?}");
    assert!(paths::pinned(&selective(), |_| {}).unwrap().is_empty(), "one path has no other");
}

#[test]
fn unequal__a_single_path_is_one_of_them() {
    let rows = paths::unequal(&selective(), |_| {}).unwrap();
    rows.iter().for_each(check_counts);
    let expected = [[10.0; 4], [5.0, 5.0, 10.0, 20.0], [0.25, 10.0, 10.0, 10.0]];
    for (row, rates) in rows.iter().zip(expected) {
        for (&gbit, rate) in row.session_gbit.iter().zip(rates) {
            let full = rate * HOST_GBIT / 40.0;
            assert!((0.8..1.01).contains(&(gbit / full)), "{gbit} of {full}: {row:?}");
        }
        let used = row.paths.iter().filter(|path| path.gbit > 0.1 * rates[0]).count();
        assert_eq!(used, 4, "each run takes another path: {row:?}");
    }
}

#[test]
fn permutation__collisions_leave_links_unused() {
    let rows = paths::permutation(&selective(), |_| {}).unwrap();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    check_counts(row);
    assert_eq!((row.sessions, row.runs), (25, 2));
    assert!((0.4..0.85).contains(&row.share) && row.jain < 0.95, "{row:?}");
}

#[test]
fn fabric__a_quarter_of_it_has_the_same_rules() {
    let rows = paths::fabric(&selective(), |_| {}).unwrap();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    check_counts(row);
    assert_eq!((row.network, row.sessions), ("80 hosts", 40));
    assert!((0.4..0.9).contains(&row.share), "{row:?}");
}

#[test]
fn incast__the_receiver_s_link_is_full() {
    let rows = paths::incast(&selective(), |_| {}).unwrap();
    rows.iter().for_each(check_counts);
    assert_eq!([rows[0].sessions, rows[1].sessions], [1, 4]);
    assert!(rows.iter().all(|row| row.share > 0.95), "{rows:?}");
}

fn at<'a>(rows: &'a [CutRow], kind: CutKind, change: &str) -> &'a CutRow {
    rows.iter().find(|row| (row.kind, row.change) == (kind, change)).unwrap()
}

#[test]
fn cut__a_silent_one_stops_the_session_and_routes_lead_around_the_other() {
    let config = selective();
    let rows = same_twice(|on_row| paths::cut(&config, on_row));
    for kind in [CutKind::Silent, CutKind::LinkDown] {
        let before = at(&rows, kind, "none");
        assert!((0.2..0.26).contains(&before.share), "one of four paths: {before:?}");
        assert_eq!(at(&rows, kind, "cut 3").paths_up, 1);
        assert_eq!(before.full_after_ns, None, "a quarter is not full");
    }
    let silent = at(&rows, CutKind::Silent, "cut 1");
    assert!(silent.samples_gbit[1..].iter().all(|&gbit| gbit == 0.0), "{silent:?}");
    let last = at(&rows, CutKind::LinkDown, "cut 3");
    let end = last.samples_gbit.last().unwrap();
    assert!(*end > 0.8 * last.capacity_gbit, "the session is on the last path: {last:?}");
}

#[test]
fn cut__several_paths_go_on_with_the_others() {
    let rows = paths::cut(&coupled(), |_| {}).unwrap();
    for kind in [CutKind::Silent, CutKind::LinkDown] {
        for change in ["none", "cut 1", "cut 2", "cut 3"] {
            let row = at(&rows, kind, change);
            let last = row.samples_gbit.last().unwrap();
            assert!(*last > 0.7 * row.capacity_gbit, "{row:?}");
        }
    }
}

#[test]
fn flows__slow_down_with_the_load() {
    let config = selective();
    let what = FlowsConfig { loads_percent: vec![10, 80], ..FlowsConfig::default() };
    let rows = same_twice(|on_row| paths::flows(&config, &what, on_row));
    let find = |load: f64, class| {
        let of = |row: &&paths::FlowsRow| (row.load, row.flows.class) == (load, class);
        rows.iter().find(of).unwrap()
    };
    let [low, high] = [0.1, 0.8].map(|load| find(load, SizeClass::All));
    assert!(low.flows.slowdown_mean >= 1.0 && low.flows.slowdown_mean < high.flows.slowdown_mean);
    assert!(low.flows.count < high.flows.count, "{low:?}, {high:?}");
    // 25 hosts offer 0.8 of 40 Gbit/s each in flows of 1.7 MB: 35 within half a millisecond.
    assert!((15..65).contains(&high.flows.count), "{high:?}");
    let by_class = [SizeClass::Small, SizeClass::Medium].map(|class| find(0.8, class).flows.count);
    assert!(by_class.iter().sum::<usize>() <= high.flows.count, "{by_class:?}");
}

#[test]
fn flows__without_a_load_are_refused() {
    let what = FlowsConfig { loads_percent: vec![0], ..FlowsConfig::default() };
    let refused = paths::flows(&selective(), &what, |_| {});
    assert!(matches!(refused, Err(ExperimentError::Parameters(_))));
}
