//! *REPS*, recycled entropies: a packet takes the path of an unmarked answer, and a random one if there is none
//! (Bonato et al., 2024).

use super::recycled::Recycled;
use super::set::PathSet;
use super::{Feedback, PathId, Random, spray};

/// The paths to use again.
#[derive(Debug, Default)]
pub(super) struct Reps {
    good: Recycled,
}

impl Reps {
    pub(super) fn choose(&mut self, now_ns: u64, set: &mut PathSet, random: &mut Random) -> PathId {
        if let Some(path) = set.due(now_ns) {
            return path;
        }
        let recycled = std::iter::from_fn(|| self.good.pop()).find(|path| set.is_open(*path));
        recycled.unwrap_or_else(|| set.random(random, None))
    }

    pub(super) fn note(&mut self, now_ns: u64, path: PathId, what: Feedback, set: &mut PathSet) {
        if what == Feedback::Good {
            self.good.push(path);
        }
        spray::note_health(now_ns, path, what, set);
    }
}
