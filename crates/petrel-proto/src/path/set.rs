//! The paths of a session: which are open, what is in flight on each, and when a closed path is looked at.

use petrel_planted::planted;

use super::{PathId, Random};
use crate::limits::{PATHS_MAX, WINDOW_PACKETS};

/// Units of a path's window per packet. A window of 256 packets that grows by a packet per round trip grows by
/// half a unit per answer; the remainder is kept by the policy.
pub(super) const PACKET: u32 = 128;

/// The smallest window of an open path: half a packet. With less, the path would be open and never chosen.
pub(super) const WINDOW_LEAST: u32 = PACKET / 2;

/// Time until the first look at a closed path, in nanoseconds: some round trips of a rack. A further closing or a
/// failed look doubles the time.
const LOOK_NS: u64 = 50_000;

/// Doublings of [`LOOK_NS`] at most: 3.2 ms. A path that works again is in use within some milliseconds, even if a
/// single port leads to the path.
const BACKOFF_MAX: u8 = 6;

/// Good answers after which the next closing is a step shorter again.
const GOODS_PER_STEP: u8 = 32;

/// Looks are due at multiples of this power of two, in nanoseconds: 8 µs.
const DUE_STEP_LOG2: u32 = 13;

/// Steps until a look at most. A time that seems to be further ahead has passed, perhaps long ago: the session was idle.
const DUE_STEPS_MAX: u16 = ((LOOK_NS << BACKOFF_MAX) >> DUE_STEP_LOG2) as u16 + 1;

/// One path, in 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// Smoothed round trip in nanoseconds; 0 before the first measurement.
    srtt_ns: u32,
    /// Smoothed deviation of the round trips; the first round trip itself after the first measurement.
    deviation_ns: u32,
    /// Packets that may be in flight, in units of 1/128; 0 if closed.
    window: u16,
    in_flight: u16,
    /// When a closed path is looked at, in steps of 8 µs modulo 2^16.
    due: u16,
    /// Doublings of the time until the next look.
    backoff: u8,
    /// Good answers since the last opening, up to 255.
    goods: u8,
}

const _: () = assert!(size_of::<Path>() <= 16, "the state of a path is small");
const _: () = assert!(WINDOW_PACKETS * PACKET <= u16::MAX as u32);

impl Path {
    #[inline]
    fn note_rtt(&mut self, rtt_ns: u32) {
        let rtt_ns = rtt_ns.max(1);
        let old = self.srtt_ns;
        if old == 0 {
            (self.srtt_ns, self.deviation_ns) = (rtt_ns, rtt_ns);
            return;
        }
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + old.abs_diff(rtt_ns) / 4;
        self.srtt_ns = match old / 2 > rtt_ns {
            true => old / 2 + rtt_ns / 2,
            false => old - old / 8 + rtt_ns / 8,
        };
    }

    /// Notes that a copy is in flight no longer, of `all` copies on all paths.
    #[inline]
    fn note_gone(&mut self, all: &mut u32) {
        assert!(self.in_flight > 0, "a packet leaves the path that it was sent on");
        assert!(*all > 0, "the packets in flight are those of all paths");
        self.in_flight -= 1;
        *all -= 1;
    }
}

/// The paths of a session.
///
/// A path is *open* or *closed*. New packets take open paths; a closed one gets a single packet at a time, as a
/// look. Invariants: one path is open at least; a closed path has no window; an open one has half a packet at
/// least; the total is the sum of the windows.
#[derive(Debug)]
pub(super) struct PathSet {
    paths: Box<[Path]>,
    /// Bit *i* is set if path *i* is open.
    open: u32,
    in_flight: u32,
    total_window: u32,
}

impl PathSet {
    /// Makes `count` open paths that share a window of `packets`.
    pub(super) fn new(count: usize, packets: u32) -> Self {
        assert!((1..=PATHS_MAX).contains(&count), "a session has 1 to 32 paths");
        let window = (packets * PACKET / count as u32).clamp(WINDOW_LEAST, WINDOW_PACKETS * PACKET);
        let window = window as u16;
        let path = Path {
            srtt_ns: 0,
            deviation_ns: 0,
            window,
            in_flight: 0,
            due: 0,
            backoff: 0,
            goods: 0,
        };
        let open = u32::MAX >> (PATHS_MAX - count);
        let total_window = u32::from(window) * count as u32;
        Self { paths: vec![path; count].into(), open, in_flight: 0, total_window }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = PathId> + use<> {
        (0..self.paths.len() as u8).map(PathId)
    }

    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.paths)
    }

    pub(super) fn count(&self) -> u32 {
        self.paths.len() as u32
    }

    fn all(&self) -> u32 {
        u32::MAX >> (PATHS_MAX - self.paths.len())
    }

    pub(super) fn open_count(&self) -> u32 {
        self.open.count_ones()
    }

    pub(super) fn is_open(&self, path: PathId) -> bool {
        self.open & path.bit() != 0
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(super) fn window(&self, path: PathId) -> u32 {
        self.paths[path.index()].window.into()
    }

    pub(super) fn total_window(&self) -> u32 {
        self.total_window
    }

    /// Returns the part of a path's window that no packet uses, in units; negative if too many are in flight.
    #[inline]
    pub(super) fn room(&self, path: PathId) -> i32 {
        let path = &self.paths[path.index()];
        i32::from(path.window) - i32::from(path.in_flight) * PACKET as i32
    }

    pub(super) fn are_all_open(&self) -> bool {
        self.open == self.all()
    }

    #[inline]
    pub(super) fn packets_of_room(&self, path: PathId) -> u32 {
        let path = &self.paths[path.index()];
        (u32::from(path.window) / PACKET).saturating_sub(path.in_flight.into())
    }

    #[inline]
    pub(super) fn note_sent(&mut self, path: PathId) {
        let path = &mut self.paths[path.index()];
        path.in_flight =
            path.in_flight.checked_add(1).expect("credits bound the packets in flight");
        self.in_flight += 1;
    }

    pub(super) fn note_all_sent(&mut self, path: PathId, count: u32) {
        let path = &mut self.paths[path.index()];
        assert!(
            u32::from(path.in_flight) + count <= u16::MAX.into(),
            "credits bound the packets in flight"
        );
        path.in_flight += count as u16;
        self.in_flight += count;
    }

    /// Notes that a copy is in flight no longer: acknowledged, lost, or replaced by another copy.
    pub(super) fn note_gone(&mut self, path: PathId) {
        self.paths[path.index()].note_gone(&mut self.in_flight);
    }

    pub(super) fn note_all_gone(&mut self, path: PathId, count: u32) {
        let path = &mut self.paths[path.index()];
        assert!(
            u32::from(path.in_flight) >= count && self.in_flight >= count,
            "packets leave the path that they were sent on"
        );
        path.in_flight -= count as u16;
        self.in_flight -= count;
    }

    /// Notes a round trip. A round trip below half of the mean shows that a queue has gone, and counts half.
    pub(super) fn note_rtt(&mut self, path: PathId, rtt_ns: u64) {
        let rtt_ns = u32::try_from(rtt_ns).unwrap_or(u32::MAX);
        self.paths[path.index()].note_rtt(rtt_ns);
    }

    /// [`PathSet::note_rtt`] and [`PathSet::note_gone`], of a copy whose answer came at once.
    #[inline]
    pub(super) fn note_prompt(&mut self, path: PathId, rtt_ns: u32) {
        let path = &mut self.paths[path.index()];
        path.note_rtt(rtt_ns);
        path.note_gone(&mut self.in_flight);
    }

    /// Returns the smoothed round trip of a path; before its first measurement the longest of all paths.
    pub(super) fn srtt_ns(&self, path: PathId) -> Option<u64> {
        self.round_trip_ns(path).map(|(srtt_ns, _)| srtt_ns)
    }

    /// Returns the smoothed round trip of a path and its deviation. Before the path's first measurement, both are the
    /// longest round trip of all paths.
    pub(super) fn round_trip_ns(&self, path: PathId) -> Option<(u64, u64)> {
        let Path { srtt_ns, deviation_ns, .. } = self.paths[path.index()];
        if srtt_ns > 0 {
            return Some((srtt_ns.into(), deviation_ns.into()));
        }
        let longest = u64::from(self.paths.iter().map(|path| path.srtt_ns).max()?);
        (longest > 0).then_some((longest, longest))
    }

    /// Returns the shortest smoothed round trip, 0 before the first measurement.
    pub(super) fn srtt_least_ns(&self) -> u64 {
        let measured = self.paths.iter().map(|path| path.srtt_ns).filter(|srtt_ns| *srtt_ns > 0);
        measured.min().unwrap_or(0).into()
    }

    /// Adds to the window of an open path, but not beyond a sum of `total_most`. Returns the added units.
    pub(super) fn widen(&mut self, path: PathId, units: u32, total_most: u32) -> u32 {
        assert!(self.is_open(path), "a closed path has no window");
        let units = units.min(total_most.saturating_sub(self.total_window));
        assert!(
            self.window(path) + units <= WINDOW_PACKETS * PACKET,
            "a path has at most the window of a message"
        );
        self.paths[path.index()].window += units as u16;
        self.total_window += units;
        units
    }

    /// Takes from the window of an open path, down to the smallest window. Returns the units taken.
    pub(super) fn narrow(&mut self, path: PathId, units: u32) -> u32 {
        assert!(self.is_open(path), "a closed path has no window");
        assert!(self.window(path) >= WINDOW_LEAST, "an open path has the smallest window at least");
        let units = units.min(self.window(path) - WINDOW_LEAST);
        self.paths[path.index()].window -= units as u16;
        self.total_window -= units;
        units
    }

    /// Closes a path, for longer than the last time. Returns its window.
    pub(super) fn close(&mut self, now_ns: u64, path: PathId) -> u32 {
        assert!(self.is_open(path) && self.open_count() > 1, "one path stays open");
        self.open &= !path.bit();
        let window = std::mem::take(&mut self.paths[path.index()].window).into();
        assert!(
            self.total_window >= window + WINDOW_LEAST,
            "the total is the sum of the windows, and a path stays open"
        );
        self.total_window -= window;
        self.put_off(now_ns, path);
        window
    }

    /// Opens a path with the smallest window.
    pub(super) fn open(&mut self, path: PathId) {
        assert!(!self.is_open(path), "a path is opened after it was closed");
        self.open |= path.bit();
        let entry = &mut self.paths[path.index()];
        assert_eq!(entry.window, 0, "a closed path has no window");
        (entry.window, entry.goods) = (WINDOW_LEAST as u16, 0);
        self.total_window += WINDOW_LEAST;
    }

    /// Notes that a closed path did not answer a look well: the next look comes later.
    pub(super) fn note_failed_look(&mut self, now_ns: u64, path: PathId) {
        assert!(!self.is_open(path), "only a closed path is looked at");
        self.put_off(now_ns, path);
    }

    fn put_off(&mut self, now_ns: u64, path: PathId) {
        let entry = &mut self.paths[path.index()];
        assert!(self.open != 0, "one path is open at least");
        assert_eq!(entry.window, 0, "a path with a window needs no look");
        entry.due = due_step(now_ns + (LOOK_NS << entry.backoff));
        entry.backoff = (entry.backoff + 1).min(BACKOFF_MAX);
        entry.goods = 0;
    }

    /// Returns the closed path whose look is due for the longest time. The path's next look comes later, whatever the
    /// outcome: a response may acknowledge the packet, which then says nothing about the path, and all paths get their
    /// turns. One look is under way at a time: when all paths over a slow link closed together, their looks came
    /// together too, and queued there for longer than the windows of open paths take.
    pub(super) fn due(&mut self, now_ns: u64) -> Option<PathId> {
        if self.open == self.all() {
            return None;
        }
        let steps_left = |path: &Path| path.due.wrapping_sub(due_step(now_ns));
        let is_due = |path: &Path| !(1..=DUE_STEPS_MAX).contains(&steps_left(path));
        let closed = || self.ids().filter(|path| !self.is_open(*path));
        let is_looking = closed().any(|path| self.paths[path.index()].in_flight > 0);
        if is_looking || planted("proto_closed_path_stays_closed") {
            return None;
        }
        let due = closed().filter(|path| is_due(&self.paths[path.index()]));
        let path = due.min_by_key(|path| steps_left(&self.paths[path.index()]))?;
        let entry = &mut self.paths[path.index()];
        entry.due = due_step(now_ns + (LOOK_NS << entry.backoff));
        Some(path)
    }

    /// Counts a good answer on an open path, and thereby shortens the next closing.
    pub(super) fn note_good(&mut self, path: PathId) {
        let entry = &mut self.paths[path.index()];
        entry.goods = entry.goods.saturating_add(1);
        if entry.goods.is_multiple_of(GOODS_PER_STEP) {
            entry.backoff = entry.backoff.saturating_sub(1);
        }
    }

    /// Counts good answers on an open path, as [`PathSet::note_good`] for each of them.
    pub(super) fn note_goods(&mut self, path: PathId, count: u32) {
        assert!(self.is_open(path), "a good answer opens a closed path");
        let entry = &mut self.paths[path.index()];
        let goods = (u32::from(entry.goods) + count).min(u8::MAX.into()) as u8;
        let steps = goods / GOODS_PER_STEP - entry.goods / GOODS_PER_STEP;
        entry.backoff = entry.backoff.saturating_sub(steps);
        entry.goods = goods;
    }

    /// Returns the open path with the largest window; `other` only without a choice.
    pub(super) fn widest(&self, other: PathId) -> PathId {
        let open = self.ids().filter(|path| self.is_open(*path));
        open.max_by_key(|path| (*path != other, self.window(*path))).unwrap_or(other)
    }

    /// Returns a random path, open or closed; `other` only without a choice.
    pub(super) fn random_of_all(&self, random: &mut Random, other: PathId) -> PathId {
        let count = self.count();
        if count == 1 { other } else { other.ahead(1 + random.below(count - 1), count) }
    }

    /// Returns a random open path; `other` only without a choice. If `other` is the only open path, returns a closed
    /// path: when the last open path was dead and closed paths were not, repetitions never arrived.
    pub(super) fn random(&self, random: &mut Random, other: Option<PathId>) -> PathId {
        let others = !other.map_or(0, PathId::bit);
        let choices = [self.open & others, self.all() & others, self.open];
        let mut choice = choices.into_iter().find(|choice| *choice != 0).unwrap_or(self.open);
        for _ in 0..random.below(choice.count_ones()) {
            choice &= choice - 1;
        }
        PathId(choice.trailing_zeros() as u8)
    }
}

fn due_step(time_ns: u64) -> u16 {
    (time_ns >> DUE_STEP_LOG2) as u16
}

#[cfg(test)]
mod tests;
