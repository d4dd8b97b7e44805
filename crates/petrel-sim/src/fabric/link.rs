//! One direction of a link: a queue, a transmitter and its faults.

use std::collections::VecDeque;

use crate::rng::Rng;
use crate::time::Time;

use super::config::{EcnConfig, LinkConfig};
use super::fault::FaultState;
use super::packet::PacketRef;
use super::stats::{DropReason, LinkStats};
use super::topology::{Direction, NodeId};

/// The queue in front of a link belongs to the sending node: it is the transmit queue of a NIC or the
/// output port of a switch, and this node decides which packets enter.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) config: LinkConfig,
    /// Whether the link leads to a cut-through switch, which forwards packets before their last bit.
    pub(super) cuts_through: bool,
    /// Added to the delay of the link: forwarding latency of the node at its end, in nanoseconds.
    pub(super) node_latency_ns: u64,
    pub(super) faults: FaultState,
    pub(super) stats: LinkStats,
    /// When the port in front of the link marks packets.
    pub(super) ecn: Option<EcnConfig>,
    /// Decides which packets are marked.
    pub(super) red: Rng,
    /// Whether bits arrive at the other end.
    pub(super) is_up: bool,
    /// Whether the routes use the link; they learn late, or never, that a link is down.
    pub(super) is_routed: bool,
    /// The packet in transmission is the first; its bytes leave the queue with its last bit.
    queue: VecDeque<Queued>,
    queued_bytes: u64,
    /// The time up to which `stats.queued_byte_ps` is summed.
    summed_until: Time,
    measured_since: Time,
    /// Picoseconds for each byte, if a whole number, as at all usual rates.
    ps_per_byte: Option<u64>,
}

#[derive(Debug)]
struct Queued {
    /// `None` once the packet is in flight; see [`Link::take_first`].
    packet: Option<PacketRef>,
    bytes: u64,
}

const PS_PER_BYTE_AT_1_BPS: u64 = 8_000_000_000_000;

impl Link {
    pub(super) fn new(direction: Direction, faults: Rng, red: Rng) -> Self {
        let Direction { from, to, config, .. } = direction;
        Self {
            from,
            to,
            config,
            cuts_through: false,
            node_latency_ns: 0,
            faults: FaultState::new(faults),
            stats: LinkStats::default(),
            ecn: None,
            red,
            is_up: true,
            is_routed: true,
            queue: VecDeque::new(),
            queued_bytes: 0,
            summed_until: Time::ZERO,
            measured_since: Time::ZERO,
            ps_per_byte: ps_per_byte(config),
        }
    }

    /// Changes rate and delay. A packet in transmission keeps the time of its last bit.
    ///
    /// # Panics
    /// If the rate is zero, at which no transmission ends.
    pub(super) fn set_config(&mut self, config: LinkConfig) {
        assert!(config.rate_bps > 0, "a link needs a rate; take it down instead");
        self.config = config;
        self.ps_per_byte = ps_per_byte(config);
    }

    /// Appends a packet. Returns true if the transmitter was idle, and has to start.
    pub(super) fn push(&mut self, now: Time, packet: PacketRef, bytes: u64) -> bool {
        self.sum_up(now);
        self.queue.push_back(Queued { packet: Some(packet), bytes });
        self.queued_bytes += bytes;
        self.stats.queued_bytes_max = self.stats.queued_bytes_max.max(self.queued_bytes);
        self.queue.len() == 1
    }

    /// Removes the first entry after its last bit was sent. Returns the size, and the packet unless taken before.
    pub(super) fn pop_sent(&mut self, now: Time) -> Option<(Option<PacketRef>, u64)> {
        self.sum_up(now);
        let Queued { packet, bytes } = self.queue.pop_front()?;
        self.queued_bytes -= bytes;
        self.stats.packets += 1;
        self.stats.bytes += bytes;
        Some((packet, bytes))
    }

    /// Returns the size of the first packet; `None` if the queue is empty.
    pub(super) fn first_bytes(&self) -> Option<u64> {
        self.queue.front().map(|first| first.bytes)
    }

    /// Takes the first packet, for departure before its last bit. Its bytes stay in the queue until the
    /// last bit is sent.
    pub(super) fn take_first(&mut self) -> Option<PacketRef> {
        self.queue.front_mut()?.packet.take()
    }

    /// Removes the last packet that is not in transmission.
    pub(super) fn pop_waiting(&mut self, now: Time) -> Option<PacketRef> {
        if self.queue.len() <= 1 {
            return None;
        }
        self.sum_up(now);
        let Queued { packet, bytes } = self.queue.pop_back()?;
        self.queued_bytes -= bytes;
        packet
    }

    pub(super) fn queued_packets(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Counts a packet that the switch did not admit.
    pub(super) fn count_refused(&mut self, reason: DropReason) {
        match reason {
            DropReason::SwitchThreshold => self.stats.dropped_threshold += 1,
            _ => self.stats.dropped_full += 1,
        }
    }

    /// Returns the counters, complete until `now`.
    pub(super) fn stats_at(&self, now: Time) -> LinkStats {
        let byte_ps = self.not_summed(now);
        LinkStats {
            queued_byte_ps: self.stats.queued_byte_ps + byte_ps,
            queued_byte2_ps: self.stats.queued_byte2_ps + byte_ps * u128::from(self.queued_bytes),
            measured_ps: now.ps() - self.measured_since.ps(),
            ..self.stats
        }
    }

    /// Resets the counters.
    pub(super) fn begin_measuring(&mut self, now: Time) {
        (self.measured_since, self.summed_until) = (now, now);
        self.stats = LinkStats { queued_bytes_max: self.queued_bytes, ..LinkStats::default() };
    }

    /// Returns the time to send this number of bytes, in picoseconds. Rounded up: a link is never faster than its rate.
    #[inline]
    pub(super) fn serialization_ps(&self, bytes: u64) -> u64 {
        if let Some(ps) = self.ps_per_byte {
            return bytes.saturating_mul(ps);
        }
        let ps = (u128::from(bytes) * u128::from(PS_PER_BYTE_AT_1_BPS))
            .div_ceil(u128::from(self.config.rate_bps));
        u64::try_from(ps).unwrap_or(u64::MAX)
    }

    fn sum_up(&mut self, now: Time) {
        let byte_ps = self.not_summed(now);
        self.stats.queued_byte_ps += byte_ps;
        self.stats.queued_byte2_ps += byte_ps * u128::from(self.queued_bytes);
        self.summed_until = now;
    }

    fn not_summed(&self, now: Time) -> u128 {
        u128::from(self.queued_bytes) * u128::from(now.ps() - self.summed_until.ps())
    }
}

fn ps_per_byte(config: LinkConfig) -> Option<u64> {
    let is_whole = PS_PER_BYTE_AT_1_BPS.is_multiple_of(config.rate_bps);
    is_whole.then(|| PS_PER_BYTE_AT_1_BPS / config.rate_bps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::packet::{Packets, SimAddr};
    use crate::fabric::topology::{HostId, Marking};

    const A: SimAddr = SimAddr::new(HostId(0), 0);
    const B: SimAddr = SimAddr::new(HostId(1), 0);

    fn link(config: LinkConfig) -> Link {
        let (from, to, marking) = (A.host.into(), B.host.into(), Marking::OfSwitch);
        let direction = Direction { from, to, config, marking };
        Link::new(direction, Rng::new(0), Rng::new(0))
    }

    #[test]
    fn serialization_ps__is_exact() {
        assert_eq!(link(LinkConfig::gbit(100, 0)).serialization_ps(64), 5_120);
        assert_eq!(link(LinkConfig::gbit(25, 0)).serialization_ps(1_500), 480_000);
        let slow = LinkConfig { rate_bps: 3, delay_ns: 0 };
        assert_eq!(link(slow).serialization_ps(1), 2_666_666_666_667);
        let faster_than_a_byte_per_ps = LinkConfig { rate_bps: 16_000_000_000_000, delay_ns: 0 };
        assert_eq!(link(faster_than_a_byte_per_ps).serialization_ps(3), 2);
    }

    #[test]
    fn push__only_the_first_begins() {
        let mut packets = Packets::default();
        let mut link = link(LinkConfig::gbit(8, 0));
        let at = Time::from_ns;
        assert!(link.push(at(0), packets.create(A, B), 100));
        assert!(!link.push(at(1), packets.create(A, B), 50));
        assert!(!link.push(at(1), packets.create(A, B), 25));
        assert_eq!((link.queued_packets(), link.queued_bytes()), (3, 175));
        assert!(link.pop_waiting(at(11)).is_some());
        assert!(link.take_first().is_some() && link.take_first().is_none());
        assert_eq!(link.pop_sent(at(100)), Some((None, 100)));
        assert_eq!(link.first_bytes(), Some(50));
        assert!(link.pop_waiting(at(100)).is_none());
        assert!(matches!(link.pop_sent(at(150)), Some((Some(_), 50))));
        assert!(link.pop_sent(at(150)).is_none());
        // 100 for 1 ns, 175 for 10, 150 for 89, 50 for 50.
        let queued_byte_ps = 1_000 * (100 + 1_750 + 13_350 + 2_500);
        let queued_byte2_ps = 1_000 * (10_000 + 306_250 + 2_002_500 + 125_000);
        let expected = LinkStats {
            packets: 2,
            bytes: 150,
            queued_bytes_max: 175,
            queued_byte_ps,
            queued_byte2_ps,
            measured_ps: 200_000,
            ..LinkStats::default()
        };
        assert_eq!(link.stats_at(at(200)), expected);
        link.begin_measuring(at(200));
        assert_eq!(link.stats_at(at(200)), LinkStats::default());
    }

    #[test]
    fn queued_bytes_deviation__of_a_queue_that_is_there_half_of_the_time() {
        let mut packets = Packets::default();
        let mut link = link(LinkConfig::gbit(8, 0));
        assert!(link.push(Time::from_ns(0), packets.create(A, B), 100));
        assert!(link.pop_sent(Time::from_ns(100)).is_some());
        let stats = link.stats_at(Time::from_ns(200));
        // 100 bytes or none, in equal parts.
        assert_eq!((stats.queued_bytes_mean(), stats.queued_bytes_deviation()), (50.0, 50.0));
        assert_eq!(LinkStats::default().queued_bytes_deviation(), 0.0);
    }

    #[test]
    fn set_config__holds_from_the_next_packet_on() {
        let mut link = link(LinkConfig::gbit(8, 0));
        assert_eq!(link.serialization_ps(10), 10_000);
        link.set_config(LinkConfig { rate_bps: 3_000_000_000, delay_ns: 7 });
        assert_eq!((link.serialization_ps(10), link.config.delay_ns), (26_667, 7));
    }
}
