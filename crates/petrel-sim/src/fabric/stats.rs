//! Counters and reasons of packet drops.

use super::wiretap::Attack;

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// A link lost the packet.
    Loss,
    /// The packet would have crossed a partition.
    Partition,
    /// The memory of a switch, or of its port, was full.
    SwitchBuffer,
    /// The receive queue of the NIC was full.
    RxQueue,
    /// No endpoint is bound to the packet's destination port.
    NoPort,
    /// Its destination names no host.
    NoRoute,
    /// Its host was down.
    HostDown,
    /// The packet was in a queue of a host that crashed.
    Crash,
    /// The packet was in the receive queue of a port that was closed.
    Closed,
    /// The packet was corrupted, and the NIC verifies checksums.
    Checksum,
    /// The output port of a switch held its share of the memory, although more memory was free.
    SwitchThreshold,
    /// A link was down.
    LinkDown,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::Loss,
        Self::Partition,
        Self::SwitchBuffer,
        Self::RxQueue,
        Self::NoPort,
        Self::NoRoute,
        Self::HostDown,
        Self::Crash,
        Self::Closed,
        Self::Checksum,
        Self::SwitchThreshold,
        Self::LinkDown,
    ];

    /// Returns a short name, for traces and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Partition => "partition",
            Self::SwitchBuffer => "switch-buffer",
            Self::RxQueue => "rx-queue",
            Self::NoPort => "no-port",
            Self::NoRoute => "no-route",
            Self::HostDown => "host-down",
            Self::Crash => "crash",
            Self::Closed => "closed",
            Self::Checksum => "checksum",
            Self::SwitchThreshold => "switch-threshold",
            Self::LinkDown => "link-down",
        }
    }
}

/// Counters of a whole fabric, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FabricStats {
    /// Accepted by the transmit queue of a NIC.
    pub sent: u64,
    /// Copies that links made.
    pub duplicated: u64,
    /// Copies that switches and hosts made of packets to groups.
    pub replicated: u64,
    /// Injected from outside; see [`FabricHandle::inject`](super::FabricHandle::inject).
    pub injected: u64,
    /// Taken out of a receive queue by an endpoint, or arrived from a source.
    pub delivered: u64,
    /// Packets in queues and on links at this moment.
    pub in_flight: u64,
    /// Changed in flight; these packets are also delivered or dropped.
    pub corrupted: u64,
    /// Delayed so that later packets may overtake.
    pub reordered: u64,
    /// Marked by a switch with "congestion experienced".
    pub marked: u64,
    /// Delay spikes: a spike holds up all packets of a link.
    pub spikes: u64,
    /// Number of sends that found the transmit queue full.
    pub tx_blocked: u64,
    /// Messages of several datagrams (GSO trains) that endpoints with UDP's transmit planner sent.
    pub trains: u64,
    /// Datagrams received in a buffer with their predecessor.
    pub joined: u64,
    /// Frames kept by endpoints with this planner for lack of room.
    pub frames_kept: u64,
    /// Datagrams that left or arrived by a device.
    pub datagrams_by_devices: u64,
    /// Frames that endpoints wrote into rings in shared memory.
    pub ring_frames: u64,
    /// Number of times that an endpoint went to sleep with frames waiting for room in a ring.
    pub rings_full: u64,
    /// Rings that crashing processes left corrupted.
    pub rings_corrupted: u64,
    /// Wake-ups sent to consumers of rings.
    pub wakes: u64,
    /// Wake-ups that came late.
    pub wakes_late: u64,
    /// Wake-ups that the system refused.
    pub wakes_refused: u64,
    /// Crashes of hosts.
    pub crashes: u64,
    /// Pauses of hosts.
    pub pauses: u64,
    /// Turns of hosts' actors that were to stop in the middle.
    pub stalls: u64,
    /// Partitions begun.
    pub partitions: u64,
    /// Received packets of an attacker, by [`Attack`].
    pub(super) attacks: [u64; Attack::ALL.len()],
    /// Replayed datagrams, accepted because the copy overtook the original.
    pub attacks_first: u64,
    /// Packets of an attacker, and late packets of an ended sealed link, received by endpoints with a plain link to the sender.
    pub strange_on_plain_links: u64,
    /// Dropped datagrams of the attacker, sealed by an earlier key of the link.
    pub attacks_of_former_keys: u64,
    /// Replayed datagrams of an ended link, refused by a later link.
    pub attacks_of_former_links: u64,
    dropped: [u64; DropReason::ALL.len()],
}

impl FabricStats {
    /// Returns the number of received packets of an attacker.
    pub fn attacks(&self, attack: Attack) -> u64 {
        self.attacks[attack as usize]
    }

    /// Returns the packets dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Returns the packets dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Returns true if every packet is accounted for: each packet that was sent, copied or injected was
    /// delivered, was dropped for a reason, or is still in flight.
    pub fn is_balanced(&self) -> bool {
        let came = self.sent + self.duplicated + self.replicated + self.injected;
        came == self.delivered + self.dropped_total() + self.in_flight
    }

    pub(super) fn count_drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}

/// Counters of one direction of a link, and of the queue in front of it, since the start or since
/// [`FabricHandle::begin_measuring`](super::FabricHandle::begin_measuring).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// Packets sent on the link, lost ones included.
    pub packets: u64,
    /// Their bytes, overhead included.
    pub bytes: u64,
    /// The most bytes that ever waited for the link, including the packet in transmission.
    pub queued_bytes_max: u64,
    /// Bytes that waited, summed over time: bytes times picoseconds.
    pub queued_byte_ps: u128,
    /// The squares of the waiting bytes, summed over time: square bytes times picoseconds.
    pub queued_byte2_ps: u128,
    /// The length of this time, in picoseconds.
    pub measured_ps: u64,
    /// Packets marked as they entered the queue.
    pub marked: u64,
    /// Packets refused by the port's switch because of full memory.
    pub dropped_full: u64,
    /// Packets refused by the port's switch because the port held its share.
    pub dropped_threshold: u64,
    /// Packets that the link lost.
    pub lost: u64,
    /// Packets that entered the link, or would have left the link, during an outage.
    pub dropped_down: u64,
}

impl LinkStats {
    /// Returns the waiting bytes, averaged over time.
    pub fn queued_bytes_mean(&self) -> f64 {
        self.queued_byte_ps as f64 / (self.measured_ps as f64).max(1.0)
    }

    /// Returns the standard deviation of the waiting bytes over time.
    pub fn queued_bytes_deviation(&self) -> f64 {
        let mean = self.queued_bytes_mean();
        let square_mean = self.queued_byte2_ps as f64 / (self.measured_ps as f64).max(1.0);
        // The difference of two rounded numbers may be a little below zero.
        (square_mean - mean * mean).max(0.0).sqrt()
    }

    /// Returns the bits sent per second.
    pub fn rate_bps(&self) -> f64 {
        self.bytes as f64 * 8e12 / (self.measured_ps as f64).max(1.0)
    }

    /// Returns the packets that did not enter the queue.
    pub fn refused(&self) -> u64 {
        self.dropped_full + self.dropped_threshold
    }
}

/// The packet memory of a switch, since the start or since
/// [`FabricHandle::begin_measuring`](super::FabricHandle::begin_measuring).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwitchStats {
    /// Bytes in use at this moment.
    pub used_bytes: u64,
    /// The most bytes ever in use.
    pub used_bytes_max: u64,
    /// Packets marked.
    pub marked: u64,
    /// Packets refused because the memory of the switch, or of the port, was full.
    pub dropped_full: u64,
    /// Packets refused because their port held its share.
    pub dropped_threshold: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_reason__all_is_in_order_and_names_differ() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
        let names: std::collections::BTreeSet<_> = DropReason::ALL.map(DropReason::name).into();
        assert_eq!(names.len(), DropReason::ALL.len());
    }
}
