//! The timers of the client slots, and the sessions that pacing holds back: one wheel per endpoint.
//!
//! It has two halves, a coarse one for timeouts and a fine one for pacing: a millisecond
//! and more ahead against some microseconds. Both in one wheel of 1 µs ticks would need a hundred
//! thousand buckets, or hierarchies to move entries through. One comparison with the time at which
//! either has something to do serves both, so an endpoint that paces nothing pays nothing for it.
//!
//! Timeouts are lazily re-armed.
//! A timer that is set anew with every packet would cost more than the packet's protocol. So a
//! slot that is in the wheel stays there: setting its deadline only writes a field of the slot.
//! When the wheel's entry comes due, the owner compares: a slot that is idle leaves the wheel, one
//! whose deadline has moved is put in again. A busy slot thus costs one visit per wheel turn, not
//! one per call.
//!
//! A deadline that moves ahead is another matter: after a timeout was set, or while the path was slower,
//! the entry would come too late for the next call's probe. Then the slot is put in anew. Left where it
//! was, as in an earlier form, it had more than half of the small calls that lost a packet in a hundred
//! wait for up to a millisecond longer, and those after the first on a session for up to ten.
//!
//! With calls on thousands of sessions that turns round: an entry is hardly used again before it
//! comes due, and a visit to its slot finds nothing of it in the caches; the visits were a sixth of
//! the time of a small call. So where the wheel is crowded, a call that ends takes its entry out.
//!
//! Calls that wait for long look for their answer seconds apart. They stand in a ring of coarse ticks,
//! and come to the one of timeouts when they are due within its reach: in that ring alone each of a few
//! thousand would be visited 30 times a second.

use petrel_planted::planted;

mod filled;
mod releases;

use self::filled::{BUCKETS, Filled};
use self::releases::Releases;

/// Nanoseconds of a tick, as a power of two: 66 µs. Probes come after a tenth of a millisecond, timeouts
/// after a millisecond at least. This ring reaches 33 ms ahead.
const TICK_SHIFT: u32 = 16;

/// Nanoseconds of a coarse tick, as a power of two: the reach of the other ring, 33 ms. This one reaches
/// 17 s ahead; later deadlines wait in its last bucket and are put in again from there.
const FAR_SHIFT: u32 = 25;

const _: () = assert!(1 << (FAR_SHIFT - TICK_SHIFT) == BUCKETS);

/// The first bucket of the coarse ring: those of the other one come before it.
const FAR_BUCKET: u16 = BUCKETS as u16;

const NIL: u32 = u32::MAX;

/// Entries from which on the wheel is crowded: more than the calls that are usually on the way, so
/// that few sessions never get there, and few enough that visits to them stay rare.
const CROWDED_COUNT: u32 = 256;

/// The bucket of an entry that is in none: it is due, or free.
const NO_BUCKET: u16 = u16::MAX;

/// Whose timer it is.
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
    /// The node before it in its bucket, or [`NIL`].
    before: u32,
    bucket: u16,
}

/// An entry of the wheel, until it comes due or is taken out.
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
    /// The same for the coarse ring.
    filled_far: Filled,
    nodes: Vec<Node>,
    free: u32,
    /// Entries in the buckets that come due soon.
    count: u32,
    /// All ticks up to this one have been handled. It stands still while nothing comes due; then the
    /// wheel reaches less far ahead, and an entry beyond comes due early.
    tick: u64,
    /// Entries that are due and not yet taken by `pop_due`.
    due: u32,
    /// When time has to be moved forward: the first tick with an entry, or the next release. An entry
    /// that was taken out may leave it too early.
    wake_ns: u64,
    releases: Releases,
}

impl TimerWheel {
    /// An empty wheel that starts at `now`.
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

    /// Puts an entry in; it comes due at `deadline_ns`, or up to a tick later.
    pub fn insert(&mut self, key: TimerKey, deadline_ns: u64) -> TimerEntry {
        let (bucket, due_ns) = self.place_of(deadline_ns);
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

    /// Whether an entry comes due later than if it were put in anew for this deadline.
    pub fn comes_after(&self, entry: TimerEntry, deadline_ns: u64) -> bool {
        let Node { bucket, .. } = self.nodes[entry.0 as usize];
        // The tick of a bucket after the last one that was handled; both rings have as many buckets.
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

    /// The bucket of an entry with that deadline, and the time at which it comes due: up to a tick later
    /// than the deadline, or earlier where that is beyond the ring of timeouts.
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

    /// The coarse tick up to which all were handled.
    fn far_tick(&self) -> u64 {
        self.tick >> (FAR_SHIFT - TICK_SHIFT)
    }

    /// When the next entry of either ring comes due.
    fn next_timeout_ns(&self) -> Option<u64> {
        let near_ns = self.filled.next_after(self.tick).map(|tick| tick << TICK_SHIFT);
        let far_ns = self.filled_far.next_after(self.far_tick()).map(|tick| tick << FAR_SHIFT);
        [near_ns, far_ns].into_iter().flatten().min()
    }

    /// Whether there are so many entries that those of calls that end should be taken out.
    #[inline(always)]
    pub fn is_crowded(&self) -> bool {
        self.count >= CROWDED_COUNT
    }

    /// Takes an entry out that has not come due yet.
    pub fn remove(&mut self, entry: TimerEntry) {
        let Node { next, before, bucket, .. } = self.nodes[entry.0 as usize];
        debug_assert_ne!(bucket, NO_BUCKET, "the entry came due");
        if next != NIL {
            self.nodes[next as usize].before = before;
        }
        if before != NIL {
            self.nodes[before as usize].next = next;
        } else {
            self.heads[usize::from(bucket)] = next;
            if next == NIL {
                self.note_empty(bucket);
            }
        }
        self.count -= u32::from(bucket < FAR_BUCKET);
        self.release(entry.0);
    }

    /// Puts a session in that may send again at `release_ns`; it comes due then or up to 1 µs later,
    /// or earlier if that is more than 0.45 ms ahead. Its owner looks whether its time has come.
    pub fn insert_release(&mut self, now_ns: u64, key: TimerKey, release_ns: u64) {
        let due_ns = self.releases.insert(now_ns, key, release_ns);
        self.wake_ns = self.wake_ns.min(due_ns).min((self.tick + 1) << TICK_SHIFT);
    }

    /// Whether [`TimerWheel::advance`] has something to do.
    #[inline(always)]
    pub fn has_come_due(&self, now_ns: u64) -> bool {
        now_ns >= self.wake_ns
    }

    /// Moves time forward; [`TimerWheel::pop_due`] and [`TimerWheel::pop_release`] then give what came
    /// due.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        if now_ns >= self.wake_ns {
            self.collect_due(now_ns);
        }
    }

    /// [`TimerWheel::advance`] for releases only. Timeouts are left where they are: while frames are
    /// being handled, slots take theirs out.
    pub fn advance_releases(&mut self, now_ns: u64) {
        let release_ns = self.releases.collect_due(now_ns);
        if let Some(release_ns) = release_ns {
            self.wake_ns = self.wake_ns.min(release_ns);
        }
    }

    /// Takes an entry that came due. The caller puts it in again if it is not done.
    #[inline]
    pub fn pop_due(&mut self) -> Option<TimerKey> {
        if self.due == NIL {
            return None;
        }
        let index = self.due;
        let Node { key, next, .. } = self.nodes[index as usize];
        self.due = next;
        self.release(index);
        Some(key)
    }

    /// Takes a session whose release came due, in their order.
    #[inline]
    pub fn pop_release(&mut self) -> Option<TimerKey> {
        self.releases.pop_due()
    }

    /// Entries of both halves, those that are due too. Counts the free ones.
    pub(crate) fn entry_count(&self) -> usize {
        let next = |&node: &u32| Some(self.nodes[node as usize].next).filter(|&next| next != NIL);
        let first = Some(self.free).filter(|&first| first != NIL);
        let free = std::iter::successors(first, next).count();
        self.nodes.len() - free + self.releases.len()
    }

    /// The time at which the next entry comes due, in nanoseconds.
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
        // Releases keep to the pace of ticks, or their horizon would come nearer.
        let tick_ns = release_ns.map(|_| (self.tick + 1) << TICK_SHIFT);
        // Those that are due wait for `advance_releases`.
        let due_ns = self.releases.has_due().then_some(now_ns);
        let all = [timeout_ns, release_ns, tick_ns, due_ns];
        self.wake_ns = all.into_iter().flatten().min().unwrap_or(u64::MAX);
    }

    fn collect_timeouts(&mut self, now: u64) {
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

    /// The entries of a bucket come due.
    fn empty_bucket(&mut self, bucket: u16) {
        self.note_empty(bucket);
        let list = core::mem::replace(&mut self.heads[usize::from(bucket)], NIL);
        self.append_due(list, bucket < FAR_BUCKET);
    }

    fn note_empty(&mut self, bucket: u16) {
        match bucket.checked_sub(FAR_BUCKET) {
            None => self.filled.clear(bucket.into()),
            Some(far) => self.filled_far.clear(far.into()),
        }
    }

    /// Puts a bucket's list before what is due already; the order among due entries is free.
    fn append_due(&mut self, list: u32, is_near: bool) {
        let mut last = list;
        loop {
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

    /// Whoever handles timeouts first has collected the releases with them.
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

    /// Both halves ask for a visit: the earlier one counts, whichever it is, and a visit that has done its work asks for no
    /// other at once.
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

    /// Only entries that come due soon make it crowded: neither those seconds ahead, nor those that were taken out or came
    /// due.
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

    /// What came due and was not taken keeps the owner from sleeping: it is due since the last tick.
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

    /// What waits for seconds is visited twice: when its coarse tick has come, and when it is due.
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
        /// Against an entry that is put in anew.
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

        /// Against the naive model: a list of deadlines, looked through from front to back.
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
                    // Beyond the horizon an entry comes early, and its owner puts it in again.
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
}
