//! Several choices, and several answers, at once, with the results of [`Paths::choose`] and [`Paths::note_answer`] for each of
//! them.

use super::set::PACKET;
use super::{LATE_PACKETS, MARGIN_DECAY_LOG2, PathId, Paths, State};
use crate::limits::PATHS_MAX;

/// The paths for new packets that follow each other without an answer in between: no window moves then, and a path has room
/// until the packets sent fill it.
#[derive(Debug)]
pub(crate) struct Choices {
    /// Bit *i* is set if path *i* may be chosen.
    roomy: u32,
    /// Packets for which the sum of the windows has room.
    room: u32,
    /// True if each path has a window of its own.
    is_by_path: bool,
}

/// The number of packets by path.
pub(crate) type PathTally = [u16; PATHS_MAX];

impl Paths {
    /// Returns the choices for new packets; `None` if a choice depends on more than the windows.
    pub(crate) fn choices(&self) -> Option<Choices> {
        let (roomy, is_by_path) = match &self.state {
            State::Single(_) => (PathId::FIRST.bit(), false),
            State::Plb(plb, _) => (plb.path().bit(), false),
            State::Coupled(_) if self.set.are_all_open() => (self.set.roomy(), true),
            State::Coupled(_) | State::Spray(_) | State::Reps(..) | State::MpRdma(_) => {
                return None;
            }
        };
        Some(Choices { roomy, room: self.room(), is_by_path })
    }

    /// [`Paths::choose`] of the choices.
    #[inline]
    pub(crate) fn choose_of(&mut self, now_ns: u64, choices: &Choices) -> Option<PathId> {
        if choices.roomy == 0 || self.next.is_some() {
            return self.choose(now_ns);
        }
        if choices.room == 0 {
            return None;
        }
        let path = match &mut self.state {
            State::Coupled(coupled) => coupled.take_turn(choices.roomy),
            _ => PathId(choices.roomy.trailing_zeros() as u8),
        };
        self.next = Some(path);
        Some(path)
    }

    /// [`Paths::note_new`] of the choices.
    #[inline]
    pub(crate) fn note_new_of(&mut self, path: PathId, choices: &mut Choices) {
        self.note_new(path);
        choices.room = choices.room.saturating_sub(1);
        if choices.is_by_path && self.set.room(path) < PACKET as i32 {
            choices.roomy &= !path.bit();
        }
    }

    /// Returns true if good answers to packets up to this far behind the highest acknowledged one change no window and no
    /// choice. They may be noted together then, by [`Paths::note_goods`].
    pub(crate) fn takes_goods(&self, now_ns: u64, behind_packets: u32) -> bool {
        let is_steady = match &self.state {
            State::Single(window) => window.is_widest(),
            State::Plb(plb, window) => window.is_widest() && plb.is_in_round(now_ns),
            State::Coupled(coupled) => self.set.are_all_open() && coupled.is_widest(&self.set),
            State::Spray(_) | State::Reps(..) | State::MpRdma(_) => false,
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
            steps in prop::collection::vec((0u32..60, 0u8..20, 1u64..40_000), 1..120),
        ) {
            let [mut quick, mut slow] = [0; 2].map(|_| Paths::new(policy, count, most, 9));
            let (mut now_ns, mut flying) = (1_000_000, std::collections::VecDeque::new());
            for (packets, event, wait_ns) in steps {
                now_ns += wait_ns;
                let mut choices = quick.choices();
                for _ in 0..packets {
                    let path = slow.choose(now_ns);
                    let same = match &choices {
                        Some(choices) => quick.choose_of(now_ns, choices),
                        None => quick.choose(now_ns),
                    };
                    prop_assert_eq!(path, same);
                    let Some(path) = path else { break };
                    slow.note_new(path);
                    match &mut choices {
                        Some(choices) => quick.note_new_of(path, choices),
                        None => quick.note_new(path),
                    }
                    flying.push_back(path);
                }
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
