//! The counters of congestion control.

/// Events of congestion control in an endpoint's sessions. Plain numbers, used by one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CongestionCounters {
    /// Acknowledgements that changed nothing in an uncongested session. Small calls do not count theirs, to
    /// save the cost.
    pub acks_bypassed: u64,
    /// Acknowledgements processed by a controller.
    pub updates: u64,
    /// Acknowledgements with an ECN echo.
    pub marks: u64,
    /// Packets lost.
    pub losses: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Times that a session became congested: paced, or with a window below its credits.
    pub sessions_limited: u64,
    /// Times that a congested session became uncongested.
    pub sessions_released: u64,
}

impl CongestionCounters {
    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("congestion_updates", self.updates),
            ("congestion_marks", self.marks),
            ("congestion_losses", self.losses),
            ("congestion_timeouts", self.timeouts),
            ("congestion_sessions_limited", self.sessions_limited),
            ("congestion_sessions_released", self.sessions_released),
        ]
        .into_iter()
    }
}

/// Adds up the counters of several endpoints.
impl core::ops::AddAssign for CongestionCounters {
    fn add_assign(&mut self, other: Self) {
        self.acks_bypassed += other.acks_bypassed;
        self.updates += other.updates;
        self.marks += other.marks;
        self.losses += other.losses;
        self.timeouts += other.timeouts;
        self.sessions_limited += other.sessions_limited;
        self.sessions_released += other.sessions_released;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A different number for every counter, to detect mix-ups.
    fn counted(times: u64) -> CongestionCounters {
        CongestionCounters {
            acks_bypassed: times,
            updates: 2 * times,
            marks: 3 * times,
            losses: 4 * times,
            timeouts: 5 * times,
            sessions_limited: 6 * times,
            sessions_released: 7 * times,
        }
    }

    #[test]
    fn add_assign__adds_each_to_its_own() {
        let mut sum = counted(1);
        sum += counted(10);
        assert_eq!(sum, counted(11));
    }

    #[test]
    fn iter__gives_each_by_its_name() {
        let all: Vec<_> = counted(1).iter().collect();
        let expected = [
            ("congestion_updates", 2),
            ("congestion_marks", 3),
            ("congestion_losses", 4),
            ("congestion_timeouts", 5),
            ("congestion_sessions_limited", 6),
            ("congestion_sessions_released", 7),
        ];
        assert_eq!(all, expected);
    }
}
