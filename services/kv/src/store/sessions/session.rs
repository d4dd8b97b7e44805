//! A session: the results that its client may still request.

use std::collections::VecDeque;

use petrel_planted::planted;

use crate::api::Applied;
use crate::limits::PENDING_WRITES_MAX;

/// Results of the writes from the first pending one on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Session {
    first_pending: u64,
    /// By distance from the first pending write; none while only a later write has been applied.
    results: VecDeque<Option<Applied>>,
}

/// The decision about a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Apply the write.
    New,
    /// The write was already applied, with this result.
    Repeat(Applied),
    /// The result of the write has been forgotten.
    TooOld,
    /// The write is too far ahead.
    TooMany,
}

/// Returns true if a planted defect applies a repeated write again, by its distance from the first pending write.
fn overlooks(distance: u64) -> bool {
    planted("kv_applies_twice") || (planted("kv_repeats_behind_two") && distance >= 2)
}

impl Session {
    /// A session without results.
    pub(crate) fn new(first_pending: u64) -> Session {
        Session { first_pending, results: VecDeque::new() }
    }

    /// Forgets results before `first_pending`, and decides about the write.
    #[inline]
    pub(crate) fn admit(&mut self, sequence: u64, first_pending: u64) -> Admission {
        if first_pending > self.first_pending {
            self.forget_before(first_pending);
        }
        let Some(distance) = sequence.checked_sub(self.first_pending) else {
            return Admission::TooOld;
        };
        if distance >= PENDING_WRITES_MAX {
            return Admission::TooMany;
        }
        match self.results.get(distance as usize) {
            Some(Some(applied)) if !overlooks(distance) => Admission::Repeat(*applied),
            _ => Admission::New,
        }
    }

    /// Returns true if [`admit`](Self::admit) would return [`Admission::New`].
    pub(crate) fn would_admit(&self, sequence: u64, first_pending: u64) -> bool {
        let distance = sequence.checked_sub(first_pending.max(self.first_pending));
        let has_result = |at: u64| matches!(self.results.get(at as usize), Some(Some(_)));
        distance.is_some_and(|distance| distance < PENDING_WRITES_MAX)
            && !has_result(sequence - self.first_pending)
    }

    /// Stores the result of an admitted write.
    #[inline]
    pub(crate) fn record(&mut self, sequence: u64, applied: Applied) {
        let distance = (sequence - self.first_pending) as usize;
        while self.results.len() <= distance {
            self.results.push_back(None);
        }
        self.results[distance] = Some(applied);
    }

    pub(crate) fn first_pending(&self) -> u64 {
        self.first_pending
    }

    /// The results with their distances from the first pending write.
    pub(crate) fn results(&self) -> impl Iterator<Item = (u16, Applied)> {
        (0..).zip(&self.results).filter_map(|(distance, result)| Some((distance, (*result)?)))
    }

    fn forget_before(&mut self, first_pending: u64) {
        let forgotten = (first_pending - self.first_pending).min(self.results.len() as u64);
        self.results.drain(..forgotten as usize);
        self.first_pending = first_pending;
    }
}
