//! Counters of the core: one for every kind of event and every reason to drop a frame.

/// Defines a struct of counters, its names with a prefix, and its sum. Counters after the semicolon are not among the names.
macro_rules! counters {
    (
        $(#[$about:meta])* $of:ident $prefix:literal;
        $($(#[$doc:meta])* $name:ident,)*
        $(; $($(#[$other_doc:meta])* $other:ident,)*)?
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $of { $($(#[$doc])* pub $name: u64,)* $($($(#[$other_doc])* pub $other: u64,)*)? }

        impl $of {
            /// Names and values, in order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((concat!($prefix, stringify!($name)), self.$name),)*].into_iter()
            }
        }

        /// Adds up the counters of several endpoints.
        impl core::ops::AddAssign for $of {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                $($(self.$other += other.$other;)*)?
            }
        }
    };
}

pub(crate) use counters;

counters! {
    /// Events since the endpoint's start. Plain numbers, used by one thread: cheap enough to be always
    /// on.
    Counters "";
    /// Calls taken from the application.
    calls_started,
    /// Calls that ended with status OK.
    calls_succeeded,
    /// Calls that ended with another status.
    calls_failed,
    /// Requests handed to the application, each once.
    requests_received,
    /// Answers taken from the application, errors included.
    responses_sent,
    /// Data packets sent again.
    packets_retransmitted,
    /// Data packets sent for the first time. Not next to `responses_sent`: the compiler would merge the two
    /// additions, at the cost of more instructions.
    packets_sent,
    /// CREDIT, PULL and CANCEL frames sent.
    control_frames_sent,
    /// Frames accepted.
    frames_accepted,
    /// Probes: searches for loss before a slot's timeout.
    probes,
    /// Expiries of slots' retransmission timers.
    timeouts,
    /// Calls ended after too many unanswered timeouts.
    calls_timed_out,
    /// Calls ended by their deadline or the default timeout.
    calls_deadline_exceeded,
    /// Calls that the application cancelled.
    calls_cancelled,
    /// CANCEL frames sent, for calls given up after some packet was sent.
    cancels_sent,
    /// CANCEL frames accepted for arriving, running, or future requests.
    cancels_received,
    /// CANCEL frames accepted for requests already answered.
    cancels_too_late,
    /// Requests refused because their deadline passed before their arrival was complete.
    requests_expired,
    /// Packets sent by multicast, each to all members of a group.
    multicast_sent,
    /// ANNOUNCE messages: requests announced to a member, with packets sent by multicast.
    multicast_announced,
    /// Announced requests with all packets sent again: multicast delivered nothing in time.
    multicast_missed,
    /// Packets received by multicast and accepted into a request.
    multicast_adopted,
    /// Packets received by multicast before their announcement, and kept for a while.
    multicast_held,
    /// Packets received by multicast and dropped: not a member of the group, too old, or too many kept.
    multicast_dropped,
    /// Calls that found no free slot and went into the session's queue.
    calls_queued,
    /// Times that a slot with packets to send had to wait for a credit, or behind waiting slots.
    credit_waits,
    /// Requests that wait without a credit after a CREDIT with flag W.
    calls_parked,
    /// Complete requests held back, because an earlier call of their session had not run (§14.6).
    requests_held_for_order,
    /// Requests that came after their client had abandoned them, by their place in the order. They never run.
    requests_overtaken,
    /// Packets found lost by evidence of later packets, without a timeout.
    losses_detected,
    /// Packets of requests repeated by a paced session.
    repeats_paced,
    /// Calls that ended while packets of their request were queued for repetition, after a false alarm or the
    /// loss of the peer. These packets are not sent.
    ended_before_repeat,
    /// Calls that failed while held back by the session's pace. Their packets are not sent.
    failed_while_paced,
    /// Frames dropped: too short, of an unknown version or kind, or against the rules.
    dropped_malformed,
    /// Frames dropped: no open session with this index and token.
    dropped_unknown_session,
    /// Frames dropped: not from the session's peer.
    dropped_wrong_peer,
    /// Frames dropped: a client's kind sent to a client, or a server's to a server.
    dropped_wrong_direction,
    /// Packets dropped out of order, since recovery is go-back-N.
    dropped_out_of_order,
    /// Frames dropped: about a request that has ended.
    dropped_stale,
    /// Frames dropped: about a request that cannot exist yet.
    dropped_future,
    /// Packets dropped because they were duplicates.
    dropped_duplicate,
    /// Packets dropped because they were not allowed yet: beyond the window or the limit.
    dropped_beyond_window,
    /// Requests refused for lack of memory.
    refused_no_memory,
    /// Requests refused because their session or peer holds its share of the message memory.
    refused_over_share,
    /// Half-arrived requests given up after ten seconds without a packet.
    requests_dropped_idle,
    /// Half-arrived requests given up because memory was short and their packets came too slowly.
    requests_dropped_short,
    /// Large answers freed because the client has received them, or cancelled the call.
    answers_released,
    /// Large answers given up after ten seconds without a request for them.
    answers_dropped_idle,
    /// Large answers given up because memory was short and the client had not asked for a while.
    answers_dropped_short,
    /// Requests from clients for answers already given up.
    answers_missed,
    /// Large answers replaced by an error, because their session or peer holds its share of the message
    /// memory.
    answers_over_share,
    /// Large responses whose reception the client confirmed.
    answers_acknowledged,
    /// Requests refused because they exceed the agreed size.
    refused_too_large,
    /// Answers of handlers after the client gave up or the session ended.
    answers_discarded,
    /// Sessions opened, in both roles.
    sessions_opened,
    /// Sessions ended, in both roles.
    sessions_closed,
}
