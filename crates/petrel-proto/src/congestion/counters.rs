//! The counters of congestion control.

use crate::counters::counters;

counters! {
    /// Events of congestion control in an endpoint's sessions. Plain numbers, used by one thread.
    CongestionCounters "congestion_";
    /// Acknowledgements processed by a controller.
    updates,
    /// Acknowledgements with an ECN echo.
    marks,
    /// Packets lost.
    losses,
    /// Retransmission timeouts.
    timeouts,
    /// Times that a session became congested: paced, or with a window below its credits.
    sessions_limited,
    /// Times that a congested session became uncongested.
    sessions_released,
    ;
    /// Acknowledgements that changed nothing in an uncongested session. Small calls do not count theirs, to
    /// save the cost.
    acks_bypassed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters__have_a_prefix_and_a_sum() {
        let mut sum = CongestionCounters { marks: 1, acks_bypassed: 2, ..Default::default() };
        sum += CongestionCounters { marks: 10, acks_bypassed: 20, ..Default::default() };
        assert_eq!((sum.marks, sum.acks_bypassed, sum.updates), (11, 22, 0));
        let all: Vec<_> = sum.iter().collect();
        assert_eq!(all[..2], [("congestion_updates", 0), ("congestion_marks", 11)]);
        assert_eq!(all.len(), 6);
    }
}
