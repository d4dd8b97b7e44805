//! All planted defects.

/// A planted defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defect {
    /// The name: the defective part, and the failure.
    pub name: &'static str,
    /// The failure, in one sentence.
    pub says: &'static str,
}

const fn defect(name: &'static str, says: &'static str) -> Defect {
    Defect { name, says }
}

/// All defects, in the order of their names. `petrel-probe` knows the tests for all defects, and
/// compares the table with the names in the sources.
pub const DEFECTS: &[Defect] = &[
    defect("batch_runs_cancelled", "a batched handler gets a request that was cancelled before"),
    defect("batch_runs_expired", "a batched handler gets a request whose deadline has passed"),
    defect(
        "cache_ended_item_evicted_by_index",
        "an item whose time was over counts as evicted by the index",
    ),
    defect("cache_ended_item_is_evicted", "an item whose time is over counts as evicted"),
    defect("cache_flushes_again", "a flush that was due removes later items, too"),
    defect("cache_refused_item_counts", "an item that the index refuses is counted as stored"),
    defect("cache_scrubs_one_lap", "the index is scrubbed once, and its last bucket from then on"),
    defect(
        "cache_second_sweep_has_no_budget",
        "the budget of a sweep is not renewed in the next second",
    ),
    defect(
        "cache_set_again_stays_old",
        "an item that is set again shortly before its eviction is evicted",
    ),
    defect(
        "client_call_outlives_endpoint",
        "a call that is under way when its endpoint is dropped never ends",
    ),
    defect(
        "client_free_place_unseen",
        "a place that comes free while a caller enters the queue for places goes to nobody",
    ),
    defect(
        "client_handed_place_lost",
        "a place that was handed to a caller which has left the queue is lost",
    ),
    defect(
        "client_waiters_not_told",
        "callers that wait for a place are not woken when the endpoint is dropped",
    ),
    defect(
        "endpoint_cancel_is_not_told",
        "a handler that asked for it is not told that its caller has gone",
    ),
    defect("endpoint_drain_does_not_wait", "a drained session is closed with calls under way"),
    defect(
        "endpoint_failure_is_not_awaited",
        "a call that fails returns its request while the device reads the request",
    ),
    defect("endpoint_lone_answer_waits", "the answer to a lone request is not flushed in its turn"),
    defect(
        "ether_length_not_checked",
        "a datagram whose length contradicts its packet's is accepted with the packet's",
    ),
    defect(
        "ether_partial_sum_refused",
        "datagrams whose checksum was left to a device that they have not met are refused",
    ),
    defect(
        "ether_stale_neighbour_kept",
        "frames go on to the former address of a neighbour that has a new one",
    ),
    defect(
        "inbox_looks_before_its_lock",
        "a sender looks whether the endpoint sleeps before it locks the inbox",
    ),
    defect("index_overflow_line_lost", "an overflow line that becomes empty is never used again"),
    defect("index_page_repeats_a_key", "a page of a scan repeats the last key of the page before"),
    defect("index_refused_bytes_count", "the bytes of a refused pair stay taken"),
    defect("index_refused_key_counts", "a key that a full table refuses is counted"),
    defect(
        "index_smaller_values_keep_bytes",
        "a value that is replaced by a smaller one gives no bytes back",
    ),
    defect("kv_answer_before_commit", "a write is applied and answered before a majority has it"),
    defect("kv_applies_twice", "the number of a write is not looked at"),
    defect("kv_client_is_sure", "a write without an answer is taken for a write that was not done"),
    defect("kv_keeps_name", "a replica without its log comes back under its former name"),
    defect("kv_lease_by_cached_clock", "a lease is compared with the time at which the turn began"),
    defect(
        "kv_lease_without_quorum",
        "a leader relies for ever on followers that have heard it once",
    ),
    defect("kv_read_one_early", "a read is answered one index before the one that was confirmed"),
    defect("kv_read_without_asking", "a leader answers reads without asking a majority who leads"),
    defect("kv_repeats_behind_two", "a repeated write behind two pending ones is applied again"),
    defect("kv_speak_before_sync", "a follower answers, and votes, before its disk has synced"),
    defect(
        "mailbox_first_wakes_nobody",
        "the nexus is woken for the second command in its mailbox, and not for the first",
    ),
    defect(
        "mailbox_wakes_before_it_counts",
        "an endpoint is woken for a message of the nexus that it cannot see yet",
    ),
    defect(
        "multicast_grant_is_free",
        "what a request by multicast grants of its answer takes no credits",
    ),
    defect(
        "multicast_listens_for_ever",
        "a member that leaves a group goes on listening to its address",
    ),
    defect(
        "multicast_messages_are_mixed",
        "packets of a group are taken for the message that was announced last",
    ),
    defect(
        "nexus_accepts_no_more",
        "connections that wait while descriptors are short are never accepted",
    ),
    defect(
        "nexus_closes_for_ever",
        "a connection whose peer does not close its end is kept for ever",
    ),
    defect(
        "nexus_drained_way_stays",
        "clients of a server that drains ask it again for a session, though another process listens at its address",
    ),
    defect("nexus_drains_are_not_told", "a client is not told that its server drains"),
    defect(
        "nexus_early_links_stay",
        "links that wait for an endpoint are kept when their connection has ended",
    ),
    defect(
        "nexus_late_requests_not_answered",
        "links that are asked for too late to try again are never answered",
    ),
    defect(
        "nexus_link_of_a_closing_connection",
        "an endpoint that comes after GOODBYE gets the link that waited for it",
    ),
    defect(
        "nexus_next_endpoint_is_answered",
        "the next endpoint with a number hears answers to the one that has gone",
    ),
    defect(
        "nexus_no_doubt",
        "a nexus does not ask a server whose calls are silent for a sign of life",
    ),
    defect("nexus_no_last_look", "a peer is called dead without a last look at its socket"),
    defect(
        "nexus_no_ping_beside_other_messages",
        "a PING is left out while something else waits to be sent",
    ),
    defect("nexus_nobody_yields", "a full server turns newcomers away for connections without use"),
    defect(
        "nexus_orphans_are_not_told",
        "a server keeps the session whose client was told that it did not answer",
    ),
    defect(
        "nexus_proposals_keep_their_share",
        "proposals that end with their link are never given back to the address",
    ),
    defect(
        "nexus_requestless_stay",
        "a full server turns newcomers away for connections without a request",
    ),
    defect(
        "nexus_rest_is_not_read",
        "bytes that are left after some reads wait for the peer's next ones",
    ),
    defect("nexus_sending_is_hearing", "a peer counts as heard of when something is sent to it"),
    defect(
        "nexus_server_keeps_a_late_session",
        "a server is not told that its client has given a session up",
    ),
    defect("nexus_tickets_stay", "the ticket of a link that ends before it is up is kept"),
    defect(
        "nexus_waiting_not_answered",
        "links that wait for a connection are never answered when it fails",
    ),
    defect("proto_arrival_is_poll", "deadlines count from the poll of a frame that has waited"),
    defect("proto_closed_path_stays_closed", "no packet looks at a path that was closed"),
    defect(
        "proto_dcqcn_alpha_stays",
        "a second congestion begins with the share of marks that the first has left",
    ),
    defect(
        "proto_dcqcn_second_mark_unheard",
        "a mark soon after a reduction does not restart the increases",
    ),
    defect(
        "proto_held_slot_stays",
        "a slot counts as held back by pacing after its call has ended",
    ),
    defect("proto_karn", "a packet that is sent again stays timed from its first copy on"),
    defect(
        "proto_largest_message_refused",
        "a session with the largest messages that the protocol has is refused",
    ),
    defect("proto_late_is_never", "MP-RDMA never takes an answer for late"),
    defect("proto_loss_clocks", "a lost packet clocks a packet out on its path"),
    defect(
        "proto_marks_of_another_request",
        "a CREDIT also names the marked packets of the request before",
    ),
    defect("proto_no_backoff", "a timeout that follows another comes as soon as the first"),
    defect(
        "proto_order_ended_runs",
        "an abandoned ordered call that waits at the server runs behind a later one",
    ),
    defect(
        "proto_order_given_up_untold",
        "ordered calls wait for ever at the server for one that was given up",
    ),
    defect(
        "proto_order_notes_one",
        "only the first of the requests that waited for their order runs",
    ),
    defect(
        "proto_order_ran_stays",
        "a request counts as run because its place in the window was used before",
    ),
    defect(
        "proto_order_second_abandoned",
        "a call that is abandoned after another is not told to the server",
    ),
    defect(
        "proto_order_tells_again",
        "a server is told again and again of calls that were abandoned once",
    ),
    defect("proto_ordered_call_runs_early", "an ordered call runs when it is complete"),
    defect(
        "proto_path_index_off_by_one",
        "a server's frame leaves from the port after that of its client's frame",
    ),
    defect(
        "proto_ports_need_no_proof",
        "a server of several paths answers to a port that has sent nothing",
    ),
    defect(
        "proto_releases_stand_still",
        "the clock of paced sessions stands still while some wait",
    ),
    defect(
        "proto_repeat_is_not_awaited",
        "the burst of a repetition ends before the device reads it",
    ),
    defect("proto_repetition_on_lost_path", "MP-RDMA repeats a packet on the path that lost it"),
    defect(
        "proto_second_question_measured",
        "a question that follows another is measured, though the first may be answered",
    ),
    defect(
        "proto_silence_is_not_told",
        "a call that is silent raises no doubt of the server's life",
    ),
    defect("proto_swift_round_without_end", "Swift never becomes sure that a session is congested"),
    defect(
        "proto_timely_gradient_stays",
        "a second congestion begins with the gradient of the first",
    ),
    defect(
        "proto_timer_due_at_once",
        "the next timer is said to be due at once, so that nothing ever sleeps",
    ),
    defect("region_copier_runs_once", "large reads after the first ones are never copied"),
    defect(
        "region_refused_write_without_effect",
        "a write that is refused after some of its packets counts as not executed",
    ),
    defect(
        "region_second_copy_goes_on",
        "the second copy of a value that was written meanwhile begins where the first ended",
    ),
    defect(
        "region_second_view_not_told",
        "a revoked region stays in the views of all endpoints but one",
    ),
    defect(
        "seal_first_epoch_never_ends",
        "datagrams of a link's first epoch are opened for ever, and those of the epoch before the current one no more",
    ),
    defect(
        "seal_number_accepted_again",
        "a sealed datagram is accepted as often as it comes within the replay window",
    ),
    defect(
        "service_budget_never_filled",
        "calls that succeed put nothing into a client's retry budget",
    ),
    defect(
        "service_called_place_lost",
        "an attempt that ends lets none of the calls go that wait for leave",
    ),
    defect(
        "service_every_failure_is_overload",
        "each failure of a call lowers a client's limit of calls",
    ),
    defect(
        "service_gap_is_a_failure",
        "a call that is made between two sessions to the only server fails",
    ),
    defect(
        "service_hedges_are_not_tries",
        "the retry of a hedged call goes to a server that has been tried",
    ),
    defect(
        "service_redirects_never_forgotten",
        "after a pause, each redirect is followed by another pause",
    ),
    defect(
        "service_refusal_forgets_execution",
        "a refused attempt hides that an earlier one may have been executed",
    ),
    defect(
        "service_retries_where_it_failed",
        "a retry goes to the server that has just failed, if that is the least busy",
    ),
    defect(
        "service_second_leader_unheard",
        "the next leader's name is not believed after a leader was lost",
    ),
    defect(
        "service_second_timeout_as_first",
        "the time of an attempt is doubled after the first timeout only",
    ),
    defect(
        "service_slow_for_ever",
        "a client that has backed off far reconnects slowly ever after",
    ),
    defect(
        "service_unknown_end_did_not_run",
        "a cancelled attempt whose end is unknown counts as not executed",
    ),
    defect(
        "service_unsent_is_an_attempt",
        "calls that never left when their server died are not made elsewhere when the budget is empty",
    ),
    defect(
        "shm_answers_not_published",
        "answers that handlers write into the ring beside a request's are not published",
    ),
    defect(
        "shm_bad_header_is_waited_for",
        "the header of an impossible record counts as a record that is still to come",
    ),
    defect("shm_bursts_not_counted", "datagrams that came in over shared memory are not counted"),
    defect("shm_no_last_look", "an endpoint sleeps without a last look at its rings"),
    defect("shm_old_record_stays", "the place behind a record is said to be cleared, and is not"),
    defect(
        "shm_refused_wake_is_lost",
        "a sleep counts as ended though the system refused the wake-up",
    ),
    defect("shm_ring_without_a_gap", "a full ring has no free line left"),
    defect(
        "shm_skip_is_not_counted",
        "a record that goes to the start of the ring takes no account of what it skips",
    ),
    defect("shm_wakes_again_and_again", "each burst wakes a consumer that was woken before"),
    defect("stream_batch_runs_early", "a batch is handled before the batches with lower numbers"),
    defect(
        "stream_credit_not_renewed",
        "a reader that has taken half of the window grants nothing",
    ),
    defect("stream_outlives_session", "streams go on when the session of the peer's batches ends"),
    defect(
        "udp_kept_frames_not_copied",
        "frames for which the kernel has no room are sent later from where they were",
    ),
    defect(
        "udp_plain_on_sealed_link",
        "plain datagrams from the address of a sealed link are taken for the link's",
    ),
    defect(
        "udp_sealed_from_any_address",
        "a sealed datagram is accepted from any address that knows its path",
    ),
    defect(
        "udp_short_last_segment_lost",
        "the last datagram of a train is lost if it is shorter than the others",
    ),
    defect("udp_short_segment_in_the_middle", "a datagram follows a shorter one in a train"),
    defect(
        "workers_deadline_not_inherited",
        "calls of a worker's handler do not inherit its request's deadline",
    ),
    defect(
        "workers_failed_look_executed",
        "requests that wait when their pool is dropped are answered with INTERNAL",
    ),
    defect(
        "workers_late_bytes_stay",
        "the bytes of a request that came too late are never given back",
    ),
    defect(
        "workers_never_sleep_again",
        "a worker that has had a request looks for others for ever",
    ),
    defect("workers_stop_tells_one", "only one worker is woken when its pool stops"),
    defect(
        "workers_wake_for_the_first_only",
        "a worker is woken only for the first request in the queue",
    ),
    defect("workers_woken_counts_as_asleep", "a worker that has woken counts as asleep"),
    defect("xdp_chunk_given_back_twice", "the memory of a sent frame is free twice"),
    defect(
        "xdp_completion_counted_twice",
        "a frame that is completed twice frees its memory twice",
    ),
    defect(
        "xdp_fill_ring_not_refilled",
        "memory of received frames never reaches the kernel again",
    ),
];
