//! A link with a queue in front, in one direction.

use crate::WIRE_BYTES;
use crate::random::Random;

/// RED: the queue in bytes at which marking begins, the queue from which all packets are marked, and the
/// probability of a mark just below.
#[derive(Clone, Copy, Debug)]
pub struct Marking {
    /// Shorter queues mark no packet.
    pub from_bytes: u64,
    /// Queues of this length mark all packets.
    pub all_bytes: u64,
    /// The probability between the two grows linearly to this value.
    pub most: f64,
}

/// MP-RDMA's testbed (§5.1): a step at 20 KB.
pub const STEP: Marking = Marking { from_bytes: 20_000, all_bytes: 20_000, most: 1.0 };

/// A slope from 20 to 60 KB.
pub const SLOPE: Marking = Marking { from_bytes: 20_000, all_bytes: 60_000, most: 0.5 };

/// A link.
#[derive(Clone, Debug)]
pub struct Link {
    /// Rate in Gbit/s, of bytes on the wire.
    pub gbit: f64,
    /// Packets that find a longer queue are dropped, in bytes.
    pub queue_bytes: u64,
    /// Marks of congestion; none without.
    pub marking: Option<Marking>,
    /// Probability of the loss of a packet.
    pub loss: f64,
    /// False if the link drops everything, unknown to the hosts.
    pub is_up: bool,
    free_ns: u64,
    passed: u64,
    marked: u64,
    queue_bytes_seen: u64,
    queue_squares_seen: f64,
}

/// The time from the end of a link's transmission to the next device.
const DELAY_NS: u64 = 2_000;

impl Link {
    /// Makes a link without loss, with a queue of 1 MB that marks.
    pub fn new(gbit: f64, marking: Option<Marking>) -> Self {
        Self {
            gbit,
            queue_bytes: 1_000_000,
            marking,
            loss: 0.0,
            is_up: true,
            free_ns: 0,
            passed: 0,
            marked: 0,
            queue_bytes_seen: 0,
            queue_squares_seen: 0.0,
        }
    }

    /// Makes a host's own link: it waits for packets instead of dropping or marking them.
    pub(crate) fn of_host(gbit: f64) -> Self {
        Self { queue_bytes: u64::MAX, ..Self::new(gbit, None) }
    }

    /// Sends a packet that arrives at the queue now. Returns the time of its arrival at the other end, and
    /// true if it is marked; or `None` if it is lost.
    pub(crate) fn pass(&mut self, now_ns: u64, random: &mut Random) -> Option<(u64, bool)> {
        if !self.is_up || random.happens(self.loss) {
            return None;
        }
        let start_ns = self.free_ns.max(now_ns);
        let queue_bytes = ((start_ns - now_ns) as f64 * self.gbit / 8.0) as u64;
        if queue_bytes.saturating_add(WIRE_BYTES) > self.queue_bytes {
            return None;
        }
        let is_marked = self.marking.is_some_and(|marking| marking.marks(queue_bytes, random));
        self.free_ns = start_ns + (WIRE_BYTES as f64 * 8.0 / self.gbit) as u64;
        self.passed += 1;
        self.marked += u64::from(is_marked);
        self.queue_bytes_seen += queue_bytes;
        self.queue_squares_seen += (queue_bytes as f64).powi(2);
        Some((self.free_ns + DELAY_NS, is_marked))
    }

    /// Returns the mean queue that packets found, in packets.
    pub fn mean_queue_packets(&self) -> f64 {
        self.queue_bytes_seen as f64 / (self.passed.max(1) * WIRE_BYTES) as f64
    }

    /// Returns the standard deviation of the queues that packets found, in packets.
    pub fn queue_deviation_packets(&self) -> f64 {
        let mean = self.queue_bytes_seen as f64 / self.passed.max(1) as f64;
        let square = self.queue_squares_seen / self.passed.max(1) as f64;
        (square - mean * mean).max(0.0).sqrt() / WIRE_BYTES as f64
    }

    /// Returns the share of packets that were marked.
    pub fn mark_ratio(&self) -> f64 {
        self.marked as f64 / self.passed.max(1) as f64
    }

    /// Forgets the packets so far, for the figures of a span.
    pub(crate) fn begin_span(&mut self) {
        (self.passed, self.marked) = (0, 0);
        (self.queue_bytes_seen, self.queue_squares_seen) = (0, 0.0);
    }
}

impl Marking {
    fn marks(self, queue_bytes: u64, random: &mut Random) -> bool {
        if queue_bytes >= self.all_bytes {
            return true;
        }
        let above = queue_bytes.saturating_sub(self.from_bytes) as f64;
        random.happens(self.most * above / (self.all_bytes - self.from_bytes).max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass__packets_queue_behind_each_other() {
        let mut random = Random::new(1);
        let mut link = Link::new(10.0, None);
        let packet_ns = WIRE_BYTES * 8 / 10;
        assert_eq!(link.pass(0, &mut random), Some((packet_ns + DELAY_NS, false)));
        assert_eq!(link.pass(0, &mut random), Some((2 * packet_ns + DELAY_NS, false)));
        assert_eq!(link.mean_queue_packets().round(), 0.0);
        assert_eq!(link.pass(100_000, &mut random), Some((100_000 + packet_ns + DELAY_NS, false)));
    }

    #[test]
    fn pass__marks_by_the_queue_and_drops_beyond() {
        let mut random = Random::new(1);
        let mut link = Link { queue_bytes: 30_000, ..Link::new(10.0, Some(STEP)) };
        let marks: Vec<_> = (0..25).map(|_| link.pass(0, &mut random).map(|sent| sent.1)).collect();
        assert_eq!(
            (marks[13], marks[14], marks[19], marks[20]),
            (Some(false), Some(true), Some(true), None)
        );
        link.is_up = false;
        assert_eq!(link.pass(1_000_000, &mut random), None);
    }

    #[test]
    fn pass__loses_the_given_share() {
        let mut random = Random::new(1);
        let mut link = Link { loss: 0.05, ..Link::new(10.0, None) };
        let lost = (0..10_000u64).filter(|at| link.pass(at * 2_000, &mut random).is_none()).count();
        assert!((400..600).contains(&lost), "{lost}");
    }
}
