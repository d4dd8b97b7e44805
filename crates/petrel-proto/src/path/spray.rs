//! *Spray*: each packet takes a random open path.

use super::set::PathSet;
use super::{Feedback, PathId, Random};

/// Good answers to looks that open a closed path again.
const GOODS_TO_OPEN: u8 = 4;

/// Closed paths are at most this share of all, in quarters: with more of them the network loses packets, not a
/// path.
const CLOSED_QUARTERS_MAX: u32 = 3;

/// Returns the next path to use: one to look at, or a random open one.
pub(super) fn choose(now_ns: u64, set: &mut PathSet, random: &mut Random) -> PathId {
    set.due(now_ns).unwrap_or_else(|| set.random(random, None))
}

/// Closes a path that lost a packet, and opens it after some good answers.
pub(super) fn note_health(now_ns: u64, path: PathId, what: Feedback, set: &mut PathSet) {
    match what {
        Feedback::Good => {
            if set.note_good(path) >= GOODS_TO_OPEN && !set.is_open(path) {
                set.open(path);
            }
        }
        // A closed path that was always due would keep the others from being looked at.
        _ if !set.is_open(path) => set.note_failed_look(now_ns, path),
        Feedback::Marked | Feedback::Late => {}
        Feedback::Lost | Feedback::TimedOut => {
            let closed = set.count() - set.open_count();
            let may_close = (closed + 1) * 4 <= set.count() * CLOSED_QUARTERS_MAX;
            if may_close {
                set.close(now_ns, path);
            }
        }
    }
}
