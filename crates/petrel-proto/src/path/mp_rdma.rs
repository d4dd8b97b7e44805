//! *MP-RDMA* (§3): acknowledgements clock packets out on their own paths, without any state of a path.
//!
//! The policy follows the paper in the window (§3.2), the limits to disorder (§3.3), and recovery, probing, burst timer
//! and restart (§3.5). Petrel differs in two places on purpose. A loss has its evidence earlier than by an overflow of the
//! receiver's bitmap (§14.4 of the wire protocol), and a sender stops at the end of that bitmap instead of filling the
//! network with packets that the receiver has to drop.
//!
//! US patent 11,934,340 describes this scheme. So the policy is used by name only, never by a default.

use petrel_planted::planted;

use super::recycled::Recycled;
use super::set::PathSet;
use super::window::SharedWindow;
use super::{Disorder, Feedback, PathId, Random};

/// The first window, in packets: the bandwidth-delay product of 40 Gbit/s and 9 µs (§5.1 uses one such
/// product).
const FIRST_PACKETS: u32 = 32;

/// One round trip in this many looks for another path, by one packet (§3.5: 1 %). With one packet in as many, up to one per round
/// trip, packets moved from fast paths to slow ones: marks of unequal paths differed by 1.8 times, in place of 1.04.
const PROBE_ONE_IN: u32 = 100;

/// Round trips without a packet after which the window begins anew (§3.5).
const IDLE_ROUND_TRIPS: u64 = 3;

/// The clock and the window.
#[derive(Debug)]
pub(super) struct MpRdma {
    window: SharedWindow,
    /// Paths whose answers clock a packet out.
    clocked: Recycled,
    answered_ns: u64,
    /// The last draw of a probe, and the time since which a repetition waits for an answer: see [`step`].
    probe_step: u32,
    waiting_step: Option<NonZeroStep>,
    disorder: Disorder,
    /// The path of the last answer that was not late.
    good: PathId,
    /// The last path without an answer that clocked the packet out.
    turn: PathId,
}

/// A time in steps of 256 ns modulo 2^32, odd to be no zero.
type NonZeroStep = std::num::NonZeroU32;

/// The paper adds 66 bytes to a connection, beside the receiver's bitmap (Table 1).
const _: () = assert!(size_of::<MpRdma>() <= 66, "the policy has the memory of the paper's");

impl MpRdma {
    pub(super) fn new(packets_most: u32, disorder: Disorder) -> Self {
        Self {
            window: SharedWindow::new(FIRST_PACKETS, packets_most),
            clocked: Recycled::default(),
            answered_ns: 0,
            probe_step: 0,
            waiting_step: None,
            disorder,
            good: PathId::FIRST,
            turn: PathId::FIRST,
        }
    }

    /// Returns how many new packets may be sent: those of the window, and those that answers have clocked out.
    pub(super) fn room(&self, set: &PathSet) -> u32 {
        self.window.packets().saturating_sub(set.in_flight()).max(self.clocked.count())
    }

    pub(super) fn disorder(&self) -> Disorder {
        self.disorder
    }

    /// Returns the time of the burst timer: packets that no answer clocks out leave after half a round trip.
    pub(super) fn burst_ns(&self, set: &PathSet) -> u64 {
        self.answered_ns + set.srtt_least_ns() / 2
    }

    /// Returns the packets that answers have clocked out, and that were not sent yet.
    pub(super) fn clocked(&self) -> u32 {
        self.clocked.count()
    }

    pub(super) fn choose(
        &mut self,
        now_ns: u64,
        set: &PathSet,
        random: &mut Random,
    ) -> Option<PathId> {
        let srtt_ns = set.srtt_least_ns();
        if set.in_flight() == 0 && now_ns >= self.answered_ns + IDLE_ROUND_TRIPS * srtt_ns {
            self.window.restart(FIRST_PACKETS);
            self.clocked.clear();
        }
        match self.clocked.pop() {
            Some(_) if self.is_probe(now_ns, srtt_ns, random) => Some(set.random(random, None)),
            Some(path) => Some(path),
            None if set.in_flight() >= self.window.packets() => None,
            None => (now_ns >= self.burst_ns(set)).then(|| self.in_turn(set)),
        }
    }

    /// Paths take turns, so that the first window reaches as many paths as the paper's (§3.2).
    fn in_turn(&mut self, set: &PathSet) -> PathId {
        self.turn = self.turn.ahead(1, set.count());
        self.turn
    }

    fn is_probe(&mut self, now_ns: u64, srtt_ns: u64, random: &mut Random) -> bool {
        let is_due = u64::from(step(now_ns).wrapping_sub(self.probe_step)) >= srtt_ns >> STEP_LOG2;
        if is_due {
            self.probe_step = step(now_ns);
        }
        is_due && random.below(PROBE_ONE_IN) == 0
    }

    /// Returns the path for a repetition: that of an answer which clocks the repetition out. `None` if the repetition
    /// has to wait for an answer. After half a round trip the burst timer lets the repetition go on the path of the
    /// last answer, or on a random one if the lost copy took the same. (Without a limit a slot could wait for ever, while
    /// others took all answers.)
    pub(super) fn choose_again(
        &mut self,
        now_ns: u64,
        last: PathId,
        set: &PathSet,
        random: &mut Random,
    ) -> Option<PathId> {
        if let Some(path) = self.clocked.pop() {
            self.waiting_step = None;
            return Some(if planted("proto_repetition_on_lost_path") { last } else { path });
        }
        let since = *self.waiting_step.get_or_insert(NonZeroStep::MIN | step(now_ns));
        let half_ns = set.srtt_least_ns() / 2;
        let waited_ns = u64::from((step(now_ns) | 1).wrapping_sub(since.get())) << STEP_LOG2;
        if waited_ns < half_ns && now_ns < self.burst_ns(set) {
            return None;
        }
        Some(if self.good == last { set.random(random, Some(last)) } else { self.good })
    }

    /// An answer clocks out as many packets as the window has room for, but two at most, and none if it was late. Losses
    /// are no answers: they neither clock a packet out nor move the burst timer.
    pub(super) fn note(
        &mut self,
        now_ns: u64,
        path: PathId,
        what: Feedback,
        set: &PathSet,
        random: &mut Random,
    ) {
        self.window.note(what);
        if matches!(what, Feedback::Lost | Feedback::TimedOut) && !planted("proto_loss_clocks") {
            return;
        }
        self.answered_ns = now_ns;
        if what != Feedback::Late {
            self.good = path;
            let promised = set.in_flight() + self.clocked.count();
            let clocked = self.window.clocked(promised, what == Feedback::Marked, random);
            let has_place = (0..clocked).all(|_| self.clocked.push(path));
            if !has_place {
                // Use it or lose it (§3.5): the sender had no packet for the last 32 answers.
                self.window.lose();
            }
        }
    }
}

const STEP_LOG2: u32 = 8;

fn step(now_ns: u64) -> u32 {
    (now_ns >> STEP_LOG2) as u32
}
