//! The tests for the planted defects.

use std::fmt;

/// Packages whose tests take part.
pub(super) const PACKAGES: [&str; 8] = [
    "petrel-proto",
    "petrel-transport",
    "petrel-rpc",
    "petrel-sim",
    "petrel-cache",
    "petrel-index",
    "petrel-kv",
    "petrel-kv-check",
];

/// A program that may find a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Unit tests of the package in this directory whose names contain the text.
    Unit(&'static str, &'static str),
    /// Tests of the program `tests/all` whose names contain the text.
    Test(&'static str, &'static str),
    /// This number of seeds of the library's simulator.
    Seeds(u64),
    /// This number of seeds of the replicated store's simulator.
    StoreSeeds(u64),
    /// Seeds of threads under a model checker: as many as one run has.
    Threads,
}

use Step::{Seeds, StoreSeeds, Test, Threads, Unit};

/// Returns the steps that search for a defect, the cheapest first.
pub(super) fn steps_of(defect: &str) -> &'static [Step] {
    match DETECTORS.iter().find(|(name, _)| *name == defect) {
        Some((_, steps)) => steps,
        None => &[],
    }
}

/// The defects in the order of their names, with their steps.
const DETECTORS: &[(&str, &[Step])] = &[
    ("batch_runs_cancelled", &[Test("petrel", "batch::")]),
    ("batch_runs_expired", &[Test("petrel", "batch::")]),
    ("cache_ended_item_evicted_by_index", &[Test("cache", "rounds::"), Test("cache", "model::")]),
    ("cache_ended_item_is_evicted", &[Test("cache", "rounds::"), Test("cache", "model::")]),
    ("cache_flushes_again", &[Unit("cache", "partition::"), Test("cache", "model::")]),
    ("cache_refused_item_counts", &[Unit("cache", "partition::")]),
    ("cache_scrubs_one_lap", &[Unit("cache", "index::")]),
    ("cache_second_sweep_has_no_budget", &[Test("cache", "model::")]),
    ("cache_set_again_stays_old", &[Test("cache", "rounds::"), Test("cache", "model::")]),
    ("client_call_outlives_endpoint", &[Threads]),
    ("client_free_place_unseen", &[Threads]),
    ("client_handed_place_lost", &[Threads]),
    ("client_waiters_not_told", &[Threads]),
    ("endpoint_cancel_is_not_told", &[Test("petrel", "service::"), Seeds(100)]),
    ("endpoint_drain_does_not_wait", &[Seeds(100), Test("petrel", "drain::")]),
    ("endpoint_failure_is_not_awaited", &[Seeds(300)]),
    ("endpoint_lone_answer_waits", &[Test("petrel", "run_once__")]),
    ("ether_length_not_checked", &[Unit("petrel-transport", "device::")]),
    ("ether_partial_sum_refused", &[Unit("petrel-transport", "device::")]),
    ("ether_stale_neighbour_kept", &[Unit("petrel-transport", "device::")]),
    ("inbox_looks_before_its_lock", &[Threads]),
    ("index_overflow_line_lost", &[Unit("index", "points::")]),
    ("index_page_repeats_a_key", &[Test("index", "service::")]),
    ("index_refused_bytes_count", &[Test("index", "model::")]),
    ("index_refused_key_counts", &[Test("index", "model::")]),
    ("index_smaller_values_keep_bytes", &[Test("index", "model::")]),
    ("kv_answer_before_commit", &[StoreSeeds(100)]),
    ("kv_applies_twice", &[Unit("kv", "store::"), StoreSeeds(20)]),
    ("kv_client_is_sure", &[StoreSeeds(100)]),
    ("kv_keeps_name", &[StoreSeeds(100)]),
    ("kv_lease_by_cached_clock", &[Unit("kv", "replica::member"), StoreSeeds(600)]),
    ("kv_lease_without_quorum", &[StoreSeeds(600)]),
    ("kv_read_one_early", &[Unit("kv", "replica::reads"), StoreSeeds(600)]),
    ("kv_read_without_asking", &[StoreSeeds(100)]),
    ("kv_repeats_behind_two", &[Unit("kv", "store::"), StoreSeeds(100)]),
    ("kv_speak_before_sync", &[StoreSeeds(100)]),
    ("mailbox_first_wakes_nobody", &[Threads]),
    ("mailbox_wakes_before_it_counts", &[Threads]),
    ("multicast_grant_is_free", &[Unit("petrel-sim", "multicast_world::"), Seeds(300)]),
    ("multicast_listens_for_ever", &[Unit("petrel-sim", "multicast_world::"), Seeds(300)]),
    ("multicast_messages_are_mixed", &[Unit("petrel-sim", "multicast_world::"), Seeds(300)]),
    ("nexus_accepts_no_more", &[Test("petrel-sim", "nexus::")]),
    ("nexus_closes_for_ever", &[Test("petrel-sim", "nexus::")]),
    ("nexus_drained_way_stays", &[Test("petrel", "server::")]),
    ("nexus_drains_are_not_told", &[Test("petrel-sim", "nexus::")]),
    ("nexus_early_links_stay", &[Test("petrel-sim", "nexus::")]),
    ("nexus_late_requests_not_answered", &[Test("petrel-sim", "nexus::")]),
    (
        "nexus_link_of_a_closing_connection",
        &[Unit("petrel", "nexus::"), Test("petrel-sim", "nexus::")],
    ),
    (
        "nexus_next_endpoint_is_answered",
        &[Unit("petrel", "nexus::"), Test("petrel-sim", "nexus::")],
    ),
    ("nexus_no_doubt", &[Unit("petrel", "nexus::")]),
    ("nexus_no_last_look", &[Unit("petrel", "nexus::")]),
    ("nexus_no_ping_beside_other_messages", &[Unit("petrel", "nexus::")]),
    ("nexus_nobody_yields", &[Test("petrel-sim", "nexus::")]),
    ("nexus_orphans_are_not_told", &[Test("petrel-sim", "nexus::")]),
    ("nexus_proposals_keep_their_share", &[Test("petrel-sim", "nexus::")]),
    ("nexus_requestless_stay", &[Unit("petrel", "opening::")]),
    ("nexus_rest_is_not_read", &[Test("petrel-sim", "nexus::")]),
    ("nexus_sending_is_hearing", &[Test("petrel-sim", "nexus::")]),
    ("nexus_server_keeps_a_late_session", &[Test("petrel-sim", "nexus::")]),
    ("nexus_tickets_stay", &[Test("petrel-sim", "nexus::")]),
    ("nexus_waiting_not_answered", &[Test("petrel-sim", "nexus::")]),
    ("proto_arrival_is_poll", &[Test("petrel", "deadlines::")]),
    (
        "proto_closed_path_stays_closed",
        &[Unit("petrel-proto", "path::"), Unit("petrel-proto", "rpc::"), Seeds(300)],
    ),
    ("proto_dcqcn_alpha_stays", &[Unit("petrel-proto", "congestion::")]),
    ("proto_dcqcn_second_mark_unheard", &[Unit("petrel-proto", "congestion::")]),
    ("proto_held_slot_stays", &[Unit("petrel-proto", "rpc::"), Seeds(300)]),
    ("proto_karn", &[Unit("petrel-proto", "rpc::"), Seeds(300)]),
    (
        "proto_largest_message_refused",
        &[Unit("petrel-proto", "session::"), Unit("petrel-proto", "rpc::")],
    ),
    ("proto_late_is_never", &[Unit("petrel-proto", "mp_rdma_")]),
    ("proto_loss_clocks", &[Unit("petrel-proto", "mp_rdma_")]),
    ("proto_marks_of_another_request", &[Unit("petrel-proto", "session::"), Seeds(2_000)]),
    ("proto_no_backoff", &[Unit("petrel-proto", "rpc::"), Seeds(100)]),
    ("proto_order_ended_runs", &[Unit("petrel-proto", "tests::order")]),
    ("proto_order_given_up_untold", &[Unit("petrel-proto", "tests::order")]),
    ("proto_order_notes_one", &[Unit("petrel-proto", "server::order")]),
    ("proto_order_ran_stays", &[Unit("petrel-proto", "server::order")]),
    ("proto_order_second_abandoned", &[Unit("petrel-proto", "client::order")]),
    ("proto_order_tells_again", &[Unit("petrel-proto", "client::order")]),
    ("proto_ordered_call_runs_early", &[Unit("petrel-proto", "rpc::"), Seeds(300)]),
    ("proto_path_index_off_by_one", &[Unit("petrel-proto", "session::"), Seeds(300)]),
    ("proto_ports_need_no_proof", &[Unit("petrel-proto", "paths::")]),
    ("proto_releases_stand_still", &[Unit("petrel-proto", "timer::")]),
    ("proto_repeat_is_not_awaited", &[Seeds(300)]),
    ("proto_repetition_on_lost_path", &[Unit("petrel-proto", "mp_rdma_")]),
    ("proto_second_question_measured", &[Unit("petrel-proto", "run__repetitions")]),
    ("proto_silence_is_not_told", &[Unit("petrel-proto", "timers::")]),
    ("proto_swift_round_without_end", &[Unit("petrel-proto", "congestion::")]),
    ("proto_timely_gradient_stays", &[Unit("petrel-proto", "congestion::")]),
    ("proto_timer_due_at_once", &[Unit("petrel-proto", "timer::"), Seeds(300)]),
    ("region_copier_runs_once", &[Test("petrel", "region::")]),
    ("region_refused_write_without_effect", &[Unit("petrel", "region_memory::")]),
    ("region_second_copy_goes_on", &[Test("petrel", "region::")]),
    ("region_second_view_not_told", &[Unit("petrel", "region_memory::")]),
    ("seal_first_epoch_never_ends", &[Unit("petrel-transport", "seal::"), Seeds(300)]),
    ("seal_number_accepted_again", &[Unit("petrel-transport", "seal::"), Seeds(100)]),
    ("service_budget_never_filled", &[Test("petrel", "service::")]),
    ("service_called_place_lost", &[Test("petrel", "service::")]),
    ("service_every_failure_is_overload", &[Unit("petrel", "service::connection")]),
    ("service_gap_is_a_failure", &[Test("petrel", "restarts::")]),
    ("service_hedges_are_not_tries", &[Test("petrel", "service::")]),
    ("service_redirects_never_forgotten", &[Unit("petrel", "service::retry")]),
    ("service_refusal_forgets_execution", &[Unit("petrel", "service::retry")]),
    ("service_retries_where_it_failed", &[Test("petrel", "service::")]),
    ("service_second_leader_unheard", &[Unit("petrel", "service::leader")]),
    ("service_second_timeout_as_first", &[Unit("petrel", "service::retry")]),
    ("service_slow_for_ever", &[Unit("petrel", "service::")]),
    ("service_unknown_end_did_not_run", &[Unit("petrel", "service::retry")]),
    ("service_unsent_is_an_attempt", &[Test("petrel", "restarts::")]),
    ("shm_answers_not_published", &[Seeds(100)]),
    ("shm_bad_header_is_waited_for", &[Unit("petrel-transport", "shm::"), Seeds(100)]),
    ("shm_bursts_not_counted", &[Test("petrel-transport", "shm")]),
    ("shm_no_last_look", &[Seeds(100)]),
    ("shm_old_record_stays", &[Seeds(100)]),
    ("shm_refused_wake_is_lost", &[Seeds(100)]),
    ("shm_ring_without_a_gap", &[Unit("petrel-transport", "shm::ring"), Seeds(100)]),
    ("shm_skip_is_not_counted", &[Seeds(100)]),
    ("shm_wakes_again_and_again", &[Seeds(100)]),
    ("stream_batch_runs_early", &[Unit("petrel", "stream::pair")]),
    ("stream_credit_not_renewed", &[Unit("petrel", "stream::pair")]),
    ("stream_outlives_session", &[Test("petrel-sim", "streams::")]),
    ("udp_kept_frames_not_copied", &[Unit("petrel-transport", "udp::plan")]),
    ("udp_plain_on_sealed_link", &[Unit("petrel-transport", "udp::"), Seeds(100)]),
    ("udp_sealed_from_any_address", &[Unit("petrel-transport", "udp::"), Seeds(100)]),
    ("udp_short_last_segment_lost", &[Unit("petrel-transport", "udp::"), Seeds(100)]),
    ("udp_short_segment_in_the_middle", &[Unit("petrel-transport", "udp::plan"), Seeds(100)]),
    ("workers_deadline_not_inherited", &[Test("petrel", "workers::")]),
    ("workers_failed_look_executed", &[Threads]),
    ("workers_late_bytes_stay", &[Threads, Test("petrel", "workers::")]),
    ("workers_never_sleep_again", &[Threads]),
    ("workers_stop_tells_one", &[Threads]),
    ("workers_wake_for_the_first_only", &[Threads, Test("petrel", "workers::")]),
    ("workers_woken_counts_as_asleep", &[Unit("petrel", "workers::")]),
    ("xdp_chunk_given_back_twice", &[Unit("petrel-transport", "device::xdp::queue")]),
    ("xdp_completion_counted_twice", &[Unit("petrel-transport", "device::xdp::queue")]),
    ("xdp_fill_ring_not_refilled", &[Unit("petrel-transport", "device::xdp::queue")]),
];

impl Step {
    /// Returns the package's directory, the program, and its arguments.
    pub(super) fn program(&self) -> (&'static str, &'static str, Vec<String>) {
        let seeds = |count: u64| vec!["0".to_owned(), count.to_string(), "first".to_owned()];
        match *self {
            Unit(package, filter) => (package, "lib", vec![filter.to_owned()]),
            Test(package, filter) => (package, "all", vec![filter.to_owned()]),
            Seeds(count) => ("petrel-sim", "worlds", seeds(count)),
            StoreSeeds(count) => ("kv-check", "seeds", seeds(count)),
            Threads => ("petrel", "threads", vec!["worlds__".to_owned()]),
        }
    }

    /// Returns true if a passed run has tested anything: a filter that matches no test passes as well.
    pub(super) fn has_run(&self, log: &str) -> bool {
        match self {
            Unit(..) | Test(..) | Threads => {
                !log.contains("running 0 tests") && log.contains("test result: ok")
            }
            Seeds(count) | StoreSeeds(count) => log.contains(&format!("0 of {count} seeds")),
        }
    }

    /// Returns the line that names the test or the seed that failed first.
    pub(super) fn first_sign(&self, log: &str) -> String {
        let sign = |line: &&str| match self {
            Threads => line.starts_with("again: "),
            Unit(..) | Test(..) => line.ends_with("... FAILED") || line.contains("panicked at"),
            Seeds(_) | StoreSeeds(_) => line.starts_with("seed "),
        };
        let line = log.lines().find(sign).unwrap_or("it ended by itself, without a word");
        line.chars().take(160).collect()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unit(package, filter) => write!(f, "unit tests of {package}: {filter}"),
            Test(package, filter) => write!(f, "tests of {package}: {filter}"),
            Seeds(count) => write!(f, "{count} seeds"),
            StoreSeeds(count) => write!(f, "{count} seeds of the store"),
            Threads => write!(f, "seeds of threads"),
        }
    }
}

#[cfg(test)]
mod tests {
    use petrel_planted::DEFECTS;

    use super::*;

    #[test]
    fn detectors__of_each_defect_in_the_table_and_of_no_other() {
        let probed_packet: Vec<&str> = DETECTORS.iter().map(|(name, _)| *name).collect();
        let planted: Vec<&str> = DEFECTS.iter().map(|defect| defect.name).collect();
        assert_eq!(probed_packet, planted);
        assert!(DETECTORS.iter().all(|(_, steps)| !steps.is_empty()));
    }

    #[test]
    fn has_run__not_where_no_test_has_the_name() {
        let step = Unit("kv", "store::");
        assert!(step.has_run("running 3 tests\ntest result: ok. 3 passed"));
        assert!(!step.has_run("running 0 tests\ntest result: ok. 0 passed"));
        assert!(Seeds(20).has_run("0 of 20 seeds broke a rule"));
        assert!(!Seeds(20).has_run("0 of 2 seeds broke a rule"));
    }

    #[test]
    fn first_sign__names_the_test_or_the_seed() {
        let log = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n";
        assert_eq!(Test("petrel", "channel").first_sign(log), "test b ... FAILED");
        assert_eq!(Seeds(5).first_sign("seed 3: a call\nreplay: it"), "seed 3: a call");
    }
}
