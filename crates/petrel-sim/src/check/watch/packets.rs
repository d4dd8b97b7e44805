//! Sets of packets: the naive model of a bitmap.

use petrel_proto::bitmap::Words;
use petrel_proto::limits::WINDOW_PACKETS;

/// Packets of a message that a side has or knows to have arrived.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Packets {
    there: Vec<bool>,
    cumulative: u32,
    count: u32,
}

impl Packets {
    pub(super) fn insert(&mut self, packet: u32) {
        let place = packet as usize;
        if self.there.len() <= place {
            self.there.resize(place + 1, false);
        }
        self.count += u32::from(!std::mem::replace(&mut self.there[place], true));
        while self.contains(self.cumulative) {
            self.cumulative += 1;
        }
    }

    pub(super) fn contains(&self, packet: u32) -> bool {
        self.there.get(packet as usize).copied().unwrap_or(false)
    }

    /// Returns the first missing packet.
    pub(super) fn cumulative(&self) -> u32 {
        self.cumulative
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Adds the packets that a frame reports.
    pub(super) fn add(&mut self, cumulative: u32, words: &Words) {
        (self.cumulative..cumulative).for_each(|packet| self.insert(packet));
        reported(words).for_each(|ahead| self.insert(cumulative + ahead));
    }

    /// Returns true if a frame reports exactly this set.
    pub(super) fn is_reported_by(&self, cumulative: u32, words: &Words) -> bool {
        let ahead = reported(words).count() as u32;
        cumulative == self.cumulative
            && cumulative + ahead == self.count
            && reported(words).all(|ahead| self.contains(cumulative + ahead))
    }
}

/// Returns the positions of set bits.
fn reported(words: &Words) -> impl Iterator<Item = u32> {
    // Almost all words are empty.
    let filled = (0..).step_by(64).zip(words).filter(|&(_, &word)| word != 0);
    let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 == 1);
    filled.flat_map(move |(first, &word)| bits(word).map(move |bit| first + bit))
}

/// A frame reports no packets beyond the window.
const _: () = assert!(WINDOW_PACKETS as usize == size_of::<Words>() * 8);

impl std::fmt::Debug for Packets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.cumulative)?;
        let ahead =
            (self.cumulative..self.there.len() as u32).filter(|&packet| self.contains(packet));
        ahead.take(20).try_for_each(|packet| write!(f, "+{packet}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets__tell_what_is_there() {
        let mut packets = Packets::default();
        packets.add(2, &[1 << 2 | 1 << 3, 1, 0, 0]);
        assert_eq!((packets.cumulative(), packets.count()), (2, 5));
        assert!(packets.is_reported_by(2, &[1 << 2 | 1 << 3, 1, 0, 0]));
        assert!(!packets.is_reported_by(2, &[1 << 2, 1, 0, 0]));
        assert!(!packets.is_reported_by(2, &[1 << 2 | 1 << 4, 1, 0, 0]));
        packets.insert(3);
        packets.insert(2);
        assert_eq!(format!("{packets:?}"), "6+66");
    }
}
