//! Copies between private bytes and shared words. Only whole words are accessed.

use std::sync::atomic::{AtomicU64, Ordering};

use super::block::{
    BLOCK_WORDS, PAIR_WORDS, WORD_BYTES, load_block, load_pair, store_blocks, words_before_pairs,
};
use crate::shared::SharedBytes;

const FEW_BYTES: usize = 8 * WORD_BYTES;

/// A range of bytes in words: some bytes of a first word, whole words, and some bytes of a last word.
struct Parts {
    /// The first word with any byte of the range.
    word: usize,
    /// Where the range begins in that word.
    skipped: usize,
    /// The bytes of the range in that word, if it is not a whole word.
    head: usize,
}

impl Parts {
    #[inline]
    fn of(offset: usize, len: usize) -> Self {
        let (word, skipped) = (offset / WORD_BYTES, offset % WORD_BYTES);
        let head = if skipped == 0 { 0 } else { len.min(WORD_BYTES - skipped) };
        Self { word, skipped, head }
    }

    #[inline]
    fn body(&self) -> usize {
        self.word + usize::from(self.head > 0)
    }
}

/// Copies the bytes at `offset` out.
#[inline]
pub(super) fn read(words: &[AtomicU64], offset: usize, to: &mut [u8]) {
    // Few whole words, as of most reads. The general way has more branches than such a read has words.
    if to.len() <= FEW_BYTES && (offset | to.len()).is_multiple_of(WORD_BYTES) {
        let len = to.len() / WORD_BYTES;
        return read_words(&words[offset / WORD_BYTES..][..len], to);
    }
    read_any(words, offset, to);
}

/// Copies whole words out, most of them in pairs.
///
/// # Panics
/// When `to` has another length.
#[inline(always)]
pub(super) fn read_words(mut words: &[AtomicU64], to: &mut [u8]) {
    let (mut chunks, rest) = to.as_chunks_mut::<WORD_BYTES>();
    assert!(chunks.len() == words.len() && rest.is_empty(), "whole words are read");
    if words_before_pairs(words) > 0
        && let (Some(word), Some(chunk)) = (words.split_off_first(), chunks.split_off_first_mut())
    {
        *chunk = load(word);
    }
    let (pairs, last) = words.as_chunks::<PAIR_WORDS>();
    let (chunks, last_chunks) = chunks.as_chunks_mut::<PAIR_WORDS>();
    for (chunk, pair) in chunks.iter_mut().zip(pairs) {
        load_pair(pair, chunk);
    }
    if let ([word], [chunk]) = (last, last_chunks) {
        *chunk = load(word);
    }
}

/// [`read`] of any range.
fn read_any(words: &[AtomicU64], offset: usize, to: &mut [u8]) {
    let parts = Parts::of(offset, to.len());
    let (head, rest) = to.split_at_mut(parts.head);
    if !head.is_empty() {
        let bytes = load(&words[parts.word]);
        head.copy_from_slice(&bytes[parts.skipped..parts.skipped + parts.head]);
    }
    let (body, tail) = rest.as_chunks_mut::<WORD_BYTES>();
    let words = &words[parts.body()..];
    let (first, rest) = body.split_at_mut(words_before_pairs(words).min(body.len()));
    let (blocks, last) = rest.as_chunks_mut::<BLOCK_WORDS>();
    let (first_words, rest_words) = words.split_at(first.len());
    let (block_words, _) = rest_words.as_chunks::<BLOCK_WORDS>();
    let last_words = &rest_words[BLOCK_WORDS * blocks.len()..];
    for (chunk, word) in first.iter_mut().zip(first_words) {
        *chunk = load(word);
    }
    for (block, words) in blocks.iter_mut().zip(block_words) {
        load_block(words, block);
    }
    for (chunk, word) in last.iter_mut().zip(last_words) {
        *chunk = load(word);
    }
    if !tail.is_empty() {
        tail.copy_from_slice(&load(&words[body.len()])[..tail.len()]);
    }
}

/// Bytes to be written: private bytes, or bytes of a frame that the sender may still change.
pub(super) trait Source: Copy {
    fn len(self) -> usize;

    /// Returns the first `at` bytes, and the others.
    fn split_at(self, at: usize) -> (Self, Self);

    /// Copies all bytes to as many, each once.
    fn copy_to(self, to: &mut [u8]);

    fn as_shared(&self) -> SharedBytes<'_>;
}

impl Source for &[u8] {
    #[inline(always)]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }

    #[inline(always)]
    fn split_at(self, at: usize) -> (Self, Self) {
        <[u8]>::split_at(self, at)
    }

    #[inline(always)]
    fn copy_to(self, to: &mut [u8]) {
        to.copy_from_slice(self);
    }

    #[inline(always)]
    fn as_shared(&self) -> SharedBytes<'_> {
        SharedBytes::from(*self)
    }
}

impl Source for SharedBytes<'_> {
    #[inline]
    fn len(self) -> usize {
        SharedBytes::len(&self)
    }

    #[inline]
    fn split_at(self, at: usize) -> (Self, Self) {
        (self.slice(0..at), self.slice(at..SharedBytes::len(&self)))
    }

    #[inline]
    fn copy_to(self, to: &mut [u8]) {
        self.copy_to_slice(to);
    }

    #[inline]
    fn as_shared(&self) -> SharedBytes<'_> {
        *self
    }
}

/// Copies bytes to `offset`. The other bytes of the first and the last word stay as they are, also
/// while another thread writes them.
#[inline]
pub(super) fn write<S: Source>(words: &[AtomicU64], offset: usize, from: S) {
    let parts = Parts::of(offset, from.len());
    let (head, rest) = from.split_at(parts.head);
    if head.len() > 0 {
        write_some(&words[parts.word], parts.skipped, head);
    }
    let words = &words[parts.body()..];
    let (words, tail_word) = words.split_at(rest.len() / WORD_BYTES);
    let (body, tail) = rest.split_at(WORD_BYTES * words.len());
    let (first, words) = words.split_at(words_before_pairs(words).min(words.len()));
    let (blocks, last) = words.as_chunks::<BLOCK_WORDS>();
    let (first_bytes, body) = body.split_at(size_of_val(first));
    let (block_bytes, last_bytes) = body.split_at(size_of_val(blocks));
    store_words(first, first_bytes);
    store_blocks(blocks, block_bytes.as_shared());
    store_words(last, last_bytes);
    if tail.len() > 0 {
        write_some(&tail_word[0], 0, tail);
    }
}

/// Replaces words, one by one.
#[inline]
fn store_words<S: Source>(words: &[AtomicU64], mut from: S) {
    for word in words {
        let (chunk, rest) = from.split_at(WORD_BYTES);
        let mut bytes = [0; WORD_BYTES];
        chunk.copy_to(&mut bytes);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        from = rest;
    }
}

#[inline]
fn load(word: &AtomicU64) -> [u8; WORD_BYTES] {
    word.load(Ordering::Relaxed).to_ne_bytes()
}

/// Replaces some bytes of a word.
fn write_some<S: Source>(word: &AtomicU64, at: usize, from: S) {
    let mut copy = [0; WORD_BYTES];
    let from = {
        let copy = &mut copy[..from.len()];
        from.copy_to(copy);
        &*copy
    };
    let replaced = |found: u64| {
        let mut bytes = found.to_ne_bytes();
        bytes[at..at + from.len()].copy_from_slice(from);
        u64::from_ne_bytes(bytes)
    };
    let mut found = word.load(Ordering::Relaxed);
    loop {
        let new = replaced(found);
        match word.compare_exchange_weak(found, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => found = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> Vec<AtomicU64> {
        let (chunks, []) = bytes.as_chunks::<WORD_BYTES>() else { panic!("whole words") };
        chunks.iter().map(|chunk| AtomicU64::new(u64::from_ne_bytes(*chunk))).collect()
    }

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(load).collect()
    }

    #[test]
    fn read__of_every_range() {
        let all: Vec<u8> = (0..200).collect();
        let words = words(&all);
        for start in 0..=200 {
            for end in start..=200 {
                let mut to = vec![0xEE; end - start];
                read(&words, start, &mut to);
                assert_eq!(to, all[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn write__of_every_range_and_of_nothing_else() {
        for start in 0..=200 {
            for end in start..=200 {
                let words = words(&[0xEE; 200]);
                let from: Vec<u8> = (start..end).map(|at| at as u8).collect();
                let mut expected = [0xEE; 200];
                expected[start..end].copy_from_slice(&from);
                write(&words, start, &*from);
                assert_eq!(bytes(&words), expected, "{start}..{end}");
                let words = self::words(&[0xEE; 200]);
                write(&words, start, SharedBytes::from(&*from));
                assert_eq!(bytes(&words), expected, "{start}..{end} of shared bytes");
            }
        }
    }

    /// The words begin at both kinds of addresses: at a multiple of a block's alignment, and a word behind one.
    #[test]
    fn copies__of_several_blocks_from_every_word() {
        let all: Vec<u8> = (0..400_u32).map(|at| (at % 251) as u8).collect();
        for skipped in 0..4 {
            let source = words(&all);
            let source = &source[skipped..];
            let mut to = vec![0; 320];
            read(source, 3, &mut to);
            assert_eq!(to, all[WORD_BYTES * skipped + 3..][..320]);
            let target = words(&[0xEE; 400]);
            write(&target[skipped..], 3, &*to);
            let mut expected = [0xEE; 400];
            expected[WORD_BYTES * skipped + 3..][..320].copy_from_slice(&to);
            assert_eq!(bytes(&target), expected);
        }
    }

    #[test]
    fn write__of_neighbouring_bytes_by_two_threads() {
        let words = words(&[0; 8]);
        std::thread::scope(|scope| {
            for half in [0, 4] {
                let words = &words;
                scope.spawn(move || {
                    for round in 1..=10_000_u32 {
                        write(words, half, &round.to_le_bytes()[..]);
                        let mut seen = [0; 4];
                        read(words, half, &mut seen);
                        assert_eq!(
                            u32::from_le_bytes(seen),
                            round,
                            "only this thread writes these"
                        );
                    }
                });
            }
        });
    }
}
