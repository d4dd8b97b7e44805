//! Sets of a message's packets: a cumulative count, and a bitmap of packets beyond (MP-RDMA §3.3,
//! `docs/wire-protocol.md` §3.1).

use crate::limits::{BITMAP_WORDS, WINDOW_PACKETS};

/// The bitmap words of CREDIT and PULL frames.
pub type Words = [u64; BITMAP_WORDS];

/// A set of packet indices: all below [`Window::cumulative`], and some of the
/// [`WINDOW_PACKETS`] from there on. Bit *i* stands for packet `cumulative + i`.
///
/// Invariant: bit 0 is never set; the packet would have been counted into `cumulative`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    cumulative: u32,
    words: Words,
}

/// The result of [`Window::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insert {
    /// The packet is new.
    New,
    /// The packet is in the set already.
    Duplicate,
    /// The packet is too far ahead for the bitmap.
    Beyond,
}

impl Window {
    /// Makes an empty set.
    pub const fn new() -> Self {
        Self { cumulative: 0, words: [0; BITMAP_WORDS] }
    }

    /// Returns the cumulative count: all packets below are in the set.
    #[inline]
    pub const fn cumulative(&self) -> u32 {
        self.cumulative
    }

    /// Returns the bitmap.
    #[inline]
    pub const fn words(&self) -> &Words {
        &self.words
    }

    /// Returns the number of packets in the set.
    #[inline]
    pub fn count(&self) -> u32 {
        self.cumulative + self.words.iter().map(|word| word.count_ones()).sum::<u32>()
    }

    /// Returns the first packet not in the set, if no later packet is in the set: the next packet while nothing is
    /// lost.
    #[inline]
    pub fn next_in_order(&self) -> Option<u32> {
        is_clear(&self.words).then_some(self.cumulative)
    }

    /// Adds the packet that [`Window::next_in_order`] returned.
    #[inline]
    pub fn insert_next(&mut self) {
        debug_assert!(is_clear(&self.words));
        self.cumulative += 1;
    }

    /// Returns true if `packet` is in the set.
    #[inline]
    pub fn contains(&self, packet: u32) -> bool {
        match packet.checked_sub(self.cumulative) {
            None => true,
            Some(ahead) if ahead < WINDOW_PACKETS => bit(&self.words, ahead),
            Some(_) => false,
        }
    }

    /// Returns one more than the highest packet in the set.
    #[inline]
    pub fn end(&self) -> u32 {
        self.cumulative + words_end(&self.words)
    }

    /// Returns true if `packet` is not in the set and can be added.
    #[inline(always)]
    pub fn lacks(&self, packet: u32) -> bool {
        let ahead = packet.wrapping_sub(self.cumulative);
        ahead < WINDOW_PACKETS && !bit(&self.words, ahead)
    }

    /// Adds a packet that the set [lacks](Window::lacks), with few instructions if an earlier one is missing.
    #[inline(always)]
    pub fn insert_lacking(&mut self, packet: u32) {
        debug_assert!(self.lacks(packet));
        let ahead = packet.wrapping_sub(self.cumulative) % WINDOW_PACKETS;
        if ahead > 0 {
            self.words[ahead as usize / 64] |= 1 << (ahead % 64);
        } else {
            self.insert_first(packet);
        }
    }

    #[inline(never)]
    fn insert_first(&mut self, packet: u32) {
        self.insert(packet);
    }

    /// Adds `packet`.
    #[inline]
    pub fn insert(&mut self, packet: u32) -> Insert {
        let Some(ahead) = packet.checked_sub(self.cumulative) else { return Insert::Duplicate };
        if ahead == 0 && is_clear(&self.words) {
            self.cumulative += 1;
            return Insert::New;
        }
        if ahead >= WINDOW_PACKETS {
            return Insert::Beyond;
        }
        if bit(&self.words, ahead) {
            return Insert::Duplicate;
        }
        self.words[ahead as usize / 64] |= 1 << (ahead % 64);
        if ahead == 0 {
            self.absorb_run();
        }
        Insert::New
    }

    /// Adds all packets of an acknowledgement: packets below `cumulative`, and from there on the bits of
    /// `words`. Outdated acknowledgements are harmless. Returns the number of new packets.
    #[inline]
    pub fn merge(&mut self, cumulative: u32, words: &Words) -> u32 {
        if is_clear(words) && is_clear(&self.words) {
            let added = cumulative.saturating_sub(self.cumulative);
            self.cumulative += added;
            return added;
        }
        let before = self.count();
        self.merge_bits(cumulative, words);
        let after = self.count();
        assert!(after >= before, "no packet leaves a window");
        after - before
    }

    #[cold]
    fn merge_bits(&mut self, cumulative: u32, words: &Words) {
        let mut theirs = *words;
        if cumulative > self.cumulative {
            shift_down(&mut self.words, cumulative - self.cumulative);
            self.cumulative = cumulative;
        } else if cumulative < self.cumulative {
            shift_down(&mut theirs, self.cumulative - cumulative);
        }
        self.words.iter_mut().zip(theirs).for_each(|(word, more)| *word |= more);
        if self.words[0] & 1 == 1 {
            self.absorb_run();
        }
        assert!(
            self.words[0] & 1 == 0 && self.cumulative >= cumulative,
            "a window begins with the first packet that is missing"
        );
    }

    /// Returns the packets that an acknowledgement would add, as bits from [`Window::cumulative`] on; `None` if some are
    /// beyond the window.
    pub fn news(&self, cumulative: u32, words: &Words) -> Option<Words> {
        let mut theirs = *words;
        if let Some(less) = self.cumulative.checked_sub(cumulative) {
            if less > 0 {
                shift_down(&mut theirs, less);
            }
        } else {
            let count = cumulative - self.cumulative;
            if count + words_end(words) > WINDOW_PACKETS {
                return None;
            }
            shift_up(&mut theirs, count);
        }
        theirs.iter_mut().zip(self.words).for_each(|(word, known)| *word &= !known);
        Some(theirs)
    }

    /// Returns the packets below [`Window::end`] that are not in the set, as bits from [`Window::cumulative`] on.
    pub fn missing(&self) -> Words {
        let end = words_end(&self.words);
        std::array::from_fn(|index| {
            !self.words[index] & ones_below(end.saturating_sub(64 * index as u32))
        })
    }

    /// Counts the run of packets at the start of the bitmap into `cumulative`.
    fn absorb_run(&mut self) {
        let run = trailing_ones(&self.words);
        assert!(run > 0, "a run begins with the packet that was missing");
        self.cumulative += run;
        shift_down(&mut self.words, run);
        assert!(self.words[0] & 1 == 0, "a run ends before a packet that is missing");
    }
}

/// Bits for the packets of a window, by packet index modulo [`WINDOW_PACKETS`]. At most this number of
/// consecutive packets are in flight, so every packet has its own bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketBits {
    words: Words,
}

impl PacketBits {
    /// Makes a set with no bit set.
    pub const fn new() -> Self {
        Self { words: [0; BITMAP_WORDS] }
    }

    /// Returns true if no bit is set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        is_clear(&self.words)
    }

    /// Sets the bit of `packet`.
    #[inline]
    pub fn set(&mut self, packet: u32) {
        let position = packet % WINDOW_PACKETS;
        self.words[position as usize / 64] |= 1 << (position % 64);
    }

    /// Sets the bit of `packet`. Returns true if it was clear.
    #[inline]
    pub fn set_new(&mut self, packet: u32) -> bool {
        let new = !self.is_set(packet);
        self.set(packet);
        new
    }

    /// Returns true if the bit of `packet` is set.
    #[inline]
    pub fn is_set(&self, packet: u32) -> bool {
        bit(&self.words, packet % WINDOW_PACKETS)
    }

    /// Clears the bit of `packet`.
    #[inline]
    pub fn clear(&mut self, packet: u32) {
        let position = packet % WINDOW_PACKETS;
        self.words[position as usize / 64] &= !(1 << (position % 64));
    }

    /// Returns the first packet at or after `from` whose bit is set.
    #[inline]
    pub fn first_from(&self, from: u32) -> Option<u32> {
        if self.is_empty() { None } else { self.search_from(from) }
    }

    #[cold]
    fn search_from(&self, from: u32) -> Option<u32> {
        let found = (from..from + WINDOW_PACKETS).find(|&packet| self.is_set(packet));
        assert!(found.is_some(), "a window of packets meets every bit");
        found
    }
}

/// Calls `each` with the position of every set bit, in order.
pub fn for_each_bit(words: &Words, mut each: impl FnMut(u32)) {
    for (index, &word) in words.iter().enumerate() {
        let mut rest = word;
        while rest != 0 {
            each(index as u32 * 64 + rest.trailing_zeros());
            rest &= rest - 1;
        }
    }
}

/// Returns one more than the position of the highest set bit; 0 if no bit is set.
#[inline]
pub fn words_end(words: &Words) -> u32 {
    for index in (0..BITMAP_WORDS).rev() {
        if words[index] != 0 {
            return index as u32 * 64 + 64 - words[index].leading_zeros();
        }
    }
    0
}

#[inline]
fn is_clear(words: &Words) -> bool {
    words.iter().fold(0, |all, word| all | word) == 0
}

#[inline]
fn bit(words: &Words, position: u32) -> bool {
    words[position as usize / 64] >> (position % 64) & 1 == 1
}

fn trailing_ones(words: &Words) -> u32 {
    let mut run = 0;
    for word in words {
        run += word.trailing_ones();
        if *word != u64::MAX {
            break;
        }
    }
    run
}

/// Returns a word with `count` bits set, at most all.
fn ones_below(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Moves all bits up by `count` positions, and sets those below. No bit may leave the words.
fn shift_up(words: &mut Words, count: u32) {
    let (whole, part) = (count as usize / 64, count % 64);
    for index in (0..BITMAP_WORDS).rev() {
        let low = index.checked_sub(whole + 1).map_or(u64::MAX, |from| words[from]);
        let high = index.checked_sub(whole).map_or(u64::MAX, |from| words[from]);
        words[index] = if part == 0 { high } else { high << part | low >> (64 - part) };
    }
}

/// Moves all bits down by `count` positions, and discards lower bits.
fn shift_down(words: &mut Words, count: u32) {
    assert!(count > 0, "bits move by a position at least");
    if count >= WINDOW_PACKETS {
        *words = [0; BITMAP_WORDS];
        return;
    }
    if count < 64 {
        for index in 0..BITMAP_WORDS {
            let high = if index + 1 < BITMAP_WORDS { words[index + 1] } else { 0 };
            words[index] = words[index] >> count | high << 1 << (63 - count);
        }
        return;
    }
    let (whole, part) = (count as usize / 64, count % 64);
    for index in 0..BITMAP_WORDS {
        let low = words.get(index + whole).copied().unwrap_or(0);
        let high = words.get(index + whole + 1).copied().unwrap_or(0);
        words[index] = if part == 0 { low } else { low >> part | high << (64 - part) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The naive model: the set itself.
    #[derive(Default)]
    struct Model(BTreeSet<u32>);

    impl Model {
        fn cumulative(&self) -> u32 {
            (0..).find(|packet| !self.0.contains(packet)).expect("the set is finite")
        }

        fn insert(&mut self, packet: u32) -> Insert {
            let cumulative = self.cumulative();
            if packet >= cumulative + WINDOW_PACKETS {
                Insert::Beyond
            } else if self.0.insert(packet) {
                Insert::New
            } else {
                Insert::Duplicate
            }
        }
    }

    fn assert_same(window: &Window, model: &Model) {
        assert_eq!(window.cumulative(), model.cumulative());
        assert_eq!(window.count() as usize, model.0.len());
        assert_eq!(window.end(), model.0.last().map_or(0, |last| last + 1));
        for packet in 0..window.end() + 3 {
            assert_eq!(window.contains(packet), model.0.contains(&packet), "packet {packet}");
        }
    }

    proptest! {
        #[test]
        fn insert_matches_model(steps in prop::collection::vec((0u32..40, 0u32..300), 0..400)) {
            let mut window = Window::new();
            let mut model = Model::default();
            for (near, far) in steps {
                // Mostly near the front, to absorb runs; sometimes far ahead.
                let ahead = if near == 0 { far } else { near % 9 };
                let packet = (model.cumulative() + ahead).saturating_sub(2);
                let mut other = window;
                let result = window.insert(packet);
                prop_assert_eq!(result, model.insert(packet));
                prop_assert_eq!(other.lacks(packet), result == Insert::New);
                if other.lacks(packet) {
                    other.insert_lacking(packet);
                }
                prop_assert_eq!(other, window);
                prop_assert_eq!(window.words()[0] & 1, 0);
            }
            assert_same(&window, &model);
        }

        #[test]
        fn merge_matches_model(acks in prop::collection::vec(
            (0u32..600, prop::array::uniform4(any::<u64>())), 0..12))
        {
            let mut window = Window::new();
            let mut model = Model::default();
            for (cumulative, mut words) in acks {
                words[0] &= !1;
                let before = model.0.len();
                let added = window.merge(cumulative, &words);
                model.0.extend(0..cumulative);
                for_each_bit(&words, |ahead| { model.0.insert(cumulative + ahead); });
                prop_assert_eq!(added as usize, model.0.len() - before);
            }
            assert_same(&window, &model);
        }

        #[test]
        fn news_and_missing_match_the_sets(
            packets in prop::collection::vec(0u32..250, 0..200),
            (cumulative, mut words) in (0u32..400, prop::array::uniform4(any::<u64>())),
            narrow in 0u32..4,
        ) {
            let mut window = Window::new();
            packets.iter().for_each(|packet| _ = window.insert(*packet));
            words[0] &= !1;
            (0..narrow).for_each(|word| words[3 - word as usize] = 0);
            let mut more = window;
            let is_near = cumulative + words_end(&words) <= window.cumulative() + WINDOW_PACKETS;
            let news = window.news(cumulative, &words);
            prop_assert_eq!(news.is_some(), is_near || cumulative <= window.cumulative());
            if let Some(news) = news {
                more.merge(cumulative, &words);
                let base = window.cumulative();
                let mut found = BTreeSet::new();
                for_each_bit(&news, |ahead| _ = found.insert(base + ahead));
                let expected = (0..more.end())
                    .filter(|packet| more.contains(*packet) && !window.contains(*packet));
                prop_assert!(found.into_iter().eq(expected));
            }
            let mut missing = BTreeSet::new();
            for_each_bit(&window.missing(), |ahead| _ = missing.insert(window.cumulative() + ahead));
            let expected = (0..window.end()).filter(|packet| !window.contains(*packet));
            prop_assert!(missing.into_iter().eq(expected));
        }

        #[test]
        fn packet_bits_match_model(start in 0u32..10_000, offsets in prop::collection::btree_set(
            0u32..WINDOW_PACKETS, 0..40), cleared in prop::collection::vec(0u32..WINDOW_PACKETS, 0..20))
        {
            let mut bits = PacketBits::new();
            let mut model: BTreeSet<u32> = offsets.iter().map(|offset| start + offset).collect();
            for packet in &model { bits.set(*packet); }
            for offset in cleared { bits.clear(start + offset); model.remove(&(start + offset)); }
            prop_assert_eq!(bits.first_from(start), model.first().copied());
            prop_assert_eq!(bits.is_empty(), model.is_empty());
        }
    }

    #[test]
    fn insert__packet_at_the_window_end_is_taken_and_the_next_is_beyond() {
        let mut window = Window::new();
        assert_eq!(window.insert(WINDOW_PACKETS - 1), Insert::New);
        assert_eq!(window.insert(WINDOW_PACKETS), Insert::Beyond);
        assert_eq!(window.insert(0), Insert::New);
        assert_eq!(window.insert(WINDOW_PACKETS), Insert::New);
        assert_eq!(window.cumulative(), 1);
    }
}
