//! When a session may send next (Carousel, Saeed et al., SIGCOMM'17; eRPC §5.2).
//!
//! Carousel stamps every packet with a release time and keeps all of them in one wheel of the host.
//! Here the packets stay where they are, in the message of their slot: the session alone waits, with
//! one entry in the endpoint's [wheel](crate::timer::TimerWheel), and each packet's time is worked
//! out when the one before it has left. So a session needs one entry however many packets wait, a
//! packet that is acknowledged meanwhile is simply not sent, no message buffer is ever referred to
//! from the wheel (eRPC's appendix C has to drop responses for that), and a change of the rate
//! counts from the next packet on.

use super::Pace;

/// How far a session may be behind its pace and still catch up, in nanoseconds. It is what a wheel of
/// 1 µs ticks and an event loop that turns once in some microseconds come late; less would lose
/// them from the rate. It is also the burst after idleness: at 25 Gbit/s 12.8 KB, at 1 Gbit/s no more
/// than one packet.
pub const BEHIND_NS_MAX: u64 = 4_096;

/// The next release time of a session, to a fraction of a nanosecond.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pacer {
    next_ns: u64,
    fraction: u32,
}

impl Pacer {
    /// When the next packet may leave: now, if that time has passed.
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

    /// The pace has changed. What was charged by the old one may be far ahead: one packet at the
    /// least rate. Nobody waits longer than one packet of `bytes` takes by the new pace.
    pub(super) fn change(&mut self, now_ns: u64, bytes: u32, pace: Pace) {
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

    /// Whoever is just so late that all of it is caught up with loses nothing, not even parts of a nanosecond.
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
        // 4 096 ns are 512 bytes, and the packet that goes over.
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
