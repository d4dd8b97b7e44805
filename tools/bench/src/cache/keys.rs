//! Keys, values and the popularity of keys.

use std::cell::Cell;

use fastrand::Rng;

/// Keys drawn before the window, more than its operations. A draw during the window would cost the client some twenty cache misses per
/// operation, and the server would idle.
const DRAWN: usize = 4 << 20;

/// Draws numbers of keys: the popularity of a rank is its power of the negated exponent (Zipf's law), or even.
pub struct Popularity {
    count: u32,
    /// None if all keys are equally popular.
    drawn: Vec<u32>,
    next: Cell<usize>,
}

impl Popularity {
    /// Draws the numbers of keys in advance.
    pub fn new(count: u32, exponent: f64) -> Self {
        let drawn = if exponent == 0.0 { Vec::new() } else { draw_by_zipf(count, exponent) };
        Self { count, drawn, next: Cell::new(0) }
    }

    /// Returns the number of the next key.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        if self.drawn.is_empty() {
            return rng.u32(..self.count);
        }
        let next = self.next.get();
        self.next.set(if next + 1 == self.drawn.len() { 0 } else { next + 1 });
        self.drawn[next]
    }
}

fn draw_by_zipf(count: u32, exponent: f64) -> Vec<u32> {
    let mut sum = 0.0;
    let mut add = |rank: u32| {
        sum += f64::from(rank).powf(-exponent);
        sum
    };
    let sums: Vec<f64> = (1..=count).map(&mut add).collect();
    let mut rng = Rng::with_seed(0x7a69_7066);
    let draw = |_| {
        let at = rng.f64() * sum;
        // The last sum may equal the greatest product, after rounding.
        sums.partition_point(|sum| *sum <= at).min(sums.len() - 1) as u32
    };
    (0..DRAWN).map(draw).collect()
}

/// The sizes of keys and values, whose bytes follow from the number of the key.
#[derive(Clone, Copy, Debug)]
pub struct Items {
    /// Bytes of a key: 16 and more.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
}

impl Items {
    /// Appends a key: hexadecimal digits, so that it also suits memcached's protocol.
    #[inline]
    pub fn put_key(self, number: u32, out: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let word = mix(number.into()).to_be_bytes();
        let digits = word.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        out.extend(digits.map(|digit| DIGITS[usize::from(digit)]));
        out.resize(out.len() + self.key_bytes - 16, b'k');
    }

    /// Appends the value of a key.
    #[inline]
    pub fn put_value(self, number: u32, out: &mut Vec<u8>) {
        let word = value_word(number);
        let end = out.len() + self.value_bytes;
        while out.len() + 8 <= end {
            out.extend_from_slice(&word);
        }
        let rest = end - out.len();
        out.extend_from_slice(&word[..rest]);
    }

    /// Returns true if these bytes are the value of a key.
    #[inline]
    pub fn is_value(self, number: u32, bytes: &[u8]) -> bool {
        let word = value_word(number);
        let mut chunks = bytes.chunks_exact(8);
        bytes.len() == self.value_bytes
            && chunks.by_ref().all(|chunk| chunk == word)
            && chunks.remainder() == &word[..chunks.remainder().len()]
    }
}

fn value_word(number: u32) -> [u8; 8] {
    mix(u64::from(number) | 1 << 40).to_le_bytes()
}

/// Maps numbers to words, one to one (Steele's and Vigna's splitmix64).
#[inline]
pub fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_value__only_for_the_value_of_this_key() {
        for value_bytes in [0, 1, 8, 32, 37] {
            let items = Items { key_bytes: 20, value_bytes };
            let mut bytes = Vec::new();
            items.put_value(7, &mut bytes);
            assert!(items.is_value(7, &bytes) && !items.is_value(7, &[&bytes[..], b"x"].concat()));
            assert!(value_bytes == 0 || !items.is_value(8, &bytes));
            bytes.clear();
            items.put_key(7, &mut bytes);
            assert_eq!(bytes.len(), 20);
        }
    }

    #[test]
    fn draw__follows_the_law() {
        let mut rng = Rng::with_seed(1);
        for (exponent, least) in [(0.0, 0), (0.99, 1_200)] {
            let popularity = Popularity::new(1_000, exponent);
            let firsts = (0..10_000).filter(|_| popularity.draw(&mut rng) == 0).count();
            assert!(firsts >= least && firsts < least + 200, "{firsts} of the first");
        }
    }
}
