//! The running check of pairs that move in the order of their keys: from a store to a file, and back to a store.

use crate::api::Pair;
use crate::hash::{hash, mix};

/// Number, last key and check of the pairs so far (`docs/kv-protocol.md` §9).
#[derive(Debug, Clone, Default)]
pub(crate) struct PairCheck {
    keys: u64,
    value: u64,
    last_key: Vec<u8>,
}

/// A key is not after the former one: pairs are missing, repeated or exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfOrder;

impl PairCheck {
    /// The check after `keys` pairs, the last with the key `last_key`.
    pub(crate) fn resume(keys: u64, value: u64, last_key: &[u8]) -> Self {
        Self { keys, value, last_key: last_key.to_vec() }
    }

    /// Adds a pair.
    pub(crate) fn add(&mut self, pair: &Pair<'_>) -> Result<(), OutOfOrder> {
        if pair.key <= &self.last_key[..] {
            return Err(OutOfOrder);
        }
        self.keys += 1;
        self.last_key.clear();
        self.last_key.extend_from_slice(pair.key);
        for word in [hash(pair.key), pair.revision, hash(pair.value)] {
            self.value = mix(self.value, word);
        }
        Ok(())
    }

    /// Adds pairs in their order.
    pub(crate) fn add_all<'p>(
        &mut self,
        mut pairs: impl Iterator<Item = Pair<'p>>,
    ) -> Result<(), OutOfOrder> {
        pairs.try_for_each(|pair| self.add(&pair))
    }

    /// The number of pairs.
    pub(crate) fn keys(&self) -> u64 {
        self.keys
    }

    /// The check of all pairs and their order.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(pairs: &[(&[u8], u64, &[u8])]) -> Result<u64, OutOfOrder> {
        let mut check = PairCheck::default();
        check.add_all(pairs.iter().map(|&(key, revision, value)| Pair { key, revision, value }))?;
        Ok(check.value())
    }

    #[test]
    fn value__depends_on_each_part_of_each_pair() {
        let pairs = [(&b"a"[..], 1, &b"x"[..]), (b"b", 2, b"y")];
        let whole = value_of(&pairs).unwrap();
        assert_eq!(value_of(&pairs), Ok(whole));
        for other in [
            [(&b"a"[..], 1, &b"x"[..]), (b"c", 2, b"y")],
            [(b"a", 1, b"x"), (b"b", 3, b"y")],
            [(b"a", 1, b"x"), (b"b", 2, b"z")],
            [(b"a", 2, b"x"), (b"b", 1, b"y")],
        ] {
            assert_ne!(value_of(&other), Ok(whole), "{other:?}");
        }
        assert_ne!(value_of(&pairs[..1]), Ok(whole));
        assert_eq!(value_of(&[pairs[1], pairs[0]]), Err(OutOfOrder));
        assert_eq!(value_of(&[pairs[0], pairs[0]]), Err(OutOfOrder));
    }
}
