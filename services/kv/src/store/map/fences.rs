//! Fences: the bounds between consecutive ranges of keys.

use crate::hash::hash;

/// A key, prepared for comparison.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe<'a> {
    pub(super) key: &'a [u8],
    /// One byte of the key's hash.
    pub(super) tag: u8,
    head: u128,
}

impl<'a> Probe<'a> {
    #[inline]
    pub(super) fn new(key: &'a [u8]) -> Probe<'a> {
        Probe { key, tag: (hash(key) >> 56) as u8, head: head(key) }
    }
}

/// The lower bounds of consecutive ranges. The first range also holds all keys below its bound.
#[derive(Debug, Clone)]
pub(super) struct Fences {
    heads: Vec<u128>,
    tails: Vec<Tail>,
}

/// A bound: the first 16 bytes, and the rest.
#[derive(Debug, Clone)]
pub(super) struct Fence {
    head: u128,
    tail: Tail,
}

/// The order of keys with equal heads: the shorter head first, and then the bytes after the first 16.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Tail {
    head_len: u8,
    rest: Box<[u8]>,
}

const HEAD_BYTES: usize = size_of::<u128>();

impl Fences {
    /// One range with all keys.
    pub(super) fn whole() -> Fences {
        let Fence { head, tail } = Fence::new(&[]);
        Fences { heads: vec![head], tails: vec![tail] }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// The index of the range with the key.
    #[inline]
    pub(super) fn find(&self, probe: &Probe<'_>) -> usize {
        let head = probe.head;
        let after = self.heads.partition_point(|fence| *fence < head);
        if self.heads.get(after) == Some(&head) {
            return self.find_in_ties(after, probe);
        }
        after.saturating_sub(1)
    }

    pub(super) fn insert(&mut self, at: usize, fence: Fence) {
        self.heads.insert(at, fence.head);
        self.tails.insert(at, fence.tail);
    }

    /// Merges a range with its predecessor, or the first range with its successor.
    pub(super) fn remove(&mut self, at: usize) -> Fence {
        Fence { head: self.heads.remove(at), tail: self.tails.remove(at) }
    }

    /// Splits off the ranges from `at` on. Returns their first fence, too.
    pub(super) fn split_off(&mut self, at: usize) -> (Fence, Fences) {
        let right = Fences { heads: self.heads.split_off(at), tails: self.tails.split_off(at) };
        let fence = Fence { head: right.heads[0], tail: right.tails[0].clone() };
        (fence, right)
    }

    /// Appends the ranges of `right`, which begin at `fence`.
    pub(super) fn join(&mut self, fence: Fence, right: Fences) {
        self.heads.push(fence.head);
        self.tails.push(fence.tail);
        self.heads.extend(&right.heads[1..]);
        self.tails.extend(right.tails.into_iter().skip(1));
    }

    /// Finds the range if fences have the key's head: compares the tails from fence `first` on.
    #[cold]
    fn find_in_ties(&self, first: usize, probe: &Probe<'_>) -> usize {
        let ties = self.heads[first..].partition_point(|fence| *fence == probe.head);
        let (head_len, rest) = tail(probe.key);
        let tails = &self.tails[first..first + ties];
        let before =
            tails.partition_point(|fence| (fence.head_len, &*fence.rest) <= (head_len, rest));
        (first + before).saturating_sub(1)
    }
}

impl Fence {
    pub(super) fn new(key: &[u8]) -> Fence {
        let (head_len, rest) = tail(key);
        Fence { head: head(key), tail: Tail { head_len, rest: rest.into() } }
    }

    /// The shortest bound between two keys: the prefix of the higher key that differs from the lower.
    pub(super) fn between(lower: &[u8], upper: &[u8]) -> Fence {
        let same = lower.iter().zip(upper).take_while(|(a, b)| a == b).count();
        Fence::new(&upper[..same + 1])
    }
}

/// The first bytes as a number with the order of the keys, except that trailing zeros do not count.
#[inline]
fn head(key: &[u8]) -> u128 {
    match key.first_chunk::<HEAD_BYTES>() {
        Some(head) => u128::from_be_bytes(*head),
        None => short_head(key),
    }
}

#[inline]
fn short_head(key: &[u8]) -> u128 {
    let mut head = [0; HEAD_BYTES];
    head[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(head)
}

/// The number of bytes in the key's head, and the remaining bytes.
#[inline]
fn tail(key: &[u8]) -> (u8, &[u8]) {
    match key.split_at_checked(HEAD_BYTES) {
        Some((head, rest)) => (head.len() as u8, rest),
        None => (key.len() as u8, &[]),
    }
}
