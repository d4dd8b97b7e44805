//! The time at which a session may send next (Carousel, Saeed et al., SIGCOMM'17; eRPC §5.2).
//!
//! Carousel stamps every packet with a release time and keeps all packets in one wheel of the host. Here the
//! packets stay in the message of their slot. The session alone waits, with one entry in the endpoint's
//! [wheel](crate::timer::TimerWheel), and a packet's time is computed when the packet before has left. So a
//! session needs one entry for any number of waiting packets, and a packet acknowledged meanwhile is simply
//! not sent. The wheel never refers to a message buffer, for which eRPC has to drop responses (appendix C). A
//! change of the rate counts from the next packet on.

use super::Pace;

/// The delay behind its pace that a session may catch up, in nanoseconds. A wheel of 1 µs ticks and an event
/// loop with turns of some microseconds cause delays of this size; less would lose them from the rate. The
/// value also bounds the burst after idleness: at 25 Gbit/s 12.8 KB, at 1 Gbit/s no more than one packet.
pub const BEHIND_NS_MAX: u64 = 4_096;

/// The next release time of a session, to a fraction of a nanosecond.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pacer {
    next_ns: u64,
    fraction: u32,
}

impl Pacer {
    /// The time at which the next packet may leave; a past time means now.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Notes that a packet of `bytes` has left.
    #[inline]
    pub fn charge(&mut self, now_ns: u64, bytes: u32, pace: Pace) {
        let earliest_ns = now_ns.saturating_sub(BEHIND_NS_MAX);
        if self.next_ns < earliest_ns {
            (self.next_ns, self.fraction) = (earliest_ns, 0);
        }
        let (time_ns, fraction) = pace.time_of(bytes, self.fraction);
        self.next_ns += time_ns;
        self.fraction = fraction;
    }

    /// Applies a new pace. Time charged at the old pace may be far ahead: one packet at the least rate. The
    /// wait is cut to the time of one packet of `bytes` at the new pace.
    pub(super) fn change(&mut self, now_ns: u64, bytes: u32, pace: Pace) {
        assert!(bytes > 0 || pace.is_unlimited(), "a packet that is paced has bytes");
        let latest_ns = now_ns + pace.time_of(bytes, 0).0;
        self.next_ns = self.next_ns.min(latest_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rate;
    use super::*;

    #[test]
    fn charge__spaces_packets_by_the_rate() {
        let pace = Pace::of(Rate::gbit(1));
        let mut pacer = Pacer::default();
        let mut now_ns = 1_000_000;
        pacer.charge(now_ns, 1_250, pace);
        // 4.1 µs behind, and 10 µs a packet.
        assert_eq!(pacer.next_ns(), 1_000_000 - BEHIND_NS_MAX + 10_000);
        for _ in 0..1000 {
            now_ns = pacer.next_ns();
            pacer.charge(now_ns, 1_250, pace);
        }
        assert_eq!(pacer.next_ns(), 1_000_000 - BEHIND_NS_MAX + 10_000 * 1001);
    }

    #[test]
    fn charge__late_departures_do_not_slow_the_session() {
        let pace = Pace::of(Rate::gbit(10));
        let mut pacer = Pacer::default();
        let mut now_ns = 1_000_000;
        for packet in 0..10_000 {
            pacer.charge(now_ns, 1_250, pace);
            now_ns = pacer.next_ns() + packet % BEHIND_NS_MAX;
        }
        let passed_ns = pacer.next_ns() - 1_000_000;
        assert!((9_995_000..10_001_000).contains(&passed_ns), "{passed_ns}");
    }

    /// A session that is late by the limit catches up completely, fractions of a nanosecond included.
    #[test]
    fn charge__catches_up_with_all_that_it_may() {
        let pace = Pace::of(Rate::gbit(3));
        let time_of = |late_ns: u64| {
            let mut pacer = Pacer { next_ns: 1_000_000, fraction: 0 };
            (0..3_000).for_each(|_| pacer.charge(pacer.next_ns() + late_ns, 1, pace));
            pacer.next_ns() - 1_000_000
        };
        assert_eq!(time_of(BEHIND_NS_MAX), time_of(0));
        assert_eq!(
            time_of(BEHIND_NS_MAX + 1),
            3_000 * 3,
            "a nanosecond and the part of one, each time"
        );
    }

    #[test]
    fn charge__idleness_earns_one_burst() {
        let pace = Pace::of(Rate::gbit(1));
        let mut pacer = Pacer::default();
        let now_ns = 1_000_000_000;
        let mut sent_bytes = 0;
        while pacer.next_ns() <= now_ns {
            pacer.charge(now_ns, 100, pace);
            sent_bytes += 100;
        }
        // 4 096 ns are 512 bytes, plus the packet beyond.
        assert_eq!(sent_bytes, 600);
    }

    #[test]
    fn change__cuts_an_old_wait_short() {
        let mut pacer = Pacer::default();
        pacer.charge(1_000_000, 1_250, Pace::of(Rate::MIN));
        assert!(pacer.next_ns() > 10_000_000);
        pacer.change(1_000_000, 1_250, Pace::of(Rate::gbit(1)));
        assert_eq!(pacer.next_ns(), 1_010_000);
        pacer.change(1_000_000, 1_250, Pace::of(Rate::MIN));
        assert_eq!(pacer.next_ns(), 1_010_000, "a slower pace counts from the next packet on");
    }
}
