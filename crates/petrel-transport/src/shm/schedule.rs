//! The choice and order of the rings to poll.
//!
//! An endpoint may have hundreds of peers of which few talk at a time. A look at an idle ring costs
//! a load from a line no other core changes. Hundreds of looks are more than an empty turn of the
//! event loop should cost, and push the application's data out of the first-level cache.
//!
//! So rings are *hot* or *cold*. Every burst polls all hot rings, and a few cold ones in turn. A
//! frame makes a cold ring hot; [`COOLING_POLLS`] vain looks make a hot ring cold. A cold ring's
//! first frame waits for at most `cold / COLD_RINGS_PER_BURST` bursts. With 1000 peers the bursts
//! take the time of some hundred empty polls, about ten microseconds. All its later frames are seen
//! at once. Endpoints with few peers have no cold rings at all. (A bitmap set by producers would
//! find the ready rings without a look, but costs every producer an atomic read-modify-write on a
//! contended line.)
//!
//! A burst starts behind the ring where the last burst stopped, and no ring gets more than its
//! share of a burst's budget. A flooding peer thus cannot starve the remaining peers.

/// Cold rings polled in each burst: few enough that polling them and all hot rings costs some ten
/// nanoseconds.
pub(super) const COLD_RINGS_PER_BURST: usize = 8;

/// Empty looks after which a ring turns cold: some 50 µs of polling, longer than a peer that waits
/// for our answer stays silent.
pub(super) const COOLING_POLLS: u32 = 1024;

/// The least share of a ring in a burst, in frames, to spread the cost of a poll and of publishing
/// the head.
const MIN_SHARE_FRAMES: usize = 8;

/// The result of a look at a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Frames,
    Nothing,
    Broken,
}

#[derive(Clone, Copy, Debug)]
struct Hot {
    ring: u32,
    empty_looks: u32,
}

/// The rings of an endpoint, by index into its peer table.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    hot: Vec<Hot>,
    /// The hot ring to look at next.
    next_hot: usize,
    cold: Vec<u32>,
    next_cold: usize,
}

impl Schedule {
    /// A new ring is hot: a peer is usually added to talk to it.
    pub(super) fn add(&mut self, ring: u32) {
        self.hot.push(Hot { ring, empty_looks: 0 });
    }

    pub(super) fn remove(&mut self, ring: u32) {
        self.hot.retain(|hot| hot.ring != ring);
        self.cold.retain(|&cold| cold != ring);
    }

    /// Number of rings a burst polls with [`Schedule::current`].
    #[inline]
    pub(super) fn hot_count(&self) -> usize {
        self.hot.len()
    }

    /// Most frames from a single ring in a burst of `budget` frames.
    #[inline]
    pub(super) fn share(&self, budget: usize) -> usize {
        // Saves the division for a single ring.
        if self.hot.len() <= 1 { budget } else { (budget / self.hot.len()).max(MIN_SHARE_FRAMES) }
    }

    /// The hot ring next in turn, if any.
    #[inline]
    pub(super) fn current(&mut self) -> Option<u32> {
        if self.next_hot >= self.hot.len() {
            self.next_hot = 0;
        }
        self.hot.get(self.next_hot).map(|hot| hot.ring)
    }

    /// Notes the result of the look at [`Schedule::current`], and moves to the next ring.
    #[inline]
    pub(super) fn advance(&mut self, look: Look) {
        // A small number of rings always stays hot, so their empty looks need no count.
        if look == Look::Broken || self.hot.len() > COLD_RINGS_PER_BURST {
            self.advance_of_many(look);
        } else {
            self.next_hot += 1;
        }
    }

    fn advance_of_many(&mut self, look: Look) {
        let Some(hot) = self.hot.get_mut(self.next_hot) else { return };
        match look {
            Look::Frames => hot.empty_looks = 0,
            Look::Nothing if hot.empty_looks >= COOLING_POLLS => {
                // The last ring takes the place, and with it the next turn.
                let cooled = self.hot.swap_remove(self.next_hot);
                self.cold.push(cooled.ring);
                return;
            }
            Look::Nothing => hot.empty_looks = hot.empty_looks.saturating_add(1),
            Look::Broken => {
                self.hot.swap_remove(self.next_hot);
                return;
            }
        }
        self.next_hot += 1;
    }

    /// The only ring, if just one exists and is hot. It is always next in turn.
    #[inline]
    pub(super) fn only_ring(&self) -> Option<u32> {
        match self.hot.as_slice() {
            [only] if self.cold.is_empty() => Some(only.ring),
            _ => None,
        }
    }

    /// Polls up to `limit` cold rings in turn, and makes a ring hot if `has_data` returns true.
    #[inline]
    pub(super) fn warm(&mut self, limit: usize, mut has_data: impl FnMut(u32) -> bool) {
        for _ in 0..limit.min(self.cold.len()) {
            if self.next_cold >= self.cold.len() {
                self.next_cold = 0;
            }
            if has_data(self.cold[self.next_cold]) {
                let ring = self.cold.swap_remove(self.next_cold);
                self.add(ring);
            } else {
                self.next_cold += 1;
            }
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn schedule_of(rings: u32) -> Schedule {
        let mut schedule = Schedule::default();
        (0..rings).for_each(|ring| schedule.add(ring));
        schedule
    }

    /// Runs one burst with frames in `busy` rings. Returns the polled rings.
    fn burst(schedule: &mut Schedule, busy: impl Fn(u32) -> bool) -> Vec<u32> {
        schedule.warm(COLD_RINGS_PER_BURST, &busy);
        (0..schedule.hot_count())
            .filter_map(|_| {
                let ring = schedule.current()?;
                schedule.advance(if busy(ring) { Look::Frames } else { Look::Nothing });
                Some(ring)
            })
            .collect()
    }

    #[test]
    fn advance__visits_every_hot_ring_once_a_burst() {
        let mut schedule = schedule_of(5);
        for _ in 0..3 {
            let mut looked = burst(&mut schedule, |_| false);
            looked.sort_unstable();
            assert_eq!(looked, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn advance__next_burst_starts_where_the_last_stopped() {
        let mut schedule = schedule_of(3);
        assert_eq!(schedule.current(), Some(0));
        schedule.advance(Look::Frames);
        assert_eq!(burst(&mut schedule, |_| true), [1, 2, 0]);
    }

    #[test]
    fn advance__silent_rings_cool_but_not_below_the_minimum() {
        let mut schedule = schedule_of(200);
        for _ in 0..COOLING_POLLS + 200 {
            burst(&mut schedule, |ring| ring == 77);
        }
        assert_eq!(schedule.hot_count(), COLD_RINGS_PER_BURST);
        assert!(burst(&mut schedule, |ring| ring == 77).contains(&77));
    }

    #[test]
    fn warm__every_cold_ring_gets_its_turn() {
        let mut schedule = schedule_of(200);
        (0..COOLING_POLLS + 200).for_each(|_| drop(burst(&mut schedule, |_| false)));
        for busy in 0..200 {
            let bursts = 200 / COLD_RINGS_PER_BURST + 1;
            let found =
                (0..bursts).any(|_| burst(&mut schedule, |ring| ring == busy).contains(&busy));
            assert!(found, "ring {busy} was not looked at in {bursts} bursts");
        }
    }

    #[test]
    fn remove__forgets_hot_and_cold_rings() {
        let mut schedule = schedule_of(20);
        (0..COOLING_POLLS + 20).for_each(|_| drop(burst(&mut schedule, |_| false)));
        (0..20).for_each(|ring| schedule.remove(ring));
        assert_eq!(burst(&mut schedule, |_| true), []);
        assert_eq!(schedule.current(), None);
    }

    #[test]
    fn advance__drops_broken_rings() {
        let mut schedule = schedule_of(2);
        assert_eq!(schedule.current(), Some(0));
        schedule.advance(Look::Broken);
        assert_eq!(burst(&mut schedule, |_| true), [1]);
    }
}
