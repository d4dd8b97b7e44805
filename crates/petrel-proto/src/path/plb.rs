//! *PLB*: one path at a time, and a new path when the path is congested or dead (Qureshi et al., SIGCOMM 2022;
//! protective reroute, Wetherall et al., SIGCOMM 2023).

use super::set::PathSet;
use super::{Feedback, PathId, Random};

/// Rounds with marks in a row after which the path is changed. PLB's paper uses 3.
const MARKED_ROUNDS: u8 = 3;

/// The path in use, and the marks of the present round.
#[derive(Debug)]
pub(super) struct Plb {
    path: PathId,
    /// Marked rounds in a row.
    marked_rounds: u8,
    /// Answers of this round, and the marked ones among them.
    answers: u32,
    marked: u32,
    round_ends_ns: u64,
    /// Feedback on packets sent before this time was caused by the former path.
    changed_ns: u64,
}

impl Plb {
    pub(super) fn new(first: PathId) -> Self {
        Self {
            path: first,
            marked_rounds: 0,
            answers: 0,
            marked: 0,
            round_ends_ns: 0,
            changed_ns: 0,
        }
    }

    pub(super) fn path(&self) -> PathId {
        self.path
    }

    #[inline]
    pub(super) fn note(
        &mut self,
        now_ns: u64,
        path: PathId,
        what: Feedback,
        set: &PathSet,
        random: &mut Random,
    ) {
        if path != self.path {
            return;
        }
        if what != Feedback::TimedOut && self.is_in_round(now_ns) {
            return self.count(what);
        }
        self.end_round(now_ns, what, set, random);
    }

    #[inline]
    fn count(&mut self, what: Feedback) {
        self.answers += 1;
        self.marked += u32::from(what == Feedback::Marked);
    }

    /// Handles the answer that ends a round, or a timeout: a congested or dead path is replaced.
    #[inline(never)]
    fn end_round(&mut self, now_ns: u64, what: Feedback, set: &PathSet, random: &mut Random) {
        let srtt_ns = set.srtt_ns(self.path).unwrap_or(0);
        let is_dead = what == Feedback::TimedOut && now_ns >= self.changed_ns + srtt_ns;
        if is_dead || self.is_congested(now_ns, what, srtt_ns) {
            self.path = set.random(random, Some(self.path));
            (self.marked_rounds, self.answers, self.marked) = (0, 0, 0);
            (self.changed_ns, self.round_ends_ns) = (now_ns, now_ns + srtt_ns);
        }
    }

    /// Returns true if good answers do not end the present round.
    #[inline]
    pub(super) fn is_in_round(&self, now_ns: u64) -> bool {
        now_ns < self.round_ends_ns
    }

    /// Counts good answers that do not end the round.
    pub(super) fn note_goods(&mut self, path: PathId, count: u32) {
        if path == self.path {
            self.answers += count;
        }
    }

    /// Counts an answer. Returns true at the end of [`MARKED_ROUNDS`] rounds in a row with marks on at least half of
    /// the answers.
    fn is_congested(&mut self, now_ns: u64, what: Feedback, srtt_ns: u64) -> bool {
        self.count(what);
        if self.is_in_round(now_ns) {
            return false;
        }
        assert!(self.marked <= self.answers, "a marked answer is an answer of its round");
        let is_marked = 2 * self.marked >= self.answers;
        self.marked_rounds = if is_marked { self.marked_rounds + 1 } else { 0 };
        (self.answers, self.marked, self.round_ends_ns) = (0, 0, now_ns + srtt_ns);
        self.marked_rounds >= MARKED_ROUNDS
    }
}
