//! The results of a run.

use petrel::nexus::NexusStats;

use super::actor::MessageCounts;

/// The results of a seed that kept all rules.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Runs of equal events have equal digests; other runs almost certainly differ.
    pub digest: u64,
    /// Elapsed virtual time, in nanoseconds.
    pub virtual_ns: u64,
    /// Turns of nexuses.
    pub turns: u64,
    /// Turns that began late.
    pub late_turns: u64,
    /// Killed processes, and hosts that lost power.
    pub crashes: u64,
    /// Separated pairs of hosts.
    pub cuts: u64,
    /// Connections of foreign peers.
    pub foreign_connections: u64,
    /// Statistics clients that got an answer.
    pub stats_clients_answered: u64,
    pub(super) counts: MessageCounts,
    pub(super) stats: NexusStats,
}

impl Report {
    /// Returns names and values of the main counters, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let (counts, stats) = (&self.counts, &self.stats);
        [
            ("nexus_turns", self.turns),
            ("nexus_turns_late", self.late_turns),
            ("nexus_crashes", self.crashes),
            ("nexus_cuts", self.cuts),
            ("nexus_foreign_connections", self.foreign_connections),
            ("nexus_stats_clients_answered", self.stats_clients_answered),
            ("nexus_links_up", counts.links_up),
            ("nexus_links_shm", counts.links_shm),
            ("nexus_links_failed", counts.links_failed),
            ("nexus_links_down", counts.links_down),
            ("nexus_links_early", stats.links_early),
            ("nexus_links_refused", stats.links_refused),
            ("nexus_sessions_opened", counts.sessions_opened),
            ("nexus_sessions_refused", counts.sessions_refused),
            ("nexus_sessions_closed", counts.sessions_closed),
            ("nexus_sessions_drained", counts.sessions_drained),
            ("nexus_sessions_unanswered", stats.sessions_unanswered),
            ("nexus_groups_answered", counts.groups_answered),
            ("nexus_stats_answered", stats.stats_answered),
            ("nexus_stats_refused", stats.stats_refused),
            ("nexus_dials", stats.connections_dialed),
            ("nexus_dials_failed", stats.dials_failed),
            ("nexus_redials", stats.connections_redialed),
            ("nexus_accepted", stats.connections_accepted),
            ("nexus_accept_errors", stats.accept_errors),
            ("nexus_broken", stats.connections_broken),
            ("nexus_idle_closed", stats.connections_idle),
            ("nexus_goodbyes", stats.goodbyes_received),
            ("nexus_peers_restarted", stats.peers_restarted),
            ("nexus_silent", stats.dropped_silent),
            ("nexus_hello_timeouts", stats.dropped_hello_timeout),
            ("nexus_slow_messages", stats.dropped_slow_message),
            ("nexus_not_reading", stats.dropped_not_reading),
            ("nexus_foreign_refused", stats.refused_strangers),
            ("nexus_malformed", stats.refused_malformed),
            ("nexus_dropped_ungreeted", stats.dropped_ungreeted_full),
            ("nexus_dropped_idle", stats.dropped_idle_full),
            ("nexus_dropped_full", stats.dropped_connections_full),
            ("nexus_shm_fallbacks", stats.shm_fallbacks),
            ("nexus_rendezvous_dropped", stats.rendezvous_dropped),
            ("nexus_late_messages", stats.late_messages),
            ("nexus_virtual_ms", self.virtual_ns / 1_000_000),
        ]
        .into_iter()
    }
}

impl MessageCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.links_up += other.links_up;
        self.links_shm += other.links_shm;
        self.links_failed += other.links_failed;
        self.links_down += other.links_down;
        self.sessions_opened += other.sessions_opened;
        self.sessions_refused += other.sessions_refused;
        self.sessions_closed += other.sessions_closed;
        self.sessions_drained += other.sessions_drained;
        self.groups_answered += other.groups_answered;
        self.stats_asked += other.stats_asked;
        self.paths_measured += other.paths_measured;
    }
}
