//! One direction of a link: a queue, a transmitter and its faults.

use std::collections::VecDeque;

use crate::rng::Rng;

use super::config::LinkConfig;
use super::fault::FaultState;
use super::packet::PacketRef;
use super::stats::LinkStats;
use super::topology::{Direction, NodeId};

/// The queue in front of a link belongs to the node that sends: it is the transmit queue of a NIC
/// or the output port of a switch, and that node decides who may enter.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) config: LinkConfig,
    pub(super) faults: FaultState,
    pub(super) stats: LinkStats,
    /// The packet being sent is the first; it leaves the queue with its last bit.
    queue: VecDeque<Queued>,
    queued_bytes: u64,
}

#[derive(Debug)]
struct Queued {
    packet: PacketRef,
    bytes: u64,
}

impl Link {
    pub(super) fn new(direction: Direction, rng: Rng) -> Self {
        let Direction { from, to, config } = direction;
        let (queue, stats, faults) = (VecDeque::new(), LinkStats::default(), FaultState::new(rng));
        Self { from, to, config, faults, stats, queue, queued_bytes: 0 }
    }

    /// Puts a packet at the end. Returns how long it takes to send if the transmitter was idle,
    /// and now begins.
    pub(super) fn push(&mut self, packet: PacketRef, bytes: u64) -> Option<u64> {
        self.queue.push_back(Queued { packet, bytes });
        self.queued_bytes += bytes;
        self.stats.queued_bytes_max = self.stats.queued_bytes_max.max(self.queued_bytes);
        (self.queue.len() == 1).then(|| self.serialization_ps(bytes))
    }

    /// Takes out the packet whose last bit has been sent, with its size.
    pub(super) fn pop_sent(&mut self) -> Option<(PacketRef, u64)> {
        let Queued { packet, bytes } = self.queue.pop_front()?;
        self.queued_bytes -= bytes;
        self.stats.packets += 1;
        self.stats.bytes += bytes;
        Some((packet, bytes))
    }

    /// How long the first packet takes to send; `None` when there is none.
    pub(super) fn next_serialization_ps(&self) -> Option<u64> {
        self.queue.front().map(|first| self.serialization_ps(first.bytes))
    }

    /// Takes out the last packet that is not being sent.
    pub(super) fn pop_waiting(&mut self) -> Option<PacketRef> {
        if self.queue.len() <= 1 {
            return None;
        }
        let Queued { packet, bytes } = self.queue.pop_back()?;
        self.queued_bytes -= bytes;
        Some(packet)
    }

    pub(super) fn queued_packets(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Rounded up to a picosecond: a link is never faster than its rate.
    fn serialization_ps(&self, bytes: u64) -> u64 {
        const PS_PER_BYTE_AT_1_BPS: u128 = 8_000_000_000_000;
        let ps =
            (u128::from(bytes) * PS_PER_BYTE_AT_1_BPS).div_ceil(u128::from(self.config.rate_bps));
        u64::try_from(ps).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::packet::{Packets, SimAddr};
    use crate::fabric::topology::HostId;

    const A: SimAddr = SimAddr::new(HostId(0), 0);
    const B: SimAddr = SimAddr::new(HostId(1), 0);

    fn link(config: LinkConfig) -> Link {
        let direction = Direction { from: A.host.into(), to: B.host.into(), config };
        Link::new(direction, Rng::new(0))
    }

    #[test]
    fn serialization_ps__is_exact() {
        assert_eq!(link(LinkConfig::gbit(100, 0)).serialization_ps(64), 5_120);
        assert_eq!(link(LinkConfig::gbit(25, 0)).serialization_ps(1_500), 480_000);
        let slow = LinkConfig { rate_bps: 3, delay_ns: 0 };
        assert_eq!(link(slow).serialization_ps(1), 2_666_666_666_667);
    }

    #[test]
    fn push__only_the_first_begins() {
        let mut packets = Packets::default();
        let mut link = link(LinkConfig::gbit(8, 0));
        assert_eq!(link.push(packets.create(A, B), 100), Some(100_000));
        assert_eq!(link.push(packets.create(A, B), 50), None);
        assert_eq!(link.push(packets.create(A, B), 25), None);
        assert_eq!((link.queued_packets(), link.queued_bytes()), (3, 175));
        assert!(link.pop_waiting().is_some());
        assert_eq!(link.pop_sent().unwrap().1, 100);
        assert_eq!(link.next_serialization_ps(), Some(50_000));
        assert!(link.pop_waiting().is_none());
        assert_eq!(link.pop_sent().unwrap().1, 50);
        assert!(link.pop_sent().is_none());
        let expected = LinkStats { packets: 2, bytes: 150, queued_bytes_max: 175 };
        assert_eq!(link.stats, expected);
    }
}
