//! The patterns that occur in a packet, by the automaton of Aho and Corasick (G-Opt §5).

use std::collections::{HashSet, VecDeque};

use petrel_batch::{batched, prefetch};

use crate::futures::{self, fetched};
use crate::harness::{Forms, Measured, Pace, Report, for_each_width, summed};
use crate::memory::filled;
use crate::random::Numbers;

const PATTERNS: usize = 100_000;
const PATTERN_BYTES: usize = 12;
const PACKET_BYTES: usize = 256;

type Packet = [u8; PACKET_BYTES];

/// The state at the end of a transition is one in which a pattern ends.
const IS_MATCH: u32 = 1 << 31;

/// The transitions of a deterministic automaton: 256 per state.
struct Automaton {
    next: Box<[u32]>,
}

impl Automaton {
    fn new(patterns: &HashSet<[u8; PATTERN_BYTES]>) -> Self {
        let mut next: Vec<u32> = vec![0; 256];
        let mut ends = vec![false];
        for pattern in patterns {
            let mut state = 0;
            for byte in pattern {
                let place = state << 8 | usize::from(*byte);
                if next[place] == 0 {
                    next[place] = (next.len() >> 8) as u32;
                    next.extend([0; 256]);
                    ends.push(false);
                }
                state = next[place] as usize;
            }
            ends[state] = true;
        }
        complete(&mut next);
        let marked = |place: usize| {
            let state = next[place];
            if ends[state as usize] { state | IS_MATCH } else { state }
        };
        Self { next: filled(next.len(), marked) }
    }

    #[inline(always)]
    fn transition(&self, state: u32, byte: u8) -> &u32 {
        &self.next[((state & !IS_MATCH) as usize) << 8 | usize::from(byte)]
    }
}

/// Fills in a state's missing transitions from the state's longest proper suffix. All patterns have one length, so that no
/// suffix ends in a pattern which its state does not.
fn complete(next: &mut [u32]) {
    let mut suffixes = vec![0_u32; next.len() >> 8];
    let mut queue: VecDeque<u32> =
        next[..256].iter().copied().filter(|state| *state != 0).collect();
    while let Some(state) = queue.pop_front() {
        let suffix = suffixes[state as usize] as usize;
        for byte in 0..256 {
            let place = (state as usize) << 8 | byte;
            let other = next[suffix << 8 | byte];
            match next[place] {
                0 => next[place] = other,
                child => {
                    suffixes[child as usize] = other;
                    queue.push_back(child);
                }
            }
        }
    }
}

#[batched(width = WIDTH)]
fn matches<const WIDTH: usize>(#[shared] automaton: &Automaton, packet: &Packet) -> u32 {
    let mut count = 0;
    let mut state = 0;
    for byte in packet {
        let transition = automaton.transition(state, *byte);
        prefetch!(transition);
        state = *transition;
        count += state / IS_MATCH;
    }
    count
}

fn by_hand<const WIDTH: usize>(
    automaton: &Automaton,
    packets: &[Packet],
    mut each: impl FnMut(u32),
) {
    for packets in packets.chunks(WIDTH) {
        let mut lanes = [(0, 0); WIDTH];
        for place in 0..PACKET_BYTES {
            for (packet, (state, count)) in packets.iter().zip(&mut lanes) {
                *state = *automaton.transition(*state, packet[place]);
                *count += *state / IS_MATCH;
                if let Some(byte) = packet.get(place + 1) {
                    prefetch(std::ptr::from_ref(automaton.transition(*state, *byte)).cast());
                }
            }
        }
        lanes[..packets.len()].iter().for_each(|(_, count)| each(*count));
    }
}

async fn as_future(automaton: &Automaton, packet: &Packet) -> u32 {
    let mut count = 0;
    let mut state = 0;
    for byte in packet {
        let transition = automaton.transition(state, *byte);
        fetched(transition).await;
        state = *transition;
        count += state / IS_MATCH;
    }
    count
}

fn forms<const WIDTH: usize>(automaton: &Automaton) -> Forms<'_, Packet> {
    Forms {
        batched: summed(|packets, sum| {
            matches_batch::<WIDTH>(automaton, packets, |_, count| *sum += u64::from(count))
        }),
        by_hand: Some(summed(|packets, sum| {
            by_hand::<WIDTH>(automaton, packets, |count| *sum += u64::from(count))
        })),
        futures: summed(|packets, sum| {
            let packets: Vec<&Packet> = packets.iter().collect();
            let make = |packet| as_future(automaton, packet);
            futures::run(WIDTH, &packets, make, |count| *sum += u64::from(count));
        }),
    }
}

/// Packets of pieces of patterns: the automaton goes deep.
fn packet(numbers: &mut Numbers, patterns: &[[u8; PATTERN_BYTES]]) -> Packet {
    let mut packet = [0; PACKET_BYTES];
    let mut written = 0;
    while written < PACKET_BYTES {
        let pattern = &patterns[numbers.below(patterns.len())];
        let piece = 1 + numbers.below(PATTERN_BYTES);
        let piece = piece.min(PACKET_BYTES - written);
        packet[written..written + piece].copy_from_slice(&pattern[..piece]);
        written += piece;
    }
    packet
}

pub(crate) fn measure(pace: &Pace) -> Report {
    let mut numbers = Numbers::new(9);
    let patterns: HashSet<[u8; PATTERN_BYTES]> = (0..PATTERNS / pace.smaller)
        .map(|_| [(); PATTERN_BYTES].map(|()| b'a' + numbers.below(26) as u8))
        .collect();
    let automaton = Automaton::new(&patterns);
    let mut list: Vec<_> = patterns.iter().copied().collect();
    list.sort_unstable();
    let inputs = (0..(1 << 15) / pace.smaller).map(|_| packet(&mut numbers, &list)).collect();
    let count = move |packet: &Packet| {
        packet.windows(PATTERN_BYTES).filter(|window| patterns.contains(*window)).count()
    };
    Measured {
        title: format!(
            "{} patterns in packets of {PACKET_BYTES} bytes, {} MiB",
            list.len(),
            automaton.next.len() >> 18
        ),
        inputs,
        inputs_per_round: 256,
        answer: Box::new(move |packets| packets.iter().map(|packet| count(packet) as u64).sum()),
        naive: Box::new(|packets| {
            packets.iter().map(|packet| u64::from(matches::<1>(&automaton, packet))).sum()
        }),
        forms: for_each_width!(forms(&automaton)),
    }
    .run(pace)
}
