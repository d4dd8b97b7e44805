//! Worlds of production nexuses: fixed seeds, and fresh seeds.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::rc::Rc;

use petrel_sim::Trace;
use petrel_sim::nexus::{run_seed, run_seed_traced, run_seeds};
use petrel_sim::seeds::Summary;

const FIXED_SEEDS: u64 = 1_000;
const FRESH_SEEDS: u64 = 200;

fn run(seeds: std::ops::Range<u64>) -> Summary {
    let summary = run_seeds(seeds, 2, false, |_| std::ops::ControlFlow::Continue(()));
    if let Some(failure) = summary.failures.first() {
        panic!("{failure}");
    }
    summary
}

#[test]
fn seeds__fixed_ones_keep_all_rules_and_meet_every_fault() {
    let summary = run(0..FIXED_SEEDS);
    assert_eq!(summary.seeds, FIXED_SEEDS);
    // Rare events are counted, and need not occur in this number of seeds.
    let rare = ["nexus_accept_errors", "nexus_dropped_full", "nexus_slow_messages"];
    for (name, total) in &summary.totals {
        assert!(*total > 0 || rare.contains(name), "{name} never happened");
    }
}

#[test]
fn seeds__fresh_ones_keep_all_rules() {
    let first = RandomState::new().hash_one(0) >> 16;
    run(first..first + FRESH_SEEDS);
}

#[test]
fn run_seed__is_the_same_every_time_and_traces_change_nothing() {
    let digests: Vec<u64> = (0..50).map(|seed| run_seed(seed).unwrap().digest).collect();
    for (seed, &first) in (0..50).zip(&digests) {
        assert_eq!(run_seed(seed).unwrap().digest, first, "seed {seed}");
    }
    let mut distinct = digests.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), digests.len());
    let lines = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&lines);
    let trace = Trace::off().with_sink(move |line| sink.borrow_mut().push(line.to_owned()));
    assert_eq!(run_seed_traced(3, trace).unwrap().digest, digests[3]);
    let has = |text: &str| lines.borrow().iter().any(|line| line.contains(text));
    assert!(has("START") && has("ASKS for") && has("FAULTS END"));
}
