//! Copies of pairs of words, and of blocks of eight.
//!
//! On x86-64 a pair is a vector of 16 bytes, and a block is four: copies of single words, which the compiler neither unrolls nor
//! joins, took twice as many loads and stores. A vector at a multiple of 16 bytes is read and written at once by every processor
//! with AVX (Intel SDM volume 3, 8.1.1; AMD APM volume 2, 7.3.2), and in two aligned halves by older ones. No processor tears a
//! word, so an access to a block is as eight relaxed accesses to its words, and an access to a pair as two.

use std::sync::atomic::AtomicU64;

use crate::shared::SharedBytes;

pub(super) const WORD_BYTES: usize = 8;

pub(super) const BLOCK_WORDS: usize = 8;

pub(super) const PAIR_WORDS: usize = 2;

/// Bytes of which the address of a pair or block is a multiple.
const ALIGNMENT: usize = PAIR_WORDS * WORD_BYTES;

/// The private bytes of a block's words.
type Bytes = [[u8; WORD_BYTES]; BLOCK_WORDS];

/// Returns the number of words at the start of `words` before the first that may begin a pair or a block: none or one.
#[inline]
pub(super) fn words_before_pairs(words: &[AtomicU64]) -> usize {
    words.as_ptr().addr() % ALIGNMENT / WORD_BYTES
}

fn assert_aligned(words: &[AtomicU64; BLOCK_WORDS]) {
    assert!(
        words.as_ptr().addr().is_multiple_of(ALIGNMENT),
        "a block begins at a multiple of 16 bytes"
    );
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(super) fn load_pair(words: &[AtomicU64; PAIR_WORDS], to: &mut [[u8; WORD_BYTES]; PAIR_WORDS]) {
    debug_assert!(words.as_ptr().addr().is_multiple_of(ALIGNMENT), "a pair is aligned");
    let pair: std::arch::x86_64::__m128i;
    // SAFETY: the words are 16 bytes long, and the load needs no alignment. By the caller's alignment the load is as two
    // relaxed loads of words (see above). The compiler keeps other values in registers across a block that writes no memory.
    unsafe {
        std::arch::asm!(
            "movups {pair}, [{from}]",
            from = in(reg) words.as_ptr(),
            pair = out(xmm_reg) pair,
            options(nostack, preserves_flags, readonly),
        );
        to.as_mut_ptr().cast::<std::arch::x86_64::__m128i>().write_unaligned(pair);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(super) fn load_block(words: &[AtomicU64; BLOCK_WORDS], to: &mut Bytes) {
    assert_aligned(words);
    // SAFETY: both are 64 bytes long, and `words` is aligned. The loads are as eight relaxed loads of words (see above).
    unsafe {
        std::arch::asm!(
            "movaps {first}, [{from}]",
            "movaps {second}, [{from} + 16]",
            "movaps {third}, [{from} + 32]",
            "movaps {fourth}, [{from} + 48]",
            "movups [{to}], {first}",
            "movups [{to} + 16], {second}",
            "movups [{to} + 32], {third}",
            "movups [{to} + 48], {fourth}",
            from = in(reg) words.as_ptr(),
            to = in(reg) to.as_mut_ptr(),
            first = out(xmm_reg) _,
            second = out(xmm_reg) _,
            third = out(xmm_reg) _,
            fourth = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `from` into blocks, and reads each byte once: its writer may change the byte meanwhile.
///
/// # Panics
/// When `from` has another length.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(super) fn store_blocks(blocks: &[[AtomicU64; BLOCK_WORDS]], from: SharedBytes<'_>) {
    assert!(from.len() == size_of_val(blocks), "as many bytes as the blocks have");
    for (place, block) in blocks.iter().enumerate() {
        assert_aligned(block);
        // SAFETY: `from` has the 64 bytes of each block, and `block` is aligned. The stores are as eight relaxed stores of
        // words (see above).
        unsafe {
            std::arch::asm!(
                "movups {first}, [{from}]",
                "movups {second}, [{from} + 16]",
                "movups {third}, [{from} + 32]",
                "movups {fourth}, [{from} + 48]",
                "movaps [{to}], {first}",
                "movaps [{to} + 16], {second}",
                "movaps [{to} + 32], {third}",
                "movaps [{to} + 48], {fourth}",
                from = in(reg) from.start().add(place * size_of_val(block)),
                to = in(reg) block.as_ptr(),
                first = out(xmm_reg) _,
                second = out(xmm_reg) _,
                third = out(xmm_reg) _,
                fourth = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub(super) fn load_pair(words: &[AtomicU64; PAIR_WORDS], to: &mut [[u8; WORD_BYTES]; PAIR_WORDS]) {
    debug_assert!(words.as_ptr().addr().is_multiple_of(ALIGNMENT), "a pair is aligned");
    for (chunk, word) in to.iter_mut().zip(words) {
        *chunk = word.load(std::sync::atomic::Ordering::Relaxed).to_ne_bytes();
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub(super) fn load_block(words: &[AtomicU64; BLOCK_WORDS], to: &mut Bytes) {
    assert_aligned(words);
    for (chunk, word) in to.iter_mut().zip(words) {
        *chunk = word.load(std::sync::atomic::Ordering::Relaxed).to_ne_bytes();
    }
}

/// Copies `from` into blocks, and reads each byte once: its writer may change the byte meanwhile.
///
/// # Panics
/// When `from` has another length.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub(super) fn store_blocks(blocks: &[[AtomicU64; BLOCK_WORDS]], from: SharedBytes<'_>) {
    assert!(from.len() == size_of_val(blocks), "as many bytes as the blocks have");
    for (place, block) in blocks.iter().enumerate() {
        assert_aligned(block);
        let mut bytes = [[0; WORD_BYTES]; BLOCK_WORDS];
        let start = place * size_of_val(block);
        from.slice(start..start + size_of_val(block)).copy_to_slice(bytes.as_flattened_mut());
        for (chunk, word) in bytes.iter().zip(block) {
            word.store(u64::from_ne_bytes(*chunk), std::sync::atomic::Ordering::Relaxed);
        }
    }
}
