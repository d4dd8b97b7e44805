//! What congestion control counts.

/// What the congestion control of an endpoint's sessions has done. Plain numbers of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CongestionCounters {
    /// Acknowledgements that changed nothing in an uncongested session; those of small calls, which
    /// are to cost nothing, are not counted.
    pub acks_bypassed: u64,
    /// Acknowledgements that a controller heard.
    pub updates: u64,
    /// Acknowledgements that echoed a mark.
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
