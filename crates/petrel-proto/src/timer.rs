//! The timers of client slots, and the sessions held back by pacing: one wheel per endpoint.
//!
//! The wheel has two halves: a coarse one for timeouts, a millisecond and more ahead, and a fine one for
//! pacing, some microseconds ahead. One wheel of 1 µs ticks would need a hundred thousand buckets, or
//! hierarchies to move entries through. One comparison, with the earliest time in either half, is enough. An
//! endpoint without pacing pays nothing for the fine half.
//!
//! Timeouts are lazily re-armed. Moving a timer with every packet would cost more than the packet's protocol.
//! So the entry of a slot stays in the wheel, and a new deadline only writes a field of the slot. When the
//! entry comes due, the owner compares: an idle slot leaves the wheel, a slot with a later deadline is
//! inserted again. A busy slot thus costs one visit per wheel turn, not one per call.
//!
//! A deadline can also become earlier. After a timeout was set, or while the path was slower, the entry would
//! come due too late for the next call's probe. Then the slot is inserted again.
//!
//! With calls on thousands of sessions the balance is reversed: entries are hardly ever reused before they
//! come due, and a visit to the slot misses the caches; the visits were a sixth of the time of a small call.
//! So in a crowded wheel, the end of a call removes the entry.
//!
//! Calls that wait for long probe the server seconds apart. Their entries are in a ring of coarse ticks, and
//! move to the ring of timeouts when due within its reach. In the ring of timeouts alone, every one of a few
//! thousand entries would be visited 30 times a second.

use petrel_planted::planted;

mod filled;
mod releases;

use self::filled::{BUCKETS, Filled};
use self::releases::Releases;

/// Nanoseconds of a tick, as a power of two: 66 µs. Probes follow after a tenth of a millisecond, timeouts
/// after a millisecond at least. The ring of timeouts reaches 33 ms ahead.
const TICK_SHIFT: u32 = 16;

/// Nanoseconds of a coarse tick, as a power of two: the reach of the ring of timeouts, 33 ms. The coarse ring
/// reaches 17 s ahead; later deadlines wait in the last bucket and are then inserted again.
const FAR_SHIFT: u32 = 25;

const _: () = assert!(1 << (FAR_SHIFT - TICK_SHIFT) == BUCKETS);

/// The first bucket of the coarse ring; the lower buckets are the ring of timeouts.
const FAR_BUCKET: u16 = BUCKETS as u16;

const NIL: u32 = u32::MAX;

/// Entries from which on the wheel is crowded: more than the usual number of outstanding calls, so that few
/// sessions never reach the limit, and few enough to keep visits rare.
const CROWDED_COUNT: u32 = 256;

/// The bucket of an entry outside all buckets: due, or free.
const NO_BUCKET: u16 = u16::MAX;

/// The owner of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerKey {
    /// Index of the session.
    pub session: u32,
    /// The session's generation: an entry may outlive its session.
    pub generation: u32,
    /// The slot.
    pub slot: u16,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    key: TimerKey,
    next: u32,
    /// The preceding node in the bucket, or [`NIL`].
    before: u32,
    bucket: u16,
}

/// An entry of the wheel, valid until due or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerEntry(u32);

impl TimerEntry {
    /// Names no entry.
    pub const NONE: Self = Self(NIL);
}

/// The wheel.
#[derive(Debug)]
pub struct TimerWheel {
    /// The buckets of both rings.
    heads: Box<[u32]>,
    filled: Filled,
    /// The non-empty buckets of the coarse ring.
    filled_far: Filled,
    nodes: Vec<Node>,
    free: u32,
    /// Entries in the ring of timeouts.
    count: u32,
    /// All ticks up to this one have been handled. The value stands still while nothing comes due; then the
    /// wheel reaches less far ahead, and entries beyond come due early.
    tick: u64,
    /// Due entries not yet taken by `pop_due`.
    due: u32,
    /// The time at which `advance` has work: the first tick with an entry, or the next release. After a
    /// removal the value may be too early.
    wake_ns: u64,
    releases: Releases,
}

impl TimerWheel {
    /// Makes an empty wheel that starts at `now_ns`.
    pub fn new(now_ns: u64) -> Self {
        Self {
            heads: vec![NIL; 2 * BUCKETS as usize].into_boxed_slice(),
            filled: Filled::default(),
            filled_far: Filled::default(),
            nodes: Vec::new(),
            free: NIL,
            count: 0,
            tick: now_ns >> TICK_SHIFT,
            due: NIL,
            wake_ns: u64::MAX,
            releases: Releases::new(now_ns),
        }
    }

    /// Inserts an entry, which comes due at `deadline_ns` or up to a tick later.
    pub fn insert(&mut self, key: TimerKey, deadline_ns: u64) -> TimerEntry {
        let (bucket, due_ns) = self.place_of(deadline_ns);
        assert!(
            due_ns > self.tick << TICK_SHIFT,
            "an entry comes due after the time handled so far"
        );
        let next = self.heads[usize::from(bucket)];
        let node = self.allocate(Node { key, next, before: NIL, bucket });
        if next != NIL {
            self.nodes[next as usize].before = node;
        }
        self.heads[usize::from(bucket)] = node;
        if bucket < FAR_BUCKET {
            self.filled.set(bucket.into());
            self.count += 1;
        } else {
            self.filled_far.set((bucket - FAR_BUCKET).into());
        }
        self.wake_ns = self.wake_ns.min(due_ns);
        TimerEntry(node)
    }

    /// Returns true if an entry comes due later than a new entry for this deadline would.
    pub fn comes_after(&self, entry: TimerEntry, deadline_ns: u64) -> bool {
        let Node { bucket, .. } = self.nodes[entry.0 as usize];
        // Returns a bucket's next tick after the last handled one; both rings have equal numbers of buckets.
        let tick_of = |bucket: u16, handled: u64| {
            handled + 1 + (u64::from(bucket) + BUCKETS - (handled + 1) % BUCKETS) % BUCKETS
        };
        let due_ns = match bucket {
            NO_BUCKET => return false,
            FAR_BUCKET.. => tick_of(bucket, self.far_tick()) << FAR_SHIFT,
            _ => tick_of(bucket, self.tick) << TICK_SHIFT,
        };
        due_ns > self.place_of(deadline_ns).1
    }

    /// Returns the bucket for a deadline, and the time at which the bucket comes due: up to a tick after the
    /// deadline, or earlier if the deadline is beyond the ring of timeouts.
    fn place_of(&self, deadline_ns: u64) -> (u16, u64) {
        let tick = ((deadline_ns >> TICK_SHIFT) + 1).max(self.tick + 1);
        let last = self.tick + BUCKETS - 1;
        let far = deadline_ns >> FAR_SHIFT;
        if tick > last && far > self.far_tick() {
            let far = far.min(self.far_tick() + BUCKETS - 1);
            return (FAR_BUCKET + (far % BUCKETS) as u16, far << FAR_SHIFT);
        }
        let tick = tick.min(last);
        ((tick % BUCKETS) as u16, tick << TICK_SHIFT)
    }

    /// Returns the coarse tick up to which all were handled.
    fn far_tick(&self) -> u64 {
        self.tick >> (FAR_SHIFT - TICK_SHIFT)
    }

    /// Returns the time at which the next entry of either ring comes due.
    fn next_timeout_ns(&self) -> Option<u64> {
        let near_ns = self.filled.next_after(self.tick).map(|tick| tick << TICK_SHIFT);
        let far_ns = self.filled_far.next_after(self.far_tick()).map(|tick| tick << FAR_SHIFT);
        [near_ns, far_ns].into_iter().flatten().min()
    }

    /// Returns true if the wheel is crowded: then calls that end should remove their entries.
    #[inline(always)]
    pub fn is_crowded(&self) -> bool {
        self.count >= CROWDED_COUNT
    }

    /// Removes an entry that has not come due yet.
    pub fn remove(&mut self, entry: TimerEntry) {
        let Node { next, before, bucket, .. } = self.nodes[entry.0 as usize];
        assert_ne!(bucket, NO_BUCKET, "an entry is removed once, before it comes due");
        if next != NIL {
            let next = &mut self.nodes[next as usize];
            assert_eq!(next.before, entry.0, "an entry and the next one name each other");
            next.before = before;
        }
        if before != NIL {
            let before = &mut self.nodes[before as usize];
            assert_eq!(before.next, entry.0, "an entry and the one before name each other");
            before.next = next;
        } else {
            let head = std::mem::replace(&mut self.heads[usize::from(bucket)], next);
            assert_eq!(head, entry.0, "an entry without one before is the first of its bucket");
            if next == NIL {
                self.note_empty(bucket);
            }
        }
        let is_near = bucket < FAR_BUCKET;
        assert!(!is_near || self.count > 0, "an entry of the ring of timeouts was counted");
        self.count -= u32::from(is_near);
        self.release(entry.0);
    }

    /// Inserts a session that may send again at `release_ns`. The session comes due then or up to 1 µs later,
    /// or early if the time is more than 0.45 ms ahead: the owner checks whether the time has come.
    pub fn insert_release(&mut self, now_ns: u64, key: TimerKey, release_ns: u64) {
        let due_ns = self.releases.insert(now_ns, key, release_ns);
        self.wake_ns = self.wake_ns.min(due_ns).min((self.tick + 1) << TICK_SHIFT);
    }

    /// Returns true if [`TimerWheel::advance`] has work.
    #[inline(always)]
    pub fn has_come_due(&self, now_ns: u64) -> bool {
        now_ns >= self.wake_ns
    }

    /// Moves time forward. Then [`TimerWheel::pop_due`] and [`TimerWheel::pop_release`] return the due
    /// entries.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        if now_ns >= self.wake_ns {
            self.collect_due(now_ns);
        }
    }

    /// [`TimerWheel::advance`] for releases only. Timeouts must stay in place, because slots remove their
    /// entries while frames are being handled.
    pub fn advance_releases(&mut self, now_ns: u64) {
        let release_ns = self.releases.collect_due(now_ns);
        if let Some(release_ns) = release_ns {
            self.wake_ns = self.wake_ns.min(release_ns);
        }
    }

    /// Takes a due entry. The caller inserts the entry again if still needed.
    #[inline]
    pub fn pop_due(&mut self) -> Option<TimerKey> {
        if self.due == NIL {
            return None;
        }
        let index = self.due;
        let Node { key, next, bucket, .. } = self.nodes[index as usize];
        assert_eq!(bucket, NO_BUCKET, "a due entry is in no bucket");
        self.due = next;
        self.release(index);
        Some(key)
    }

    /// Takes a session whose release is due, in the order of time.
    #[inline]
    pub fn pop_release(&mut self) -> Option<TimerKey> {
        self.releases.pop_due()
    }

    /// Returns the number of entries in both halves, due ones included. Walks the free list.
    pub(crate) fn entry_count(&self) -> usize {
        let next = |&node: &u32| Some(self.nodes[node as usize].next).filter(|&next| next != NIL);
        let first = Some(self.free).filter(|&first| first != NIL);
        let free = std::iter::successors(first, next).take(self.nodes.len() + 1).count();
        assert!(free <= self.nodes.len(), "a free entry is listed once");
        self.nodes.len() - free + self.releases.len()
    }

    /// Returns the time at which the next entry comes due, in nanoseconds.
    pub fn next_due_ns(&self) -> Option<u64> {
        if planted("proto_timer_due_at_once") {
            return self.next_timeout_ns().map(|due_ns| due_ns >> TICK_SHIFT);
        }
        if self.due != NIL || self.releases.has_due() {
            return Some(self.tick << TICK_SHIFT);
        }
        [self.next_timeout_ns(), self.releases.next_due_ns()].into_iter().flatten().min()
    }

    #[inline(never)]
    fn collect_due(&mut self, now_ns: u64) {
        let now = now_ns >> TICK_SHIFT;
        if now > self.tick {
            self.collect_timeouts(now);
        }
        let timeout_ns = self.next_timeout_ns();
        let release_ns = self.releases.collect_due(now_ns);
        // Releases need time moved forward every tick, or their horizon would come nearer.
        let tick_ns = release_ns.map(|_| (self.tick + 1) << TICK_SHIFT);
        // Due releases wait for `advance_releases`.
        let due_ns = self.releases.has_due().then_some(now_ns);
        let all = [timeout_ns, release_ns, tick_ns, due_ns];
        self.wake_ns = all.into_iter().flatten().min().unwrap_or(u64::MAX);
    }

    fn collect_timeouts(&mut self, now: u64) {
        assert!(now > self.tick, "the time of the wheel does not go back");
        let last = now.min(self.tick + BUCKETS);
        for tick in self.tick + 1..=last {
            let bucket = (tick % BUCKETS) as u16;
            if self.filled.contains(bucket.into()) {
                self.empty_bucket(bucket);
            }
        }
        let now_far = now >> (FAR_SHIFT - TICK_SHIFT);
        let last_far = now_far.min(self.far_tick() + BUCKETS);
        let mut far = self.far_tick();
        while let Some(next) = self.filled_far.next_after(far)
            && next <= last_far
        {
            self.empty_bucket(FAR_BUCKET + (next % BUCKETS) as u16);
            far = next;
        }
        self.tick = now;
    }

    /// Moves the entries of a bucket to the due list.
    fn empty_bucket(&mut self, bucket: u16) {
        self.note_empty(bucket);
        let list = core::mem::replace(&mut self.heads[usize::from(bucket)], NIL);
        assert_ne!(list, NIL, "a bucket marked as filled has an entry");
        self.append_due(list, bucket < FAR_BUCKET);
    }

    fn note_empty(&mut self, bucket: u16) {
        match bucket.checked_sub(FAR_BUCKET) {
            None => self.filled.clear(bucket.into()),
            Some(far) => self.filled_far.clear(far.into()),
        }
    }

    /// Puts a bucket's list before the due entries, which have no order.
    fn append_due(&mut self, list: u32, is_near: bool) {
        let mut last = list;
        loop {
            assert!(!is_near || self.count > 0, "each entry of the ring of timeouts is counted");
            self.count -= u32::from(is_near);
            let node = &mut self.nodes[last as usize];
            node.bucket = NO_BUCKET;
            if node.next == NIL {
                node.next = self.due;
                break;
            }
            last = node.next;
        }
        self.due = list;
    }

    fn release(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.next = self.free;
        node.bucket = NO_BUCKET;
        self.free = index;
    }

    fn allocate(&mut self, node: Node) -> u32 {
        if self.free == NIL {
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        let index = self.free;
        assert_eq!(self.nodes[index as usize].bucket, NO_BUCKET, "a free entry is in no bucket");
        self.free = self.nodes[index as usize].next;
        self.nodes[index as usize] = node;
        index
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK: u64 = 1 << TICK_SHIFT;

    fn key(session: u32) -> TimerKey {
        TimerKey { session, generation: 0, slot: 0 }
    }

    fn due(wheel: &mut TimerWheel, now_ns: u64) -> Vec<u32> {
        wheel.advance(now_ns);
        let mut keys: Vec<u32> =
            std::iter::from_fn(|| wheel.pop_due()).map(|k| k.session).collect();
        keys.sort_unstable();
        keys
    }

    /// Handling timeouts first collects the due releases as well.
    #[test]
    fn releases_that_come_due_with_timeouts_are_not_forgotten() {
        let mut wheel = TimerWheel::new(0);
        wheel.insert(key(1), TICK);
        wheel.insert_release(0, key(2), 3_000);
        let now_ns = 2 * TICK;
        assert_eq!(due(&mut wheel, now_ns), [1]);
        assert!(wheel.has_come_due(now_ns));
        wheel.advance_releases(now_ns);
        assert_eq!(wheel.pop_release(), Some(key(2)));
        assert_eq!((wheel.pop_release(), wheel.next_due_ns()), (None, None));
    }

    /// The two halves need visits: the earlier time counts, and after its work no further visit is due at
    /// once.
    #[test]
    fn next_due_ns__is_that_of_the_first_entry_of_both_halves() {
        for (deadline_ns, release_ns, due_ns, then_ns) in [
            (9 * TICK, 2 * TICK, 2 * TICK + 1_024, 10 * TICK),
            (2 * TICK, 6 * TICK, 3 * TICK, 6 * TICK + 1_024),
        ] {
            let mut wheel = TimerWheel::new(0);
            assert!(!wheel.has_come_due(1 << 60), "nothing is in it");
            wheel.insert(key(1), deadline_ns);
            wheel.insert_release(0, key(2), release_ns);
            assert_eq!(wheel.next_due_ns(), Some(due_ns));
            assert!(!wheel.has_come_due(TICK - 1));
            let is_release = due_ns > release_ns && due_ns < deadline_ns;
            wheel.advance(due_ns);
            let first = (wheel.pop_due().is_some(), wheel.pop_release().is_some());
            assert_eq!(first, (!is_release, is_release));
            assert_eq!(wheel.next_due_ns(), Some(then_ns));
            wheel.advance(then_ns);
            let second = (wheel.pop_due().is_some(), wheel.pop_release().is_some());
            assert_eq!(second, (is_release, !is_release));
            wheel.advance(then_ns + TICK);
            assert_eq!(wheel.next_due_ns(), None);
            assert!(!wheel.has_come_due(then_ns + TICK), "there is nothing left to visit");
        }
    }

    /// Only entries that come due soon count as crowding: neither entries seconds ahead, nor removed or due
    /// ones.
    #[test]
    fn is_crowded__by_the_entries_that_come_due_soon() {
        let mut wheel = TimerWheel::new(0);
        let far = wheel.insert(key(0), 1_000 * BUCKETS * TICK);
        let entries: Vec<_> =
            (1..CROWDED_COUNT).map(|at| wheel.insert(key(at), u64::from(at) * TICK)).collect();
        assert!(!wheel.is_crowded());
        let last = wheel.insert(key(CROWDED_COUNT), 7 * TICK);
        assert!(wheel.is_crowded());
        wheel.remove(far);
        assert!(wheel.is_crowded(), "it never counted");
        wheel.remove(last);
        assert!(!wheel.is_crowded());
        wheel.insert(key(0), TICK);
        assert!(wheel.is_crowded());
        assert_eq!(due(&mut wheel, 2 * TICK), [0, 1]);
        assert!(!wheel.is_crowded());
        entries[1..].iter().for_each(|entry| wheel.remove(*entry));
        assert_eq!((wheel.count, wheel.entry_count()), (0, 0));
    }

    /// A due entry that was not taken keeps the owner awake: it is due since the last tick.
    #[test]
    fn next_due_ns__of_what_is_left_is_the_last_tick() {
        let mut wheel = TimerWheel::new(5 * TICK);
        wheel.insert(key(1), 7 * TICK);
        wheel.insert(key(2), 7 * TICK);
        wheel.insert(key(3), 20 * TICK);
        wheel.advance(9 * TICK + 5);
        for _ in 0..2 {
            assert_eq!(wheel.next_due_ns(), Some(9 * TICK));
            assert!(wheel.pop_due().is_some());
        }
        assert_eq!(wheel.next_due_ns(), Some(21 * TICK));
        wheel.insert_release(9 * TICK, key(4), 9 * TICK + 3_000);
        wheel.advance(9 * TICK + 20_000);
        assert_eq!(wheel.next_due_ns(), Some(9 * TICK));
        assert_eq!(wheel.pop_release(), Some(key(4)));
        assert_eq!(wheel.next_due_ns(), Some(21 * TICK));
    }

    #[test]
    fn entries_come_due_once_and_never_early() {
        let mut wheel = TimerWheel::new(5 * TICK);
        wheel.insert(key(1), 7 * TICK + 1);
        wheel.insert(key(2), 7 * TICK + 2);
        wheel.insert(key(3), 3 * TICK);
        assert_eq!(wheel.next_due_ns(), Some(6 * TICK));
        assert_eq!(due(&mut wheel, 7 * TICK + TICK / 2), [3]);
        assert_eq!(due(&mut wheel, 8 * TICK), [1, 2]);
        assert_eq!(due(&mut wheel, 1000 * TICK), [] as [u32; 0]);
        assert_eq!(wheel.next_due_ns(), None);
    }

    /// An entry seconds ahead is visited twice: when its coarse tick has come, and when due.
    #[test]
    fn an_entry_seconds_ahead__is_put_in_again_once() {
        let mut wheel = TimerWheel::new(77 * TICK);
        let deadline_ns = 3_000_000_000;
        wheel.insert(key(1), deadline_ns);
        assert!(!wheel.is_crowded() && wheel.count == 0);
        let mut visits = 0;
        let mut now_ns = 77 * TICK;
        while now_ns < deadline_ns {
            now_ns = wheel.next_due_ns().expect("it waits");
            if due(&mut wheel, now_ns) == [1] {
                visits += 1;
                wheel.insert(key(1), deadline_ns);
            }
        }
        assert_eq!(visits, 2);
        assert!(now_ns <= deadline_ns + TICK);
    }

    proptest! {
        /// Compares with a newly inserted entry.
        #[test]
        fn comes_after_is_whether_it_would_come_earlier(
            start in 0u64..2_000,
            (first, second) in (0u64..2_000, 0u64..2_000),
            within in 0..TICK,
        ) {
            let mut wheel = TimerWheel::new(start * TICK);
            let entry = wheel.insert(key(1), (start + first) * TICK + within);
            let deadline_ns = (start + second) * TICK;
            let comes_after = wheel.comes_after(entry, deadline_ns);
            let first_ns = wheel.next_due_ns();
            wheel.remove(entry);
            wheel.insert(key(1), deadline_ns);
            prop_assert_eq!(comes_after, first_ns > wheel.next_due_ns());
        }

        /// Compares with a naive model: a list of deadlines, searched from end to end.
        #[test]
        fn matches_model(steps in prop::collection::vec(
            (0u64..300, 0u64..6000, prop::option::of(any::<prop::sample::Index>())), 1..80))
        {
            let mut wheel = TimerWheel::new(0);
            let mut model: Vec<(u64, u32)> = Vec::new();
            let mut entries = std::collections::HashMap::new();
            let mut now = 0;
            for (index, (pass, ahead, removed)) in steps.into_iter().enumerate() {
                now += pass * TICK / 3;
                for session in due(&mut wheel, now) {
                    let at = model.iter().position(|(_, s)| *s == session).expect("is in the model");
                    let (deadline, _) = model[at];
                    // Beyond the horizon an entry comes due early, and its owner inserts it again.
                    if deadline <= now {
                        model.swap_remove(at);
                    } else {
                        entries.insert(session, wheel.insert(key(session), deadline));
                    }
                }
                if let Some(place) = removed.filter(|_| !model.is_empty()) {
                    let (_, session) = model.swap_remove(place.index(model.len()));
                    wheel.remove(entries[&session]);
                }
                prop_assert_eq!(wheel.next_due_ns().is_some(), !model.is_empty());
                prop_assert!(model.iter().all(|(deadline, _)| deadline + 2 * TICK > now));
                model.push((now + ahead * TICK / 3, index as u32));
                let entry = wheel.insert(key(index as u32), now + ahead * TICK / 3);
                entries.insert(index as u32, entry);
            }
        }
    }

    panics! {
        remove__of_an_entry_that_came_due: "an entry is removed once, before it comes due" => {
            let mut wheel = TimerWheel::new(0);
            let entry = wheel.insert(key(1), 2 * TICK);
            wheel.advance(5 * TICK);
            wheel.remove(entry);
        };
        remove__twice: "an entry is removed once, before it comes due" => {
            let mut wheel = TimerWheel::new(0);
            let entry = wheel.insert(key(1), 2 * TICK);
            (0..2).for_each(|_| wheel.remove(entry));
        };
        advance__over_a_filled_bucket_without_an_entry:
            "a bucket marked as filled has an entry" => {
            let mut wheel = TimerWheel::new(0);
            wheel.insert(key(1), 2 * TICK);
            wheel.heads.fill(NIL);
            wheel.advance(5 * TICK);
        };
    }
}
