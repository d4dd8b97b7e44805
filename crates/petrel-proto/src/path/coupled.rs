//! *Coupled*: a window for each path, and their sum is the session's.
//!
//! The windows grow together by a packet per round trip, as MP-RDMA's single window does (§3.2). MP-RDMA keeps no state
//! of a path, to fit a network card. This policy has 16 bytes per path, and can do more with a bad path:
//!
//! - A mark takes a quarter of a packet from the window of its path. With a half, as in MP-RDMA, senders that
//!   share a queue with a marking step of 20 KB halved together and left 8 % of the link unused.
//! - A loss takes half a packet. Half of the window, for other paths to use, gained less than half a percent
//!   where three of four paths lost packets, and cost five where all did.
//! - A late answer takes a packet, for other paths to use.
//! - A path without a window is closed. A packet looks at the path after a while, and a good answer opens the path.
//! - An opened path grows by half a packet per answer until the first bad answer.
//! - While other sessions of the endpoint send, half of the largest sum is in flight. (A session alone needs the whole sum: with
//!   half, four paths of 10 Gbit/s with queues up to their marks stay unused by 10 %. But no switch marks packets that wait
//!   for the link of their host, and requests below 100 KB took a third longer than with one path.)

use super::set::{PACKET, PathSet, WINDOW_LEAST};
use super::{Feedback, PathId, Random};

/// Units that an answer or a loss takes from the window of its path.
const MARK_UNITS: u32 = PACKET / 4;
const LOSS_UNITS: u32 = PACKET / 2;
const LATE_UNITS: u32 = PACKET;

/// Units that an answer adds to the window of a fresh path, and the most that any other path takes from the pool.
const QUICK_UNITS: u32 = PACKET / 2;

/// Growth is counted in 1/512 unit: a session with the largest window grows by half a unit per answer.
const GROWTH_LOG2: u32 = 9;

/// The state of the policy; the windows are in the [`PathSet`].
#[derive(Debug)]
pub(super) struct Coupled {
    /// The largest sum of the windows, in units.
    total_most: u32,
    /// Units that bad paths gave up, and that no path has taken yet.
    pool: u32,
    /// The remainder of the growth, in 1/512 unit.
    growth: u32,
    /// Bit *i* is set if path *i* had no bad answer since it was opened.
    fresh: u32,
    /// The path chosen last: paths take turns.
    last: PathId,
    /// True if other sessions of the endpoint send, too.
    is_shared: bool,
}

impl Coupled {
    pub(super) fn new(packets_most: u32) -> Self {
        Self {
            total_most: packets_most * PACKET,
            pool: 0,
            growth: 0,
            fresh: u32::MAX,
            last: PathId::FIRST,
            is_shared: false,
        }
    }

    /// Sets whether other sessions of the endpoint send, too.
    pub(super) fn share_link(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
    }

    /// Returns how many packets the sum of the windows has room for.
    pub(super) fn room(&self, set: &PathSet) -> u32 {
        let most = if self.is_shared { self.total_most / 2 } else { self.total_most };
        let window = set.total_window().min(most).max(PACKET);
        window.saturating_sub(set.in_flight() * PACKET).div_ceil(PACKET)
    }

    /// Returns the next open path with room for a packet. If the sum has room and no path has, windows have
    /// fractions, and the path with the largest one is chosen.
    pub(super) fn choose(&mut self, now_ns: u64, set: &mut PathSet) -> Option<PathId> {
        if let Some(path) = set.due(now_ns) {
            return Some(path);
        }
        if self.room(set) == 0 {
            return None;
        }
        let turns = (1..=set.count()).map(|ahead| self.last.ahead(ahead, set.count()));
        let open = turns.filter(|path| set.is_open(*path));
        let mut best = (i32::MIN, self.last);
        for path in open {
            let room = set.room(path);
            if room > best.0 {
                best = (room, path);
            }
            if room >= PACKET as i32 {
                break;
            }
        }
        self.last = best.1;
        Some(best.1)
    }

    pub(super) fn last(&self) -> PathId {
        self.last
    }

    pub(super) fn set_last(&mut self, path: PathId) {
        self.last = path;
    }

    /// Returns true if good answers on open paths cannot widen a window.
    pub(super) fn is_widest(&self, set: &PathSet) -> bool {
        set.total_window() >= self.total_most
    }

    /// Notes good answers while no window can widen. The remainder of the growth is kept, as a widening would keep the
    /// remainder.
    pub(super) fn note_goods(&mut self, count: u32, set: &PathSet) {
        assert!(
            count == 0 || self.is_widest(set),
            "answers that widen a window are noted one by one"
        );
        self.growth = (self.growth + count * growth_of(set)) & ((1 << GROWTH_LOG2) - 1);
    }

    pub(super) fn note(&mut self, now_ns: u64, path: PathId, what: Feedback, set: &mut PathSet) {
        if what != Feedback::Good {
            self.fresh &= !path.bit();
            if !set.is_open(path) {
                set.note_failed_look(now_ns, path);
                return;
            }
        }
        match what {
            Feedback::Good => self.note_good(path, set),
            Feedback::Marked => {
                self.reduce(now_ns, path, MARK_UNITS, set);
            }
            Feedback::Late => {
                let taken = self.reduce(now_ns, path, LATE_UNITS, set);
                self.give_up(taken, set);
            }
            Feedback::Lost | Feedback::TimedOut => {
                self.reduce(now_ns, path, LOSS_UNITS, set);
            }
        }
    }

    fn note_good(&mut self, path: PathId, set: &mut PathSet) {
        assert!(self.pool <= self.total_most, "windows gave up the pool");
        assert!(self.growth < 1 << GROWTH_LOG2, "the remainder of the growth is below a unit");
        if !set.is_open(path) {
            return self.open(path, set);
        }
        set.note_good(path);
        if self.is_widest(set) {
            return self.note_goods(1, set);
        }
        let share = set.total_window() / set.open_count();
        if self.fresh & path.bit() != 0 && set.window(path) < 2 * share {
            set.widen(path, QUICK_UNITS, self.total_most);
        } else {
            let taken = set.widen(path, self.pool.min(QUICK_UNITS), self.total_most);
            self.pool -= taken;
        }
        self.growth += growth_of(set);
        set.widen(path, self.growth >> GROWTH_LOG2, self.total_most);
        self.growth &= (1 << GROWTH_LOG2) - 1;
    }

    /// Opens a path with a whole packet. If the sum is at its largest, the widest path gives the packet: the sender
    /// would neither choose nor look at an open path without a window.
    fn open(&mut self, path: PathId, set: &mut PathSet) {
        set.open(path);
        self.fresh |= path.bit();
        let missing = (set.total_window() + WINDOW_LEAST).saturating_sub(self.total_most);
        let widest = set.widest(path);
        set.narrow(widest, missing);
        set.widen(path, PACKET - WINDOW_LEAST, self.total_most);
        self.pool = self.pool.min(self.total_most.saturating_sub(set.total_window()));
    }

    /// Takes units from the window of a path. If less than the smallest window would be left, closes the path and gives
    /// up the rest, too. Returns the units taken, without the rest.
    fn reduce(&mut self, now_ns: u64, path: PathId, units: u32, set: &mut PathSet) -> u32 {
        let taken = set.narrow(path, units);
        if taken < units && set.open_count() > 1 {
            let rest = set.close(now_ns, path);
            self.give_up(rest, set);
        }
        taken
    }

    /// Keeps units for other paths, as far as the sum has room for them.
    fn give_up(&mut self, units: u32, set: &PathSet) {
        let room = self.total_most.saturating_sub(set.total_window());
        self.pool = (self.pool + units).min(room);
    }

    /// Returns the path for a repetition: the most used path, since a second loss would hold up the message.
    pub(super) fn choose_again(&self, set: &PathSet, last: PathId, random: &mut Random) -> PathId {
        let widest = set.widest(last);
        if widest == last { set.random(random, Some(last)) } else { widest }
    }
}

/// Returns what a good answer adds to the growth, in 1/512 unit.
fn growth_of(set: &PathSet) -> u32 {
    ((PACKET * PACKET) << GROWTH_LOG2) / set.total_window().max(PACKET)
}
