//! Round trips of a session, and the times derived from them (`docs/wire-protocol.md` §7.1, §7.2).

use super::rtt::{RtoBounds, RttEstimator};

/// Round-trip measurements of a session, and the times derived from them.
#[repr(C)]
pub(crate) struct RoundTrips {
    /// Time of the last measurement; 0 before the first. One measurement per round trip is enough (RFC 6298 §3).
    sampled_ns: u64,
    /// The time from a transmission to the first check for loss, by a probe or the timeout; computed with
    /// every measurement.
    probe_ns: u64,
    /// Doublings of the first timeout of new requests. Kept after a timeout until a round trip is measured
    /// (RFC 6298 §5.7); otherwise a path that became slower would never be measured again.
    backoff: u8,
    /// The number of the latest question to a silent server, and [`HEARD`] if a sign has come since.
    question: u8,
    /// The slot that has asked last.
    asker: u16,
    /// The shortest measured round trip, in nanoseconds: an estimate of the path without queues.
    shortest_ns: u32,
    rtt: RttEstimator,
}

/// Doublings of the timeout up to which probes are delayed. Slow handlers delay probes too, and must not make
/// a later call wait long for the repetition of a lost packet. Beyond the limit, doubled timeouts measure the
/// path.
const PROBE_BACKOFF_MAX: u8 = 2;

/// The largest number of a question, after which the numbers begin again, and the bit for a sign of the server since.
pub(crate) const QUESTION_MAX: u8 = 63;
const HEARD: u8 = 64;

/// Most doublings that a session passes on to its next requests.
const SESSION_BACKOFF_MAX: u8 = 6;

impl RoundTrips {
    pub(crate) fn new(bounds: &RtoBounds) -> Self {
        let rtt = RttEstimator::new();
        let (probe_ns, shortest_ns) = (rtt.probe_ns(bounds), u32::MAX);
        Self { sampled_ns: 0, probe_ns, backoff: 0, question: HEARD, asker: 0, shortest_ns, rtt }
    }

    /// Returns true if a round trip was measured after a packet was sent at `sent_ns`: the answer to the packet
    /// need not be measured.
    #[inline(always)]
    pub(crate) fn is_sampled(&self, sent_ns: u64) -> bool {
        sent_ns < self.sampled_ns
    }

    /// Returns the time to the first check for loss, as if no timeout were doubled.
    #[inline(always)]
    pub(crate) fn probe_ns(&self) -> u64 {
        self.probe_ns
    }

    /// Returns the doublings of the first timeout of new requests.
    #[inline(always)]
    pub(crate) fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Returns the shortest measured round trip in nanoseconds; `u32::MAX` without a measurement.
    #[inline]
    pub(crate) fn shortest_ns(&self) -> u32 {
        self.shortest_ns
    }

    /// Returns the smoothed round trip in nanoseconds, once measured.
    pub(crate) fn srtt_ns(&self) -> Option<u64> {
        self.rtt.srtt_ns()
    }

    /// Returns the timeout in nanoseconds after this number of doublings.
    #[inline]
    pub(crate) fn rto_ns(&self, bounds: &RtoBounds, backoff: u8) -> u64 {
        self.rtt.rto_ns(bounds, backoff.into())
    }

    /// Uses a round trip measured by other means (§7.2), until the session's first measurement.
    pub(crate) fn expect(&mut self, path_ns: u32, bounds: &RtoBounds) {
        if self.rtt.srtt_ns().is_none() {
            self.rtt.expect(path_ns.into());
            self.probe_ns = self.rtt.probe_ns(bounds);
            assert!(self.probe_ns > 0, "a probe leaves time for an answer");
        }
    }

    /// Adds the round trip of a packet sent at `sent_ns` and answered now.
    #[inline]
    pub(crate) fn sample(&mut self, now_ns: u64, sent_ns: u64, bounds: &RtoBounds) {
        let rtt_ns = now_ns.saturating_sub(sent_ns);
        self.rtt.sample(rtt_ns);
        self.shortest_ns = self.shortest_ns.min(rtt_ns.min(u64::from(u32::MAX)) as u32);
        self.sampled_ns = now_ns;
        self.question |= HEARD;
        self.probe_ns = self.rtt.probe_ns(bounds);
        self.backoff = 0;
    }

    /// Notes a sign of the server other than a measured round trip.
    #[inline(always)]
    pub(crate) fn note_heard(&mut self) {
        self.question |= HEARD;
    }

    /// Notes that a slot asks the server, by a probe or after a timeout. A question that nothing has answered goes on.
    pub(crate) fn note_question(&mut self, slot: usize) {
        if self.question & HEARD != 0 {
            self.question = (self.question + 1) & QUESTION_MAX;
        }
        self.asker = slot as u16;
    }

    /// Returns the slot that has asked the server last, while no sign of the server has come.
    pub(crate) fn asker(&self) -> Option<usize> {
        (self.question & HEARD == 0).then_some(self.asker.into())
    }

    pub(crate) fn question(&self) -> u8 {
        self.question & QUESTION_MAX
    }

    /// Returns true if a sign of the server has come since a question.
    pub(crate) fn has_answered(&self, question: u8) -> bool {
        self.question != question
    }

    /// Notes a probe sent after `waited_ns`: the probed packet's round trip will not be known. Perhaps the
    /// path became slower, so the next packets are given twice that time, up to [`PROBE_BACKOFF_MAX`], until
    /// a round trip is measured. Otherwise a path that became slower between two calls would never be
    /// measured again. Without any measurement so far, if other probes follow before the timeout, the limit is that of
    /// timeouts: calls that are answered between two probes never double them.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_probe(&mut self, waited_ns: u64, is_last: bool, bounds: &RtoBounds) {
        assert!(waited_ns > 0, "a probe is sent after its packet");
        assert!(self.backoff == 0, "a probe precedes the first timeout");
        let is_known = is_last || self.rtt.srtt_ns().is_some();
        let doublings = if is_known { PROBE_BACKOFF_MAX } else { SESSION_BACKOFF_MAX };
        let most_ns = self.rtt.rto_ns(bounds, doublings.into());
        self.probe_ns = self.probe_ns.max((2 * waited_ns).min(most_ns));
    }

    /// Passes the doublings of a request's timeout on to the session's next requests, within a limit.
    pub(crate) fn back_off(&mut self, doublings: u8) {
        self.backoff = self.backoff.max(doublings.min(SESSION_BACKOFF_MAX));
        assert!(
            (doublings == 0 || self.backoff > 0) && self.backoff <= SESSION_BACKOFF_MAX,
            "the timeouts of a session double a limited number of times"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round trip known from elsewhere counts until one is measured.
    #[test]
    fn expect__counts_until_a_round_trip_is_measured() {
        let bounds = RtoBounds::default();
        let mut trips = RoundTrips::new(&bounds);
        let mut known = RttEstimator::new();
        for path_ns in [300_000, 20_000_000] {
            let before_ns = trips.probe_ns;
            trips.expect(path_ns, &bounds);
            known.expect(path_ns.into());
            assert_eq!(trips.probe_ns, known.probe_ns(&bounds));
            assert_ne!(trips.probe_ns, before_ns);
        }
        trips.sample(2_000_000, 1_000_000, &bounds);
        // Nor does a known round trip end the delay of probes.
        trips.note_probe(trips.probe_ns, true, &bounds);
        let measured_ns = trips.probe_ns;
        trips.expect(50_000_000, &bounds);
        assert_eq!(trips.probe_ns, measured_ns);
    }

    #[test]
    fn sample__takes_all_of_a_round_trip_in() {
        let bounds = RtoBounds::default();
        let mut trips = RoundTrips::new(&bounds);
        assert_eq!((trips.sampled_ns, trips.backoff, trips.shortest_ns), (0, 0, u32::MAX));
        let mut known = RttEstimator::new();
        for (sent_ns, now_ns, shortest_ns) in [
            (0, 10_000_000_000, u32::MAX),
            (5, 1_000_005, 1_000_000),
            (1_000, 3_001_000, 1_000_000),
            (7_000, 507_000, 500_000),
            (9_000, 8_000, 0),
        ] {
            trips.backoff = 3;
            trips.sample(now_ns, sent_ns, &bounds);
            known.sample(now_ns.saturating_sub(sent_ns));
            assert_eq!(trips.shortest_ns(), shortest_ns);
            assert_eq!((trips.is_sampled(now_ns - 1), trips.backoff), (true, 0));
            assert!(!trips.is_sampled(now_ns));
            assert_eq!(trips.probe_ns, known.probe_ns(&bounds));
            assert_eq!(trips.rtt.srtt_ns(), known.srtt_ns());
        }
    }

    /// Twice the time waited in vain, not less than before, and at most two doublings of the timeout.
    #[test]
    fn note_probe__gives_the_next_ones_twice_the_time() {
        let bounds = RtoBounds::default();
        let mut trips = RoundTrips::new(&bounds);
        trips.sample(1_000_000, 900_000, &bounds);
        let (first_ns, most_ns) = (trips.probe_ns, trips.rtt.rto_ns(&bounds, 2));
        assert!(first_ns * 4 < most_ns, "{first_ns} {most_ns}");
        trips.note_probe(first_ns / 4, true, &bounds);
        assert_eq!(trips.probe_ns, first_ns);
        trips.note_probe(first_ns, true, &bounds);
        assert_eq!(trips.probe_ns, 2 * first_ns);
        for waited_ns in [most_ns / 2, most_ns, 100 * most_ns] {
            trips.note_probe(waited_ns, true, &bounds);
            assert_eq!(trips.probe_ns, (2 * waited_ns).min(most_ns));
        }
        // Another probe follows, the timeout may never come, and no round trip was measured.
        trips.note_probe(100 * most_ns, false, &bounds);
        assert_eq!(trips.probe_ns, most_ns);
        let mut trips = RoundTrips::new(&bounds);
        let most_ns = trips.rtt.rto_ns(&bounds, SESSION_BACKOFF_MAX.into());
        for waited_ns in [most_ns / 4, most_ns / 2, most_ns] {
            trips.note_probe(waited_ns, false, &bounds);
            assert_eq!(trips.probe_ns, (2 * waited_ns).min(most_ns));
        }
    }

    #[test]
    fn back_off__keeps_the_most_doublings_within_the_limit() {
        let mut trips = RoundTrips::new(&RtoBounds::default());
        for (doublings, backoff) in [(2, 2), (1, 2), (SESSION_BACKOFF_MAX + 1, SESSION_BACKOFF_MAX)]
        {
            trips.back_off(doublings);
            assert_eq!(trips.backoff(), backoff);
        }
    }

    panics! {
        note_probe__after_a_timeout: "a probe precedes the first timeout" => {
            let bounds = RtoBounds::default();
            let mut trips = RoundTrips::new(&bounds);
            trips.back_off(1);
            trips.note_probe(1, true, &bounds);
        };
        note_probe__at_the_time_of_its_packet: "a probe is sent after its packet" => {
            let bounds = RtoBounds::default();
            RoundTrips::new(&bounds).note_probe(0, true, &bounds);
        };
    }
}
