//! Seeds: the regression seeds, a few more, and the repeatability of runs.

use petrel_kv_check::{Report, Runner};
use petrel_sim::Trace;
use petrel_skip::{Need, skip};

fn run(seed: u64) -> Report {
    let mut runner = Runner::new();
    runner.run(seed, Trace::off()).unwrap_or_else(|failure| panic!("{failure}"))
}

fn say_what_is_skipped() {
    if let Some(why) = Runner::skipped() {
        skip(Need::Go, format!("histories are not checked for linearizability: {why}"));
    }
}

#[test]
fn seeds__that_once_broke_a_rule_keep_all() {
    say_what_is_skipped();
    let lines = include_str!("regression_seeds.txt").lines();
    let seeds: Vec<u64> = lines.filter_map(|line| line.parse().ok()).collect();
    assert!(seeds.len() >= 8, "{seeds:?}");
    seeds.into_iter().for_each(|seed| drop(run(seed)));
}

#[test]
fn seeds__some_more_keep_all_rules_and_much_goes_wrong_in_them() {
    say_what_is_skipped();
    let reports: Vec<Report> = (100..140).map(run).collect();
    let total = |name: &str| -> u64 {
        let counts = reports.iter().flat_map(|report| &report.counts);
        counts.filter(|(other, _)| *other == name).map(|(_, count)| count).sum()
    };
    let names = ["crashes", "disks_lost", "partitions", "snapshots_fetched", "writes_repeated"];
    let of_kv_client = ["operations_of_kv_client", "operations_failed", "saves", "leases_ended"];
    let of_watches = ["changes_watched", "watches_compacted"];
    for name in names.into_iter().chain(of_kv_client).chain(of_watches) {
        assert!(total(name) > 0, "nothing of {name}");
    }
    assert!(total("operations") > 1_000);
    assert!(total("terms_with_a_leader") > 40, "nobody else was ever elected");
}

#[test]
fn seeds__give_the_same_run_every_time() {
    for seed in 200..210 {
        assert_eq!(run(seed).digest, run(seed).digest, "seed {seed}");
    }
}
