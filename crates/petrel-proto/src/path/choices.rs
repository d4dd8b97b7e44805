//! Bursts: several choices of [`Paths::choose`], or several answers of [`Paths::note_answer`], in one step with equal
//! results.

use super::{LATE_PACKETS, MARGIN_DECAY_LOG2, PathId, Paths, State};
use crate::limits::PATHS_MAX;

/// A burst of new packets without an answer in between: no window moves meanwhile, so a path has room until the burst's
/// packets fill the window. [`Paths`] counts the packets when the burst ends.
#[derive(Debug)]
pub(crate) struct Burst {
    /// Bit *i* is set if the next packet may take path *i*.
    roomy: u32,
    /// Bit *i* is set if path *i* may be used.
    allowed: u32,
    /// Packets for which there is room in the sum of the windows.
    room: u32,
    /// Packets for which each path has room.
    left: PathTally,
    /// The paths with higher numbers than `last`, which have the next turn.
    behind: u32,
    last: PathId,
}

/// The number of packets by path.
pub(crate) type PathTally = [u16; PATHS_MAX];

/// The smallest burst. For fewer packets, a choice for each costs less than a look at all paths.
const BURST_PACKETS_LEAST: u32 = 4;

impl Burst {
    pub(crate) fn new() -> Self {
        let (left, last) = ([0; PATHS_MAX], PathId::FIRST);
        Self { roomy: 0, allowed: 0, room: 0, left, behind: 0, last }
    }

    fn begin_behind(&mut self, last: PathId) {
        (self.last, self.behind) = (last, u32::MAX << last.0 << 1);
    }

    pub(crate) fn room(&self) -> u32 {
        self.room
    }

    fn allow(&mut self, path: PathId, packets: u32) {
        self.left[path.index()] = packets as u16;
        self.allowed |= path.bit();
        self.roomy |= if packets > 0 { path.bit() } else { 0 };
    }

    pub(crate) fn last(&self) -> PathId {
        self.last
    }

    /// Returns the path for the next packet; `None` if no path is known to have room for a whole packet.
    #[inline(always)]
    pub(crate) fn choose(&self) -> Option<PathId> {
        let behind = self.roomy & self.behind;
        let choice = if behind == 0 { self.roomy } else { behind };
        (choice != 0).then(|| PathId(choice.trailing_zeros() as u8))
    }

    #[inline(always)]
    pub(crate) fn note_new(&mut self, path: PathId) {
        let bit = path.bit();
        (self.last, self.behind) = (path, (bit << 1).wrapping_neg());
        let left = &mut self.left[path.index() % PATHS_MAX];
        *left -= 1;
        if *left == 0 {
            self.roomy &= !bit;
        }
    }
}

impl Paths {
    /// Begins a burst of up to `wanted` new packets, or of a single packet if the choice depends on more than the
    /// windows. Returns `None` without room.
    pub(crate) fn begin_burst(&mut self, now_ns: u64, wanted: u32) -> Option<Burst> {
        let mut burst = Burst::new();
        if wanted >= BURST_PACKETS_LEAST && self.next.is_none() {
            burst.room = self.room();
            match &self.state {
                State::Single(_) => burst.allow(PathId::FIRST, burst.room),
                State::Plb(plb, _) => burst.allow(plb.path(), burst.room),
                State::Coupled(coupled) if self.set.are_all_open() => {
                    burst.begin_behind(coupled.last());
                    self.set
                        .ids()
                        .for_each(|path| burst.allow(path, self.set.packets_of_room(path)));
                }
                State::Coupled(_) | State::MpRdma(_) => {}
            }
            if burst.room > 0 && burst.roomy != 0 {
                return Some(burst);
            }
        }
        let path = self.choose(now_ns)?;
        burst = Burst { room: 1, ..Burst::new() };
        burst.allow(path, 1);
        Some(burst)
    }

    /// Ends a burst: counts the packets, and calls `each` with every path and the number of packets. `refused` is the path
    /// chosen for a packet that the medium did not take.
    pub(crate) fn end_burst(
        &mut self,
        burst: &Burst,
        refused: Option<PathId>,
        mut each: impl FnMut(PathId, u32),
    ) {
        let (chosen, room, mut paths) = (self.next, self.room(), burst.allowed);
        while paths != 0 {
            let path = PathId(paths.trailing_zeros() as u8);
            paths &= paths - 1;
            let had = match &self.state {
                _ if chosen.is_some() => 1,
                State::Coupled(_) => self.set.packets_of_room(path),
                _ => room,
            };
            let count = had - u32::from(burst.left[path.index()]);
            if count > 0 {
                self.set.note_all_sent(path, count);
                each(path, count);
            }
        }
        assert!(
            chosen.is_none() || burst.allowed == chosen.map_or(0, PathId::bit),
            "a path is chosen for a burst of one"
        );
        match &mut self.state {
            State::Coupled(coupled) if chosen.is_none() => {
                coupled.set_last(refused.unwrap_or(burst.last));
            }
            _ => {}
        }
        self.next = refused;
    }

    /// Returns true if good answers to packets up to this far behind the highest acknowledged packet change no window
    /// and no choice. [`Paths::note_goods`] may then note the answers together.
    pub(crate) fn takes_goods(&self, now_ns: u64, behind_packets: u32) -> bool {
        let is_steady = match &self.state {
            State::Single(window) => window.is_widest(),
            State::Plb(plb, window) => window.is_widest() && plb.is_in_round(now_ns),
            State::Coupled(coupled) => self.set.are_all_open() && coupled.is_widest(&self.set),
            State::MpRdma(_) => false,
        };
        is_steady && self.margin_ns >> MARGIN_DECAY_LOG2 == 0 && behind_packets <= LATE_PACKETS
    }

    /// Notes good answers to packets that were sent once.
    pub(crate) fn note_goods(&mut self, goods: &PathTally) {
        let Self { set, state, .. } = self;
        let mut all = 0;
        for path in set.ids() {
            let count = goods[path.index()].into();
            if count == 0 {
                continue;
            }
            all += count;
            set.note_all_gone(path, count);
            match state {
                State::Coupled(_) => set.note_goods(path, count),
                State::Plb(plb, _) => plb.note_goods(path, count),
                _ => {}
            }
        }
        if let State::Coupled(coupled) = state {
            coupled.note_goods(all, set);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Answer, PathPolicy};
    use super::*;

    fn states(paths: &Paths) -> String {
        format!("{paths:?}")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 256 }))]

        /// Runs of packets and of answers leave the state that single ones leave.
        #[test]
        fn choices_and_goods__are_those_of_single_packets(
            policy in prop::sample::select(PathPolicy::ALL.to_vec()),
            (count, most) in (1usize..33, 1u32..200),
            steps in prop::collection::vec((0u32..60, 0u32..200, 0u8..20, 1u64..40_000), 1..120),
        ) {
            let [mut quick, mut slow] = [0; 2].map(|_| Paths::new(policy, count, most, 9));
            let (mut now_ns, mut flying) = (1_000_000, std::collections::VecDeque::new());
            for (packets, refused_from, event, wait_ns) in steps {
                now_ns += wait_ns;
                let mut expected = Vec::new();
                let mut is_refused = false;
                while (expected.len() as u32) < packets
                    && !is_refused
                    && let Some(path) = slow.choose(now_ns)
                {
                    is_refused = expected.len() as u32 == refused_from;
                    if !is_refused {
                        slow.note_new(path);
                        expected.push(path);
                    }
                }
                let (mut found, mut refused) = (Vec::new(), None);
                while (found.len() as u32) < packets
                    && refused.is_none()
                    && let Some(mut burst) = quick.begin_burst(now_ns, packets - found.len() as u32)
                {
                    let begin = found.len();
                    let end = packets.min(begin as u32 + burst.room());
                    while (found.len() as u32) < end
                        && let Some(path) = burst.choose()
                    {
                        if found.len() as u32 == refused_from {
                            refused = Some(path);
                            break;
                        }
                        burst.note_new(path);
                        found.push(path);
                    }
                    let mut counts = vec![0; count];
                    quick.end_burst(&burst, refused, |path, sent| counts[path.index()] += sent);
                    let sent_on = |path: usize| found[begin..].iter().filter(move |at| at.index() == path);
                    prop_assert!((0..count).all(|path| counts[path] as usize == sent_on(path).count()));
                }
                prop_assert_eq!(&expected, &found);
                prop_assert_eq!(is_refused, refused.is_some());
                flying.extend(found);
                let mut goods = PathTally::default();
                let takes = quick.takes_goods(now_ns, 0);
                for _ in 0..packets.min(flying.len() as u32) {
                    let path = flying.pop_front().expect("a packet in flight");
                    let answer = Answer { rtt_ns: None, is_marked: false, behind_packets: 0 };
                    slow.note_answer(now_ns, path, answer);
                    match takes {
                        true => goods[path.index()] += 1,
                        false => quick.note_answer(now_ns, path, answer),
                    }
                }
                quick.note_goods(&goods);
                if let Some(path) = flying.front().copied() {
                    let is_marked = event == 1;
                    let answer = Answer { rtt_ns: Some(wait_ns), is_marked, behind_packets: 0 };
                    for paths in [&mut quick, &mut slow] {
                        match event {
                            0 => paths.note_lost(now_ns, path),
                            1 | 2 => paths.note_answer(now_ns, path, answer),
                            3 => paths.note_timeout(now_ns, path),
                            _ => continue,
                        }
                    }
                    if event < 4 {
                        flying.pop_front();
                    }
                }
                prop_assert_eq!(states(&quick), states(&slow));
            }
        }
    }
}
