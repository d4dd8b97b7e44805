//! The evidence of congestion: a persistently long round trip, and many losses.

/// One round: from a start until a packet sent after the start is acknowledged. A controller decides once a
/// round, because the effect of a change shows in the next round at the earliest.
///
/// The shortest round trip of a round counts. A queue lengthens all round trips of the round. A host that halts for a
/// while lengthens only the round trips of packets in flight: later packets are quick, and the round was not congested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    started_ns: u64,
    rtt_min_ns: u32,
}

/// The start of a round that is not open.
const NOT_OPEN: u64 = u64::MAX;

impl Round {
    pub(super) const CLOSED: Self = Self { started_ns: NOT_OPEN, rtt_min_ns: u32::MAX };

    pub(super) fn open(now_ns: u64) -> Self {
        Self { started_ns: now_ns, rtt_min_ns: u32::MAX }
    }

    pub(super) fn is_open(&self) -> bool {
        self.started_ns != NOT_OPEN
    }

    /// Adds a round trip. At the end of a round of at least `length_ns_min`, returns the round's shortest
    /// round trip and opens the next round.
    pub(super) fn note(&mut self, now_ns: u64, rtt_ns: u32, length_ns_min: u32) -> Option<u32> {
        assert!(self.is_open(), "a round trip is noted in an open round");
        assert!(now_ns >= self.started_ns, "the time of a round does not go back");
        self.rtt_min_ns = self.rtt_min_ns.min(rtt_ns);
        let sent_ns = now_ns.saturating_sub(u64::from(rtt_ns));
        let is_over =
            sent_ns >= self.started_ns && now_ns - self.started_ns >= u64::from(length_ns_min);
        if !is_over {
            return None;
        }
        let shortest = self.rtt_min_ns;
        *self = Self::open(now_ns);
        Some(shortest)
    }
}

/// The number of packets over which losses are counted.
const WINDOW_PACKETS: u32 = 64;

/// Losses per window that are a sign of congestion: one in eight. A random loss of 10⁻² reaches this number
/// once in 10⁷ windows; a full switch buffer loses more from every sender that does not slow down.
const LOST_PACKETS: u32 = 8;

/// Losses per window that stop growth of the rate: 1 in 21. A random loss of 10⁻² reaches this number in
/// every fortieth window.
const SUSPECT_PACKETS: u8 = 3;

/// The number of losses that a silence of one or more timeouts counts as. A single silence is the lost last
/// packet of a message. Two silences, with hardly an acknowledgement in between, show a path with next to no
/// capacity.
const TIMEOUT_PACKETS: u8 = 4;

/// If a packet was lost, its repetition after a timeout is acknowledged within this time, in nanoseconds,
/// plus two round trips. An acknowledgement after a longer time shows a delay: the peer's thread had lost its
/// CPU, and the silence is no sign of congestion (Eifel, RFC 3522, infers the same from time stamps).
const ANSWER_NS_MAX: u64 = 250_000;

/// Returns the longest time from a timeout to an acknowledgement that still shows a loss, in nanoseconds. A
/// limited session may have sent the repetition much later, and any time counts.
pub(super) fn answer_ns_max(is_limited: bool, base_rtt_ns: u32) -> u64 {
    if is_limited { u64::MAX } else { ANSWER_NS_MAX + 2 * u64::from(base_rtt_ns) }
}

/// The unit of the last timeout's time: 2¹⁵ ns. 16 bits of such units wrap after 2.1 s, and timeouts in a
/// silence are at most half a second apart (`RtoBounds`).
const TIME_SHIFT: u32 = 15;

/// Distinguishes losses in a full buffer from losses on a bad cable.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    packets: u8,
    lost: u8,
    /// True from a timeout until the next acknowledgement.
    is_silent: bool,
    /// The time of the last timeout, in units of 2^`TIME_SHIFT` ns, cut to 16 bits.
    timeout_at: u16,
}

impl Losses {
    /// Returns true if losses are being counted: then acknowledgements must be counted too.
    pub(super) fn is_counting(&self) -> bool {
        self.lost > 0 || self.is_silent
    }

    /// Returns true if the losses forbid a higher rate for now.
    pub(super) fn forbid_growth(&self) -> bool {
        self.lost >= SUSPECT_PACKETS
    }

    /// Counts acknowledged packets; see [`answer_ns_max`].
    pub(super) fn on_ack(&mut self, now_ns: u64, packets: u32, answer_ns_max: u64) {
        if std::mem::take(&mut self.is_silent) && self.since_timeout_ns(now_ns) > answer_ns_max {
            self.lost = self.lost.saturating_sub(TIMEOUT_PACKETS);
        }
        if self.is_counting() {
            self.advance(packets);
        }
    }

    /// Counts losses. Returns true if they are now too many.
    pub(super) fn on_loss(&mut self, packets: u32) -> bool {
        let lost = u32::from(self.lost).saturating_add(packets).min(LOST_PACKETS);
        self.lost = lost as u8;
        if lost == LOST_PACKETS {
            // Growth is allowed again at once. Forbidding growth until a window had come through was tried:
            // the loss at a switch of 40 packets fell from 36 to 7 %, but a few senders got all of the link.
            // For the slow ones a window of packets is a long time.
            self.restart();
            return true;
        }
        self.advance(packets);
        false
    }

    /// Counts a timeout. Returns true if the losses are now too many. A silence counts once, for any number
    /// of slots and timeouts: against an absent peer, doubled timeouts are enough.
    pub(super) fn on_timeout(&mut self, now_ns: u64) -> bool {
        self.timeout_at = (now_ns >> TIME_SHIFT) as u16;
        !std::mem::replace(&mut self.is_silent, true) && self.on_loss(TIMEOUT_PACKETS.into())
    }

    fn advance(&mut self, packets: u32) {
        let packets = u32::from(self.packets).saturating_add(packets);
        assert!(u32::from(self.lost) < LOST_PACKETS, "too many losses end their window at once");
        match packets < WINDOW_PACKETS {
            true => self.packets = packets as u8,
            false => self.restart(),
        }
    }

    fn since_timeout_ns(&self, now_ns: u64) -> u64 {
        let passed = ((now_ns >> TIME_SHIFT) as u16).wrapping_sub(self.timeout_at);
        u64::from(passed) << TIME_SHIFT
    }

    fn restart(&mut self) {
        (self.packets, self.lost) = (0, 0);
    }
}

const _: () = assert!(WINDOW_PACKETS <= u8::MAX as u32 && LOST_PACKETS < WINDOW_PACKETS);

/// Returns a round trip as the controllers store it: at most 4.2 s.
pub(super) fn saturating_u32_ns(rtt_ns: u64) -> u32 {
    u32::try_from(rtt_ns).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round__ends_with_a_packet_sent_in_it() {
        let mut round = Round::open(1_000);
        assert_eq!(round.note(1_500, 900, 0), None, "sent at 600");
        assert_eq!(round.note(1_600, 700, 0), None, "sent at 900");
        assert_eq!(round.note(1_800, 800, 0), Some(700), "sent at 1 000");
        assert_eq!(round.note(2_300, 500, 0), Some(500), "the next one began at 1 800");
    }

    #[test]
    fn round__lasts_its_least_length() {
        let mut round = Round::open(1_000);
        assert_eq!(round.note(1_100, 50, 300), None);
        assert_eq!(round.note(1_299, 90, 300), None);
        assert_eq!(round.note(1_300, 90, 300), Some(50));
    }

    #[test]
    fn losses__one_in_eight_is_too_many() {
        let mut losses = Losses::default();
        for _ in 0..7 {
            assert!(!losses.on_loss(1));
            losses.on_ack(0, 7, ANSWER_NS_MAX);
        }
        assert!(losses.on_loss(1), "the eighth, of 57 packets");
        assert!(!losses.is_counting(), "the count begins again");
    }

    #[test]
    fn losses__fewer_are_not() {
        let mut losses = Losses::default();
        for _ in 0..10_000 {
            assert!(!losses.on_loss(1));
            losses.on_ack(0, 9, ANSWER_NS_MAX);
        }
    }

    #[test]
    fn losses__three_of_a_window_forbid_growth() {
        let mut losses = Losses::default();
        losses.on_loss(2);
        assert!(!losses.forbid_growth());
        losses.on_loss(1);
        assert!(losses.forbid_growth());
        losses.on_ack(0, 61, ANSWER_NS_MAX);
        assert!(!losses.forbid_growth(), "the window is over");
    }

    #[test]
    fn losses__each_window_has_as_many_packets() {
        let mut losses = Losses::default();
        for window in 0..6 {
            // Every second window begins where many losses restarted the count.
            if window % 2 == 1 {
                assert!(losses.on_loss(LOST_PACKETS));
            }
            assert!(!losses.on_loss(1));
            losses.on_ack(0, WINDOW_PACKETS - 2, ANSWER_NS_MAX);
            assert!(losses.is_counting(), "a packet is missing of window {window}");
            losses.on_ack(0, 1, ANSWER_NS_MAX);
            assert!(!losses.is_counting(), "window {window} is over");
        }
    }

    /// The repetition is acknowledged 20 µs after the timeout.
    #[test]
    fn losses__two_timeouts_are_too_many() {
        let mut losses = Losses::default();
        assert!(!losses.on_timeout(1_000_000));
        losses.on_ack(1_020_000, 10, ANSWER_NS_MAX);
        assert!(losses.on_timeout(3_000_000));
        losses.on_ack(3_020_000, 64, ANSWER_NS_MAX);
        assert!(!losses.on_timeout(9_000_000), "a window of packets has come through since");
    }

    #[test]
    fn losses__a_silence_counts_once() {
        let mut losses = Losses::default();
        for at_ns in [1_000_000, 1_000_000, 3_000_000, 7_000_000] {
            assert!(!losses.on_timeout(at_ns));
        }
        losses.on_ack(7_020_000, 1, ANSWER_NS_MAX);
        assert!(losses.on_timeout(8_000_000), "and the next silence, too");
    }

    #[test]
    fn losses__a_peer_that_stood_still_does_not_count() {
        let mut losses = Losses::default();
        for round in 0..1_000 {
            let began_ns = round * 20_000_000;
            assert!(!losses.on_timeout(began_ns + 1_000_000));
            assert!(!losses.on_timeout(began_ns + 3_000_000));
            losses.on_ack(began_ns + 4_000_000, 1, ANSWER_NS_MAX);
            assert!(!losses.is_counting());
        }
    }

    /// The count restarts with the timeout's own packets. The next acknowledgement must still be counted, or
    /// the silence would never end.
    #[test]
    fn losses__a_silence_ends_where_nothing_else_counts() {
        let mut losses = Losses::default();
        losses.on_loss(1);
        losses.on_ack(0, 61, ANSWER_NS_MAX);
        assert!(!losses.on_timeout(1_000_000));
        assert!(losses.is_counting());
        losses.on_ack(1_020_000, 1, ANSWER_NS_MAX);
        assert!(!losses.is_counting());
        assert!(!losses.on_timeout(2_000_000), "another silence");
        losses.on_ack(2_020_000, 1, ANSWER_NS_MAX);
        assert!(losses.on_timeout(3_000_000));
    }

    #[test]
    fn answer_ns_max__is_two_round_trips_and_a_while() {
        assert_eq!(answer_ns_max(false, 0), 250_000);
        assert_eq!(answer_ns_max(false, 10_000), 270_000);
        assert_eq!(answer_ns_max(true, 10_000), u64::MAX);
    }

    #[test]
    fn losses__an_answer_is_late_beyond_the_most() {
        let passed_ns = 8 << TIME_SHIFT;
        for (answer_ns_max, counts) in [(passed_ns, true), (passed_ns - 1, false)] {
            let mut losses = Losses::default();
            assert!(!losses.on_timeout(1 << TIME_SHIFT));
            losses.on_ack((1 << TIME_SHIFT) + passed_ns, 1, answer_ns_max);
            assert_eq!(losses.on_timeout(2 << 20), counts);
        }
    }

    #[test]
    fn losses__what_is_held_back_or_far_away_may_be_answered_late() {
        for (answer_ns_max, counts) in [
            (answer_ns_max(false, 10_000), false),
            (answer_ns_max(false, 400_000), true),
            (answer_ns_max(true, 10_000), true),
        ] {
            let mut losses = Losses::default();
            assert!(!losses.on_timeout(1_000_000));
            losses.on_ack(1_600_000, 1, answer_ns_max);
            assert_eq!(losses.on_timeout(3_000_000), counts);
        }
    }

    panics! {
        note__before_the_round: "the time of a round does not go back" => {
            let mut round = Round::open(2);
            round.note(1, 1, 0);
        };
        note__in_a_closed_round: "a round trip is noted in an open round" => {
            let mut round = Round::CLOSED;
            round.note(1, 1, 0);
        };
    }
}
