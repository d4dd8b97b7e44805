//! The timer of a client slot (`docs/wire-protocol.md` §7): the packet whose round trip is measured, the time of
//! the next look for loss, and the probes and timeouts since the server's last sign.

use petrel_planted::planted;

use super::round_trips::{QUESTION_MAX, RoundTrips};
use super::rtt::RtoBounds;

/// No packet is being measured.
const NOT_TIMED: u32 = u32::MAX;

/// The measured packet is the only repetition of a request of one packet; the CREDIT that answers the
/// repetition ends the measurement (§7.1).
const TIMED_REPEAT: u32 = u32::MAX - 1;

/// The answer to a question about a response's missing packets ends the measurement (§7.1).
const TIMED_QUESTION: u32 = u32::MAX - 2;

/// Some probes were sent, and a further probe may follow, or none.
const PROBED_AND_MORE: u8 = 1;
const PROBED: u8 = 2;

/// A PULL is to be sent at the next opportunity, even without raising the limit.
const PULL_DUE: u8 = 1;
/// Another slot asks the silent server for the whole session.
const PUT_OFF: u8 = 2;
/// The place of the question's number.
const QUESTION_SHIFT: u32 = 2;

/// The timer of a client slot.
///
/// Fields set together are side by side, for the compiler to merge their stores with the slot's.
#[repr(C)]
pub(crate) struct LossTimer {
    /// The packet whose round trip is being measured, sent once so far; or [`NOT_TIMED`], [`TIMED_REPEAT`] or
    /// [`TIMED_QUESTION`].
    packet: u32,
    /// Doublings of the timeout since the last frame taken.
    backoff: u8,
    /// Timeouts since the last frame taken.
    unanswered: u8,
    /// Whether probes were sent since the last frame taken: none, some, or [all](PROBED).
    probed: u8,
    /// [`PULL_DUE`], and [`PUT_OFF`] with the number of a question above.
    marks: u8,
    /// When the timer fires, in nanoseconds.
    deadline_ns: u64,
    /// The time at which the measured packet was sent; in WAITING the time at which the slot entered WAITING.
    since_ns: u64,
}

const _: () = assert!(size_of::<LossTimer>() == 24);

impl LossTimer {
    pub(crate) const fn new() -> Self {
        Self {
            packet: NOT_TIMED,
            backoff: 0,
            unanswered: 0,
            probed: 0,
            marks: 0,
            deadline_ns: 0,
            since_ns: 0,
        }
    }

    /// Forgets the probes and timeouts of an earlier call.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        self.marks = 0;
        self.backoff = 0;
        self.unanswered = 0;
        self.probed = 0;
    }

    /// Notes that the server gave a sign which brought the slot forward.
    #[inline]
    pub(crate) fn note_progress(&mut self) {
        self.unanswered = 0;
        self.backoff = 0;
        self.probed = 0;
    }

    /// Notes a sign of the server: the slot need not wait for the answer to another question. Returns true if a probe or a
    /// timeout has asked for a sign.
    #[inline]
    pub(crate) fn note_sign(&mut self) -> bool {
        let was_asked = self.is_asking();
        self.unanswered = 0;
        self.marks &= PULL_DUE;
        was_asked
    }

    /// Measures the round trip of a packet just sent for the first time.
    #[inline(always)]
    pub(crate) fn measure(&mut self, packet: u32, now_ns: u64) {
        self.packet = packet;
        self.since_ns = now_ns;
    }

    /// As [`LossTimer::measure`], unless a packet is being measured.
    #[inline]
    pub(crate) fn measure_next(&mut self, packet: u32, now_ns: u64) {
        if self.packet == NOT_TIMED {
            self.measure(packet, now_ns);
        }
    }

    /// Ends a measurement without a result.
    #[inline(always)]
    pub(crate) fn measure_nothing(&mut self) {
        self.packet = NOT_TIMED;
    }

    /// Notes a repetition of a request's packet: the packet's round trip cannot be measured (Karn), unless a CREDIT
    /// names the repetition.
    pub(crate) fn note_repeat(&mut self, packet: u32, is_single: bool, now_ns: u64) {
        assert!(packet < TIMED_QUESTION, "a packet that is repeated has an index");
        if planted("proto_karn") {
            // The packet is measured from the first copy on.
        } else if is_single && self.packet == 0 {
            self.packet = TIMED_REPEAT;
            self.since_ns = now_ns;
        } else if self.packet == packet || self.packet == TIMED_REPEAT {
            self.packet = NOT_TIMED;
        }
    }

    /// Measures the time until the answer to a question about a response's missing packets, from `since_ns` on.
    pub(crate) fn measure_question(&mut self, since_ns: u64) {
        assert!(self.packet == NOT_TIMED, "nothing else of a response is measured");
        self.packet = TIMED_QUESTION;
        self.since_ns = since_ns;
    }

    /// Ends the measurement of a question. Returns its beginning.
    pub(crate) fn take_question(&mut self) -> Option<u64> {
        if self.packet != TIMED_QUESTION {
            return None;
        }
        self.packet = NOT_TIMED;
        Some(self.since_ns)
    }

    /// Returns the measured packet, which was sent once.
    #[inline]
    pub(crate) fn measured(&self) -> Option<u32> {
        (self.packet < TIMED_QUESTION).then_some(self.packet)
    }

    /// Returns true if the only repetition of a request of one packet is measured.
    #[inline]
    pub(crate) fn measures_repeat(&self) -> bool {
        self.packet == TIMED_REPEAT
    }

    /// Returns true if a packet or a repetition is being measured.
    pub(crate) fn is_measuring(&self) -> bool {
        self.packet != NOT_TIMED
    }

    /// Ends the measurement. Returns the time of the packet's transmission, if the packet was sent once only
    /// (Karn).
    #[inline(always)]
    pub(crate) fn take_measured(&mut self) -> Option<u64> {
        let packet = core::mem::replace(&mut self.packet, NOT_TIMED);
        (packet < TIMED_QUESTION).then_some(self.since_ns)
    }

    /// Returns the time at which the measured packet was sent, or at which the slot entered WAITING.
    #[inline(always)]
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Notes that the server has the whole request: no packet is measured, and the wait for the response
    /// begins.
    pub(crate) fn enter_waiting(&mut self, now_ns: u64) {
        self.packet = NOT_TIMED;
        self.since_ns = now_ns;
    }

    /// Sets the time of the next look for loss.
    #[inline(always)]
    pub(crate) fn set_deadline(&mut self, deadline_ns: u64) {
        self.deadline_ns = deadline_ns;
    }

    /// Returns the time of the next look for loss, in nanoseconds.
    #[inline(always)]
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Sets the time of the next look for loss by the round trips of the session, and by the probes and
    /// timeouts so far.
    #[inline]
    pub(crate) fn restart(&mut self, now_ns: u64, trips: &RoundTrips, bounds: &RtoBounds) {
        let backoff = self.backoff.max(trips.backoff());
        let rto_ns = match backoff {
            0 if self.probed < PROBED => trips.probe_ns(),
            _ => trips.rto_ns(bounds, backoff),
        };
        self.deadline_ns = now_ns + rto_ns;
        // The slot has sent, or has come forward.
        self.marks &= PULL_DUE;
    }

    /// Sets the time of the next look for the response of a request that still runs: the next silence counts as the
    /// first again.
    pub(crate) fn look_again(&mut self, deadline_ns: u64) {
        assert!(deadline_ns > self.since_ns, "the next look follows the beginning of the wait");
        self.backoff = 0;
        self.probed = 0;
        self.deadline_ns = deadline_ns;
    }

    /// Returns true if nothing was repeated since the last frame taken, and the session's timeouts are not
    /// doubled.
    pub(crate) fn is_probe_due(&self, trips: &RoundTrips) -> bool {
        self.probed < PROBED && self.unanswered == 0 && self.backoff.max(trips.backoff()) == 0
    }

    /// Notes a probe: the last probe before the first timeout, or a probe that further probes may follow.
    pub(crate) fn note_probe(&mut self, is_last: bool) {
        assert!(
            self.probed < PROBED && self.unanswered == 0,
            "a slot probes before its first timeout, and after its last probe no more"
        );
        self.probed = if is_last { PROBED } else { PROBED_AND_MORE };
    }

    /// Notes a timeout. The slot's timeout was doubled as often as the session's, and is doubled further from
    /// there.
    pub(crate) fn note_timeout(&mut self, trips: &RoundTrips) {
        assert!(self.unanswered < u8::MAX, "a call ends at the limit of unanswered timeouts");
        self.unanswered += 1;
        if !planted("proto_no_backoff") {
            self.backoff = self.backoff.max(trips.backoff()).saturating_add(1);
        }
    }

    /// Returns the doublings of the timeout since the last frame taken.
    pub(crate) fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Returns the timeouts since the last frame taken.
    #[inline]
    pub(crate) fn unanswered(&self) -> u8 {
        self.unanswered
    }

    /// Requests a PULL.
    #[inline]
    pub(crate) fn ask(&mut self) {
        self.marks |= PULL_DUE;
    }

    #[inline]
    pub(crate) fn is_pull_due(&self) -> bool {
        self.marks & PULL_DUE != 0
    }

    /// Notes that the PULL was sent.
    #[inline]
    pub(crate) fn note_asked(&mut self) {
        assert!(self.is_pull_due(), "a PULL is sent when one is due");
        self.marks &= !PULL_DUE;
    }

    /// Returns true if a probe or a timeout of the slot asks the server, which has not answered.
    pub(crate) fn is_asking(&self) -> bool {
        self.probed > 0 || self.unanswered > 0
    }

    /// Waits for the answer to the question of another slot.
    pub(crate) fn put_off(&mut self, question: u8) {
        assert!(question <= QUESTION_MAX, "the number of a question has six bits");
        self.marks = self.marks & PULL_DUE | PUT_OFF | question << QUESTION_SHIFT;
    }

    /// Returns true if the slot waits for the answer to the question of another slot.
    pub(crate) fn is_put_off(&self) -> bool {
        self.marks & PUT_OFF != 0
    }

    /// Ends the wait for the answer to the question of another slot. Returns the question's number, if the slot waited.
    pub(crate) fn take_put_off(&mut self) -> Option<u8> {
        let marks = self.marks;
        self.marks &= PULL_DUE;
        (marks & PUT_OFF != 0).then_some(marks >> QUESTION_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trips() -> RoundTrips {
        RoundTrips::new(&RtoBounds::default())
    }

    /// Karn's rule, and its one exception.
    #[test]
    fn note_repeat__ends_the_measurement_of_the_packet() {
        for (measured, repeated, is_single, left, repeat) in [
            (4, 4, false, None, false),
            (4, 3, false, Some(4), false),
            (0, 0, true, None, true),
            (0, 0, false, None, false),
        ] {
            let mut timer = LossTimer::new();
            timer.measure(measured, 10);
            timer.note_repeat(repeated, is_single, 20);
            assert_eq!((timer.measured(), timer.measures_repeat()), (left, repeat));
            assert_eq!(timer.since_ns(), if repeat { 20 } else { 10 });
            timer.note_repeat(repeated, is_single, 30);
            assert!(!timer.measures_repeat(), "a second repetition is measured by nothing");
        }
    }

    #[test]
    fn take_measured__of_a_packet_that_was_sent_once() {
        let mut timer = LossTimer::new();
        assert_eq!(timer.take_measured(), None);
        timer.measure_next(7, 10);
        timer.measure_next(8, 20);
        assert_eq!((timer.measured(), timer.take_measured()), (Some(7), Some(10)));
        assert_eq!((timer.is_measuring(), timer.take_measured()), (false, None));
        timer.measure(0, 30);
        timer.note_repeat(0, true, 40);
        assert_eq!((timer.is_measuring(), timer.take_measured()), (true, None));
    }

    #[test]
    fn note_progress__begins_the_search_for_what_was_lost_anew() {
        let mut timer = LossTimer::new();
        timer.note_probe(true);
        timer.note_timeout(&trips());
        assert!(!timer.is_probe_due(&trips()));
        timer.note_progress();
        assert_eq!((timer.unanswered(), timer.backoff()), (0, 0));
        assert!(timer.is_probe_due(&trips()));
    }

    #[test]
    fn put_off__ends_with_a_sign_and_when_the_slot_sends() {
        let mut timer = LossTimer::new();
        timer.ask();
        timer.put_off(QUESTION_MAX);
        assert_eq!((timer.is_put_off(), timer.take_put_off()), (true, Some(QUESTION_MAX)));
        assert_eq!(timer.take_put_off(), None);
        timer.put_off(3);
        timer.restart(10, &trips(), &RtoBounds::default());
        assert!(!timer.is_put_off());
        timer.put_off(3);
        timer.note_sign();
        assert!(!timer.is_put_off() && timer.is_pull_due(), "the PULL stays due");
    }

    #[test]
    fn note_sign__says_whether_it_was_asked_for() {
        let mut timer = LossTimer::new();
        assert!(!timer.note_sign());
        timer.note_probe(true);
        assert!(timer.note_sign() && timer.note_sign(), "the probe is not answered yet");
        timer.look_again(50);
        assert!(!timer.note_sign() && timer.deadline_ns() == 50);
        timer.note_timeout(&trips());
        assert!(timer.note_sign());
        assert_eq!(timer.unanswered(), 0);
    }

    /// The first look is the probe's; after a probe, and with doubled timeouts, it is a timeout.
    #[test]
    fn restart__by_the_probes_and_timeouts_so_far() {
        let (bounds, mut trips, mut timer) = (RtoBounds::default(), trips(), LossTimer::new());
        trips.sample(1_000_000, 900_000, &bounds);
        let after = |timer: &mut LossTimer, trips: &RoundTrips| {
            timer.restart(5, trips, &bounds);
            timer.deadline_ns() - 5
        };
        assert_eq!(after(&mut timer, &trips), trips.probe_ns());
        timer.note_probe(true);
        assert_eq!(after(&mut timer, &trips), trips.rto_ns(&bounds, 0));
        timer.note_timeout(&trips);
        assert_eq!(after(&mut timer, &trips), trips.rto_ns(&bounds, 1));
        timer.note_progress();
        trips.back_off(3);
        assert_eq!(after(&mut timer, &trips), trips.rto_ns(&bounds, 3));
    }

    #[test]
    fn begin__leaves_nothing_of_the_call_before() {
        let mut timer = LossTimer::new();
        timer.note_probe(true);
        timer.note_timeout(&trips());
        timer.ask();
        timer.begin();
        assert!(!timer.is_pull_due() && timer.is_probe_due(&trips()));
        assert_eq!((timer.unanswered(), timer.backoff()), (0, 0));
    }

    #[test]
    fn note_probe__another_one_may_follow_before_the_first_timeout() {
        let (trips, mut timer) = (trips(), LossTimer::new());
        timer.begin();
        for is_last in [false, false, true] {
            assert!(timer.is_probe_due(&trips));
            timer.note_probe(is_last);
            assert!(timer.note_sign());
        }
        assert!(!timer.is_probe_due(&trips));
        timer.note_progress();
        assert!(timer.is_probe_due(&trips) && !timer.note_sign());
    }

    panics! {
        note_probe__twice: "after its last probe no more" => {
            let mut timer = LossTimer::new();
            (0..2).for_each(|_| timer.note_probe(true));
        };
        note_asked__without_a_reason_to_ask: "a PULL is sent when one is due"
            => LossTimer::new().note_asked();
        look_again__before_the_wait_began: "the next look follows the beginning of the wait" => {
            let mut timer = LossTimer::new();
            timer.enter_waiting(2);
            timer.look_again(1);
        };
    }
}
