//! The content of requests, and the expected replies. Every reply is checked in every byte.
//!
//! A small request is 32 bytes that depend on the number of the call; the reply must be identical.
//!
//! A bulk request is 8 MiB. Its first 16 bytes are the number of the call and a flag. From there on
//! every 4 KiB start with an 8-byte stamp that depends on call and place; the rest is a fixed pattern.
//! The reply is 32 bytes: the number of the call, the length, and two sums. The first sum, over the
//! stamps, detects memory of a former call and misplaced pieces in every call, at the cost of 2 048
//! loads. The second sum is over all words. The flag requests the second sum in the first, uncounted
//! calls of a window, because summing costs as much as copying.

/// Size of small requests and their replies.
pub const SMALL_BYTES: usize = 32;
/// Size of bulk requests.
pub const BULK_BYTES: usize = 8 << 20;
/// Size of replies to bulk requests.
pub const REPLY_BYTES: usize = 32;

/// Distance of the stamps in a bulk request.
const STRIDE: usize = 4096;
const WORD: usize = 8;
const STAMPS: usize = BULK_BYTES / STRIDE;

/// Calls of a lane whose words are all summed.
const FULL_CALLS: u64 = 2;

/// Spreads a number over 64 bits.
#[inline]
fn mix(number: u64) -> u64 {
    let spread = (number ^ 0x7065_7472_656c).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    spread ^ (spread >> 29)
}

/// Returns the request of a call. It begins with the call's number.
#[inline]
pub fn small(call: u64) -> [u8; SMALL_BYTES] {
    let mixed = mix(call);
    reply_of([call, mixed, mixed.rotate_left(21), !mixed])
}

/// Returns the number of the call that a small or bulk reply belongs to.
#[inline]
pub fn call_of(reply: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*reply.first_chunk()?))
}

/// Returns true if `reply` is the reply to a small call.
#[inline]
pub fn is_small(call: u64, reply: &[u8]) -> bool {
    reply == small(call)
}

/// Returns the contribution of a word to a sum.
#[inline]
fn weighed(index: usize, word: u64) -> u64 {
    word.wrapping_mul(2 * index as u64 + 1)
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + WORD].try_into().expect("a word has 8 bytes"))
}

fn put_word(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + WORD].copy_from_slice(&word.to_le_bytes());
}

/// The state of a bulk request's memory, which is reused call after call.
pub struct Bulk {
    /// Sum of all constant words.
    fixed_sum: u64,
    calls: u64,
    stamp_sum: u64,
    changing_sum: u64,
    call: u64,
}

impl Bulk {
    /// Fills the memory.
    ///
    /// # Panics
    /// If the memory's length is not [`BULK_BYTES`].
    pub fn fill(memory: &mut [u8]) -> Self {
        assert_eq!(memory.len(), BULK_BYTES);
        let mut fixed_sum = 0u64;
        for index in 0..BULK_BYTES / WORD {
            let word = mix(index as u64);
            put_word(memory, index * WORD, word);
            if !is_changing(index) {
                fixed_sum = fixed_sum.wrapping_add(weighed(index, word));
            }
        }
        Self { fixed_sum, calls: 0, stamp_sum: 0, changing_sum: 0, call: 0 }
    }

    /// Turns the memory into the request of a call.
    pub fn stamp(&mut self, memory: &mut [u8], call: u64) {
        self.call = call;
        let full = u64::from(self.calls < FULL_CALLS);
        self.calls += 1;
        (self.stamp_sum, self.changing_sum) = (0, 0);
        put_word(memory, 0, call);
        put_word(memory, WORD, full);
        for stamp in 1..STAMPS {
            let word = mix(call << 16 | stamp as u64);
            put_word(memory, stamp * STRIDE, word);
            self.stamp_sum = self.stamp_sum.wrapping_add(weighed(stamp, word));
            let weighed = weighed(stamp * STRIDE / WORD, word);
            self.changing_sum = self.changing_sum.wrapping_add(weighed);
        }
        let header = weighed(0, call).wrapping_add(weighed(1, full));
        let sum = self.fixed_sum.wrapping_add(self.changing_sum).wrapping_add(header);
        self.changing_sum = if full == 1 { sum } else { 0 };
    }

    /// Returns true if `reply` is the reply to the last stamped call.
    pub fn is_reply(&self, reply: &[u8]) -> bool {
        let words = [self.call, BULK_BYTES as u64, self.stamp_sum, self.changing_sum];
        reply == reply_of(words)
    }
}

/// Returns true if a word of a bulk request changes from call to call.
fn is_changing(index: usize) -> bool {
    index == 1 || (index * WORD).is_multiple_of(STRIDE)
}

#[inline]
fn reply_of(words: [u64; 4]) -> [u8; REPLY_BYTES] {
    let mut reply = [0; REPLY_BYTES];
    words.iter().enumerate().for_each(|(index, word)| put_word(&mut reply, index * WORD, *word));
    reply
}

/// The server's side of a bulk request: receives pieces in order, and computes the reply.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sink {
    length: usize,
    /// The known bytes of the word in which a piece ended.
    word: u64,
    call: u64,
    full: u64,
    stamp_sum: u64,
    full_sum: u64,
}

impl Sink {
    /// Returns the reply to a request that arrived in one piece.
    pub fn reply_to(request: &[u8]) -> [u8; REPLY_BYTES] {
        let mut sink = Self::default();
        sink.take(request);
        sink.reply()
    }

    /// Processes the next piece.
    pub fn take(&mut self, mut piece: &[u8]) {
        while !self.length.is_multiple_of(WORD) {
            let Some((&byte, rest)) = piece.split_first() else { return };
            self.take_byte(byte);
            piece = rest;
        }
        let words = piece.len() / WORD * WORD;
        self.take_words(&piece[..words]);
        piece[words..].iter().for_each(|byte| self.take_byte(*byte));
    }

    /// Returns the number of bytes so far.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the reply.
    pub fn reply(&self) -> [u8; REPLY_BYTES] {
        reply_of([self.call, self.length as u64, self.stamp_sum, self.full_sum])
    }

    fn take_byte(&mut self, byte: u8) {
        let place = self.length % WORD;
        self.word |= u64::from(byte) << (8 * place);
        self.length += 1;
        if place == WORD - 1 {
            let index = self.length / WORD - 1;
            let word = std::mem::take(&mut self.word);
            self.take_word(index, word);
        }
    }

    /// Processes whole words from an aligned place.
    fn take_words(&mut self, piece: &[u8]) {
        let start = self.length;
        self.length += piece.len();
        let mut at = 0;
        while at < piece.len() {
            self.take_word((start + at) / WORD, word_at(piece, at));
            let place = start + at;
            let is_next = self.full == 1 || place < WORD;
            at += if is_next { WORD } else { STRIDE - place % STRIDE };
        }
    }

    fn take_word(&mut self, index: usize, word: u64) {
        match index {
            0 => self.call = word,
            // The flag is the second word, after the call's number.
            1 => {
                self.full = word;
                if word == 1 {
                    self.full_sum = weighed(0, self.call).wrapping_add(weighed(1, word));
                }
            }
            _ => {
                if (index * WORD).is_multiple_of(STRIDE) {
                    let stamp = index * WORD / STRIDE;
                    self.stamp_sum = self.stamp_sum.wrapping_add(weighed(stamp, word));
                }
                if self.full == 1 {
                    self.full_sum = self.full_sum.wrapping_add(weighed(index, word));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(calls: u64) -> (Vec<u8>, Bulk) {
        let mut memory = vec![0; BULK_BYTES];
        let mut bulk = Bulk::fill(&mut memory);
        (1..=calls).for_each(|call| bulk.stamp(&mut memory, call));
        (memory, bulk)
    }

    #[test]
    fn is_small__takes_no_other_calls_reply() {
        assert!(is_small(7, &small(7)));
        assert!(!is_small(7, &small(8)) && !is_small(7, &small(7)[..31]));
    }

    #[test]
    fn sink__answers_as_expected_with_and_without_the_full_sum() {
        for calls in 1..5 {
            let (memory, bulk) = request(calls);
            assert!(bulk.is_reply(&Sink::reply_to(&memory)), "call {calls}");
        }
    }

    #[test]
    fn sink__takes_pieces_of_any_size() {
        for calls in [1, 4] {
            let (memory, bulk) = request(calls);
            for size in [1, 3, 7, 8, 1_408, 4_096, 65_536, 1_000_003] {
                let mut sink = Sink::default();
                memory.chunks(size).for_each(|piece| sink.take(piece));
                assert!(bulk.is_reply(&sink.reply()), "call {calls}, pieces of {size}");
            }
        }
    }

    #[test]
    fn is_reply__finds_a_changed_byte_by_the_full_sum() {
        let (mut memory, bulk) = request(1);
        memory[5_000_001] ^= 4;
        assert!(!bulk.is_reply(&Sink::reply_to(&memory)));
    }

    #[test]
    fn is_reply__finds_old_missing_and_moved_pieces_in_every_call() {
        let (memory, bulk) = request(4);
        let (old, _) = request(3);
        let mut mixed = memory.clone();
        mixed[8_192..16_384].copy_from_slice(&old[8_192..16_384]);
        assert!(!bulk.is_reply(&Sink::reply_to(&mixed)));
        assert!(!bulk.is_reply(&Sink::reply_to(&memory[..BULK_BYTES - 1])));
        let mut moved = memory.clone();
        moved[8_192..16_384].copy_from_slice(&memory[16_384..24_576]);
        moved[16_384..24_576].copy_from_slice(&memory[8_192..16_384]);
        assert!(!bulk.is_reply(&Sink::reply_to(&moved)));
    }
}
