//! What counts as a sign of congestion: a round trip that stays long, and losses that are many.

/// One round: from some moment until a packet sent after that moment is acknowledged. What a
/// controller changes shows in the next round at the earliest, so it decides once a round.
///
/// Of the round trips of a round the shortest counts. A queue lengthens all of them. A host that
/// halts for a while lengthens only those that were on the way: the packets it sends afterwards
/// are quick, and the round was not congested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    started_ns: u64,
    rtt_min_ns: u32,
}

/// The start of a round that has not begun.
const NOT_OPEN: u64 = u64::MAX;

impl Round {
    pub(super) const CLOSED: Self = Self { started_ns: NOT_OPEN, rtt_min_ns: u32::MAX };

    pub(super) fn open(now_ns: u64) -> Self {
        Self { started_ns: now_ns, rtt_min_ns: u32::MAX }
    }

    pub(super) fn is_open(&self) -> bool {
        self.started_ns != NOT_OPEN
    }

    /// Takes a round trip in. If it ends a round of at least `length_ns_min`, gives the round's
    /// shortest, and the next round begins.
    pub(super) fn note(&mut self, now_ns: u64, rtt_ns: u32, length_ns_min: u32) -> Option<u32> {
        debug_assert!(self.is_open());
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

/// Packets over which losses are counted.
const WINDOW_PACKETS: u32 = 64;

/// Losses among them from which on they are a sign of congestion: one in eight. At a random loss of
/// 10⁻² so many come together once in 10⁷ windows; a full switch buffer loses more than this from
/// each sender that does not slow down.
const LOST_PACKETS: u32 = 8;

/// Losses among them from which on nothing grows: one in 21. At a random loss of 10⁻² so many come
/// together in one window of forty.
const SUSPECT_PACKETS: u8 = 3;

/// Losses that a silence counts as, of one timeout or several: one alone is the lost last packet of a
/// message, two with hardly an acknowledgement between them are a path that carries next to nothing.
const TIMEOUT_PACKETS: u8 = 4;

/// What was sent again after a timeout is acknowledged within this time, in nanoseconds, and two round
/// trips, if it was lost. Whatever comes later was only late: the peer's thread had lost its CPU, so the
/// silence says nothing of the network (Eifel, RFC 3522, tells the same by time stamps).
const ANSWER_NS_MAX: u64 = 250_000;

/// How late an answer to what was sent again after a timeout may be to say that something had been
/// lost, in nanoseconds. A session that is held back may have sent it much later than that, so that any
/// answer does.
pub(super) fn answer_ns_max(is_limited: bool, bare_rtt_ns: u32) -> u64 {
    if is_limited { u64::MAX } else { ANSWER_NS_MAX + 2 * u64::from(bare_rtt_ns) }
}

/// Nanoseconds in a unit of the time of the last timeout, as a power of two: 16 bits of it wrap round
/// after 2.1 s, and in a silence timeouts are half a second apart at most (`RtoBounds`).
const TIME_SHIFT: u32 = 15;

/// Tells the losses of a full buffer from those of a bad cable.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    packets: u8,
    lost: u8,
    /// Whether nothing has come since a timeout.
    is_silent: bool,
    /// When the last timeout passed, in units of `TIME_SHIFT`, cut to 16 bits.
    timeout_at: u16,
}

impl Losses {
    /// Whether losses are being counted: acknowledgements have to be counted too.
    pub(super) fn is_counting(&self) -> bool {
        self.lost > 0 || self.is_silent
    }

    /// Whether they are so many that a session should not send faster now.
    pub(super) fn forbid_growth(&self) -> bool {
        self.lost >= SUSPECT_PACKETS
    }

    /// Packets were acknowledged; see [`answer_ns_max`].
    pub(super) fn on_ack(&mut self, now_ns: u64, packets: u32, answer_ns_max: u64) {
        if std::mem::take(&mut self.is_silent) && self.since_timeout_ns(now_ns) > answer_ns_max {
            self.lost = self.lost.saturating_sub(TIMEOUT_PACKETS);
        }
        if self.is_counting() {
            self.advance(packets);
        }
    }

    /// Whether there are now too many.
    pub(super) fn on_loss(&mut self, packets: u32) -> bool {
        let lost = u32::from(self.lost).saturating_add(packets).min(LOST_PACKETS);
        self.lost = lost as u8;
        if lost == LOST_PACKETS {
            // Growth is allowed again at once. To forbid it until a window had come through brought
            // the loss at a switch of 40 packets from 36 to 7 %, but gave all of the link to a few
            // of the senders: for the slow ones a window of packets is a long time.
            self.restart();
            return true;
        }
        self.advance(packets);
        false
    }

    /// Whether a timeout makes them too many. One in a silence counts, however many slots wait and
    /// however often: that the peer is not there, doubled timeouts heed.
    pub(super) fn on_timeout(&mut self, now_ns: u64) -> bool {
        self.timeout_at = (now_ns >> TIME_SHIFT) as u16;
        !std::mem::replace(&mut self.is_silent, true) && self.on_loss(TIMEOUT_PACKETS.into())
    }

    fn advance(&mut self, packets: u32) {
        let packets = u32::from(self.packets).saturating_add(packets);
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

/// Round trips as the controllers keep them: 4.2 s, and no longer.
pub(super) fn narrow_ns(rtt_ns: u64) -> u32 {
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
            // Every other one begins where so many were lost that the count began again.
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

    /// 20 µs after a timeout what was sent again has come through.
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

    /// The count begins again with the timeout's own packets: the next acknowledgement is to be heard
    /// all the same, or the silence would never end.
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
}
