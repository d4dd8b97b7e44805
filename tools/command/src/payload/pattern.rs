//! Bytes that identify their call and their offset.

/// Distance between the numbers of adjacent words: odd, to make all words of a message differ, and with
/// bits everywhere, to make neighbours differ in all bytes.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The bytes of a message. Every word depends on the call and on its offset, to detect bytes of a wrong
/// call or offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    key: u64,
}

impl Pattern {
    /// Creates the pattern of a call. The first byte counts calls, so consecutive messages of one byte
    /// differ.
    pub fn new(seed: u64, call: u64) -> Self {
        let mixed = mix(seed ^ mix(call));
        let counter = (call ^ (mixed >> 31)) & 0xff;
        Self { key: mixed & !0xff | counter }
    }

    /// Writes the pattern.
    pub fn fill(self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut();
        let mut number = self.key;
        for word in words {
            *word = scramble(number).to_le_bytes();
            number = number.wrapping_add(STEP);
        }
        let last = scramble(number).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// Returns the offset of the first byte that differs from the pattern.
    pub fn first_difference(self, bytes: &[u8]) -> Option<usize> {
        let (words, rest) = bytes.as_chunks();
        let mut number = self.key;
        for (index, word) in words.iter().enumerate() {
            let expected = scramble(number).to_le_bytes();
            if *word != expected {
                return differs(word, &expected).map(|at| 8 * index + at);
            }
            number = number.wrapping_add(STEP);
        }
        let last = scramble(number).to_le_bytes();
        differs(rest, &last[..rest.len()]).map(|at| 8 * words.len() + at)
    }
}

/// Spreads the high bits, so small messages depend on the whole number.
fn scramble(number: u64) -> u64 {
    number ^ (number >> 31)
}

/// A bijection of 64-bit numbers whose every output bit depends on every input bit.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 32)).wrapping_mul(STEP);
    let number = (number ^ (number >> 29)).wrapping_mul(STEP);
    number ^ (number >> 32)
}

fn differs(found: &[u8], expected: &[u8]) -> Option<usize> {
    found.iter().zip(expected).position(|(found, expected)| found != expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(seed: u64, call: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        Pattern::new(seed, call).fill(&mut bytes);
        bytes
    }

    #[test]
    fn first_difference__finds_each_changed_byte() {
        for size in [1, 7, 8, 9, 64, 100] {
            let good = bytes(1, 2, size);
            let pattern = Pattern::new(1, 2);
            assert_eq!(pattern.first_difference(&good), None);
            for offset in 0..size {
                let mut bad = good.clone();
                bad[offset] ^= 0x10;
                assert_eq!(pattern.first_difference(&bad), Some(offset), "{offset} of {size}");
            }
        }
    }

    #[test]
    fn new__neighbouring_calls_differ_in_their_first_byte() {
        for call in 0..1_000 {
            let first_bytes = [bytes(7, call, 1), bytes(7, call + 1, 1)];
            assert_ne!(first_bytes[0], first_bytes[1], "call {call}");
        }
    }

    #[test]
    fn fill__words_of_a_message_differ() {
        let message = bytes(3, 4, 8 << 10);
        let words: std::collections::BTreeSet<&[u8]> = message.chunks(8).collect();
        assert_eq!(words.len(), 1 << 10);
    }
}
