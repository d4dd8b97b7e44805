//! Whole worlds: seeds that once found a defect, fixed seeds, and fresh seeds.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use petrel_sim::Trace;
use petrel_sim::check::{Options, Summary, run_seed, run_seed_traced, run_seeds};

/// A line has a seed and the defect found by this seed.
const REGRESSIONS: &str = include_str!("regression_seeds.txt");

const FIXED_SEEDS: u64 = 200;
const FRESH_SEEDS: u64 = 10;

/// The options under which most of these seeds found their defects.
fn with_everything() -> Options {
    let mut options = Options::default();
    options.has_everything = true;
    options
}

fn run(seeds: std::ops::Range<u64>) -> Summary {
    run_seeds(seeds, 2, &Options::default(), |_| std::ops::ControlFlow::Continue(()))
}

fn assert_clean(summary: &Summary) {
    if let Some(failure) = summary.failures.first() {
        panic!("{failure}");
    }
}

#[test]
fn seeds__fixed_ones_keep_all_rules_and_meet_every_fault() {
    let summary = run(0..FIXED_SEEDS);
    assert_clean(&summary);
    assert_eq!(summary.seeds, FIXED_SEEDS);
    let happened = [
        "calls_nested",
        "calls_succeeded",
        "calls_of_largest_size",
        "calls_failed_by_server",
        "calls_failed_unknown",
        "calls_failed_not_sent",
        "calls_rejected",
        "calls_lost_with_client",
        "calls_timed_out",
        "calls_refused_by_server",
        "calls_cancelled_by_caller",
        "calls_deadline_exceeded",
        "cancels_sent",
        "cancels_received",
        "cancels_too_late",
        "requests_expired",
        "requests_held_for_order",
        "handlers_notified",
        "crashes",
        "partitions",
        "pauses",
        "packets_lost",
        "packets_partitioned",
        "packets_dropped_by_hosts",
        "packets_dropped_by_switches",
        "packets_corrupted",
        "packets_duplicated",
        "packets_reordered",
        "packets_injected",
        "delay_spikes",
        "transmit_queue_full",
        "ring_frames",
        "rings_full",
        "rings_corrupted",
        "ring_wakes_late",
        "ring_wakes_refused",
        "packets_retransmitted",
        "losses_detected",
        "repeats_paced",
        "ended_before_repeat",
        "failed_while_paced",
        "payloads_checked_of_repetitions",
        "payloads_checked_of_ended_calls",
        "buffers_reused",
        "dropped_malformed",
        "dropped_unknown_session",
        "dropped_wrong_peer",
        "dropped_stale",
        "dropped_duplicate",
        "refused_no_memory",
        "answers_discarded",
        "links_lost",
        "links_failed",
        "connections_silent",
        "connections_reset",
        "sessions_unanswered",
        "frames_checked",
        "client_calls_succeeded",
        "client_retries",
        "client_hedges_won",
        "client_sessions_opened",
        "client_connects_failed",
        "client_calls_dropped_by_caller",
        "client_calls_executed_again",
        "client_calls_failed_not_executed",
        "client_calls_failed_unknown",
        "client_calls_lost_with_client",
        "group_calls_succeeded",
        "group_calls_failed",
        "worker_requests_run",
        "worker_requests_refused",
        "worker_requests_skipped",
        "drains_completed",
        "region_operations_succeeded",
        "region_operations_denied",
        "region_operations_not_executed",
        "region_operations_unknown_again",
        "region_operations_dropped_by_caller",
        "region_keys_revoked_again",
        "multicast_calls_succeeded",
        "multicast_packets_adopted",
        "multicast_requests_missed",
        "links_sealed",
        "attacks_replayed",
        "attacks_reflected",
        "attacks_mixed",
        "attacks_flipped",
        "attacks_truncated",
        "attacks_plain",
        "attacks_to_plain_endpoints",
        "attacks_of_former_keys",
    ];
    for name in happened {
        assert!(summary.totals[name] > 0, "{name} never happened");
    }
}

#[test]
fn seeds__fresh_ones_keep_all_rules() {
    // Fresh seeds; a failure names its seed and the command to run it again.
    let first = RandomState::new().hash_one(0) >> 16;
    assert_clean(&run(first..first + FRESH_SEEDS));
}

/// Batches are the plain handlers to all rules: of deadlines, cancellation, ends of sessions, memory, nested calls and repeated
/// requests.
#[test]
fn seeds__with_batched_handlers_keep_all_rules() {
    let mut options = Options::default();
    options.has_batches = true;
    let mut largest = 0;
    for seed in 0..FIXED_SEEDS / 2 {
        match run_seed(seed, &options) {
            Ok(report) => largest = largest.max(report.largest_batch),
            Err(failure) => panic!("with batched handlers: {failure}"),
        }
    }
    assert!(largest > 4, "at most {largest} requests came together");
}

/// Returns the seeds of a list, with the defects that they found.
fn seeds_of(list: &str) -> Vec<(u64, &str)> {
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (seed, why) = line.split_once(' ').expect("a seed, a space and what it found");
            (seed.parse().expect("a number"), why)
        })
        .collect()
}

#[test]
fn seeds__that_found_something_stay_clean() {
    assert_eq!(seeds_of("# a comment\n\n17 what it found\n"), [(17, "what it found")]);
    // Some defects were found in worlds without some features, which are not the worlds of these seeds with
    // all features.
    for options in [with_everything(), Options::default()] {
        for (seed, why) in seeds_of(REGRESSIONS) {
            if let Err(failure) = run_seed(seed, &options) {
                panic!("{why}: {failure}");
            }
        }
    }
}

/// The server of this seed had no memory for the answer to a large WRITE, and called the finished WRITE refused.
#[test]
fn run_seed__with_an_answer_that_has_no_room_after_an_effect() {
    assert_clean(&run(8_899..8_900));
}

#[test]
fn run_seed__is_the_same_every_time_and_traces_change_nothing() {
    let digest = |seed| run_seed(seed, &Options::default()).unwrap().digest;
    let digests: Vec<u64> = (0..20).map(digest).collect();
    for (seed, &first) in (0..20).zip(&digests) {
        assert_eq!(digest(seed), first, "seed {seed}");
    }
    let mut distinct = digests.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), digests.len());
    let traced = run_seed_traced(3, &Options::default(), Trace::last(1)).unwrap();
    assert_eq!(traced.digest, digests[3]);
}

#[test]
fn run_seed_traced__shows_frames_in_words() {
    use std::{cell::RefCell, rc::Rc};
    let lines = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&lines);
    let trace = Trace::off().with_sink(move |line| sink.borrow_mut().push(line.to_owned()));
    run_seed_traced(1, &Options::default(), trace).unwrap();
    let lines = lines.borrow();
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(
        has("[REQUEST s") && has("[RESPONSE s") && has("[REQUEST_PART s"),
        "{:?}",
        lines.first()
    );
    assert!(has("PHASE Draining") && has("PHASE Closing"));
}
