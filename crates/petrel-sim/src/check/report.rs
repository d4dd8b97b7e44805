//! The results of a run.

use petrel_proto::counters::Counters;

use super::client_call;
use super::ledger::Counts;
use super::regions;
use super::watch::{ContentCounts, PathUse};
use crate::control::ControlStats;
use crate::fabric::{Attack, DropReason, FabricStats};
use crate::{multicast_world, nexus};

/// The results of a seed that kept all rules.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Runs of equal events have equal digests; other runs almost certainly differ.
    pub digest: u64,
    /// Elapsed virtual time, in nanoseconds.
    pub virtual_ns: u64,
    /// Calls made, including nested calls.
    pub calls: u64,
    /// Fault windows: crashes, partitions, pauses and further events that may make calls fail.
    pub fault_windows: u64,
    /// Counters of the protocol, summed over all endpoints.
    pub protocol: Counters,
    /// Counters of the network.
    pub fabric: FabricStats,
    /// Counters of the control planes.
    pub control: ControlStats,
    /// Frames checked against the specification.
    pub frames_checked: u64,
    /// The report of the seed's nexus world.
    pub nexus: nexus::Report,
    /// The report of the seed's multicast world, if present.
    pub multicast_world: multicast_world::Report,
    /// Requests in the largest batch; 0 unless handlers get batches ([`Options::has_batches`](super::Options::has_batches)).
    pub largest_batch: u64,
    pub(super) counts: Counts,
    pub(super) client_calls: client_call::Counts,
    pub(super) regions: regions::Counts,
    pub(super) contents: ContentCounts,
    pub(super) path_use: PathUse,
    pub(super) buffers_reused: u64,
}

impl Report {
    /// Returns names and values of the main counters, in order: whether faults really happened, and the
    /// outcomes of calls.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let (protocol, fabric, control) = (&self.protocol, &self.fabric, &self.control);
        let client_calls = &self.client_calls;
        let further = [
            ("fault_windows", self.fault_windows),
            ("crashes", fabric.crashes),
            ("partitions", fabric.partitions),
            ("pauses", fabric.pauses),
            ("stalls", fabric.stalls),
            ("packets", fabric.sent),
            ("frames_checked", self.frames_checked),
            ("payloads_checked", self.contents.all),
            ("payloads_checked_of_repetitions", self.contents.repeated),
            ("payloads_checked_of_ended_calls", self.contents.stale),
            ("sessions_over_several_paths", self.path_use.sessions),
            ("packets_from_further_ports", self.path_use.packets),
            ("marks_reported_by_path", self.path_use.marks),
            ("buffers_reused", self.buffers_reused),
            ("packets_lost", fabric.dropped(DropReason::Loss)),
            ("packets_partitioned", fabric.dropped(DropReason::Partition)),
            ("packets_lost_by_cut_links", fabric.dropped(DropReason::LinkDown)),
            ("packets_dropped_by_switches", fabric.dropped(DropReason::SwitchBuffer)),
            ("packets_dropped_by_hosts", fabric.dropped(DropReason::RxQueue)),
            ("packets_corrupted", fabric.corrupted),
            ("packets_duplicated", fabric.duplicated),
            ("packets_reordered", fabric.reordered),
            ("packets_injected", fabric.injected),
            ("delay_spikes", fabric.spikes),
            ("transmit_queue_full", fabric.tx_blocked),
            ("datagram_trains", fabric.trains),
            ("datagrams_joined", fabric.joined),
            ("frames_kept", fabric.frames_kept),
            ("datagrams_by_devices", fabric.datagrams_by_devices),
            ("ring_frames", fabric.ring_frames),
            ("rings_full", fabric.rings_full),
            ("rings_corrupted", fabric.rings_corrupted),
            ("ring_wakes", fabric.wakes),
            ("ring_wakes_late", fabric.wakes_late),
            ("ring_wakes_refused", fabric.wakes_refused),
            ("attacks_replayed", fabric.attacks(Attack::Replay)),
            ("attacks_replayed_first", fabric.attacks_first),
            ("attacks_of_former_keys", fabric.attacks_of_former_keys),
            ("attacks_of_former_links", fabric.attacks_of_former_links),
            ("attacks_reflected", fabric.attacks(Attack::Reflect)),
            ("attacks_mixed", fabric.attacks(Attack::Mix)),
            ("attacks_flipped", fabric.attacks(Attack::Flip)),
            ("attacks_truncated", fabric.attacks(Attack::Truncate)),
            ("attacks_plain", fabric.attacks(Attack::Plain)),
            ("attacks_to_plain_endpoints", fabric.attacks(Attack::ToPlain)),
            ("packets_strange_to_plain_links", fabric.strange_on_plain_links),
            ("links_up", control.links_up),
            ("links_sealed", control.links_sealed),
            ("links_lost", control.links_lost),
            ("links_failed", control.links_failed),
            ("connections_silent", control.silences),
            ("connections_reset", control.resets),
            ("sessions_unanswered", control.sessions_unanswered),
            ("virtual_ms", self.virtual_ns / 1_000_000),
        ];
        std::iter::once(("calls", self.calls))
            .chain(self.counts.iter())
            .chain(further)
            .chain(protocol.iter())
            .chain(client_calls.iter())
            .chain(self.regions.iter())
            .chain(self.nexus.iter())
            .chain(self.multicast_world.iter())
    }
}
