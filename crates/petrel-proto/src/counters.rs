//! Counters of the core: one for each thing that happens and each reason to drop a frame.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened since the endpoint started. Plain numbers of one thread: cheap enough to
        /// leave on.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Names and values, in order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        /// Adds up the counters of several endpoints.
        impl core::ops::AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
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
    /// Data packets sent for the first time. Not beside `responses_sent`: the compiler would add to
    /// both at once, in more instructions.
    packets_sent,
    /// CREDIT, PULL and CANCEL frames sent.
    control_frames_sent,
    /// Frames received and taken.
    frames_accepted,
    /// Times that a slot looked for what was lost before its timeout.
    probes,
    /// Times that a slot's retransmission timer fired.
    timeouts,
    /// Calls given up because nothing was heard.
    calls_timed_out,
    /// Calls that ended because their deadline, or the default timeout, was over.
    calls_deadline_exceeded,
    /// Calls that the application cancelled.
    calls_cancelled,
    /// CANCEL frames sent: calls that were given up after something of them was sent.
    cancels_sent,
    /// CANCEL frames taken of requests that were arriving, running, or not there yet.
    cancels_received,
    /// CANCEL frames taken of requests that were answered already.
    cancels_too_late,
    /// Requests refused because their deadline was over when they had arrived.
    requests_expired,
    /// Packets sent by multicast, each to all members of a group.
    multicast_sent,
    /// Requests announced to a member whose packets go by multicast.
    multicast_announced,
    /// Requests announced of which no packet had come to the member by multicast when they were sent again.
    multicast_missed,
    /// Packets that came by multicast and were taken into a request.
    multicast_adopted,
    /// Packets that came by multicast before their request was announced, and were kept for a while.
    multicast_held,
    /// Packets that came by multicast and were dropped: for a group that this is no member of, too old, or
    /// because too many were kept.
    multicast_dropped,
    /// Calls that found no free slot and went into the session's queue.
    calls_queued,
    /// Times that a slot with something to send had to wait for a credit, or behind slots that do.
    credit_waits,
    /// Requests that the server said to be running, and that wait without a credit since.
    calls_parked,
    /// Packets found lost by later ones, without a timeout.
    losses_detected,
    /// Packets of requests sent again by a session that paces what it sends.
    repeats_paced,
    /// Calls that ended while packets of their request stood in the queue to be sent again: the loss
    /// was a false alarm, or the peer is gone. Nothing of them is sent any more.
    ended_before_repeat,
    /// Calls that failed while the session's pace held them back. Nothing of them is sent any more.
    failed_while_paced,
    /// Frames dropped: too short, of an unknown version or kind, or against the rules.
    dropped_malformed,
    /// Frames dropped: no open session has this index and token.
    dropped_unknown_session,
    /// Frames dropped: not from the session's peer.
    dropped_wrong_peer,
    /// Frames dropped: a client's kind sent to a client, or a server's to a server.
    dropped_wrong_direction,
    /// Packets dropped: not the next one, and recovery is go-back-N.
    dropped_out_of_order,
    /// Frames dropped: about a request that is over.
    dropped_stale,
    /// Frames dropped: about a request that cannot have been made yet.
    dropped_future,
    /// Packets dropped because they were received before.
    dropped_duplicate,
    /// Packets dropped because they were not allowed yet: beyond the window or the limit.
    dropped_beyond_window,
    /// Requests refused because no memory was left for them.
    refused_no_memory,
    /// Requests refused because their session, or peer, holds its share of the memory for messages.
    refused_over_share,
    /// Half-arrived requests given up because nothing of them came for ten seconds.
    requests_dropped_idle,
    /// Half-arrived requests given up because memory was short, and they came too slowly.
    requests_dropped_short,
    /// Large answers given back because the client said that it has them, or wants them no more.
    answers_released,
    /// Large answers given up because they were not asked for in ten seconds.
    answers_dropped_idle,
    /// Large answers given up because memory was short, and they were not asked for in a while.
    answers_dropped_short,
    /// Answers that were asked for after they had been given up.
    answers_missed,
    /// Large answers replaced by an error, because their session or peer holds its share of the memory.
    answers_over_share,
    /// Large responses of which the server was told that they are here.
    answers_acknowledged,
    /// Requests refused because they exceed the agreed size.
    refused_too_large,
    /// Answers of handlers that came after the client gave up or the session ended.
    answers_discarded,
    /// Sessions opened, in both roles.
    sessions_opened,
    /// Sessions ended, in both roles.
    sessions_closed,
}
