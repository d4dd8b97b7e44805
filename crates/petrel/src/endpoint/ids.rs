//! Tables keyed by names assigned in this process.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use petrel_proto::RequestHandle;

/// A table by sessions or links. The keys are numbers assigned by this process, and no attacker can make them collide.
/// A multiplication spreads them, at a tenth of the cost of the standard library's hash.
pub(super) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// A table by requests. Clients choose the numbers of requests, and without the secret a client could choose colliding numbers. With the
/// secret, only the few numbers with equal low bits collide.
pub(super) type RequestMap<V> = HashMap<RequestHandle, V, Secret>;

/// The secret of a table.
#[derive(Clone)]
pub(super) struct Secret(u64);

impl Default for Secret {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for Secret {
    type Hasher = IdHasher;

    #[inline]
    fn build_hasher(&self) -> IdHasher {
        IdHasher(self.0)
    }
}

#[derive(Default)]
pub(super) struct IdHasher(u64);

/// An odd number whose bits look random: from the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(32) ^ word).wrapping_mul(SPREAD);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The table uses the low bits, and the product's best bits are the high ones.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use petrel_proto::SessionId;

    use super::*;
    use crate::control::LinkId;

    /// Numbers assigned in turn, and reused with another generation, as for sessions and links.
    /// A client can choose the numbers of requests, for up to 4 096 slots.
    #[test]
    fn hash__spreads_requests_whose_numbers_have_a_pattern() {
        let session = SessionId { index: 5, generation: 1 };
        for shift in [0, 8, 16, 24, 32, 36] {
            let secret = Secret::default();
            let place = |number| secret.hash_one(RequestHandle { session, number }) & 0xfff;
            let places: HashSet<u64> = (0..4096).map(|number| place(number << shift)).collect();
            assert!(places.len() > 200, "{} places for numbers << {shift}", places.len());
        }
    }

    #[test]
    fn hash__spreads_names_over_the_places_of_a_table() {
        let hash = BuildHasherDefault::<IdHasher>::default();
        let place = |hash: u64| hash & 0xfff;
        let places = |hashes: &mut dyn Iterator<Item = u64>| {
            let places: HashSet<u64> = hashes.map(place).collect();
            places.len()
        };
        // Random numbers would hit 2 589 of 4 096 places.
        let sessions = |index| hash.hash_one(SessionId { index, generation: 1 });
        assert!(places(&mut (0..4096).map(sessions)) > 2_400);
        let lives = |generation| hash.hash_one(SessionId { index: 7, generation });
        assert!(places(&mut (0..4096).map(lives)) > 2_400);
        let links = |number| hash.hash_one(LinkId(number));
        assert!(places(&mut (0..4096).map(links)) > 2_400);
        assert_ne!(hash.hash_one([1u8, 2]), hash.hash_one([2u8, 1]));
    }
}
