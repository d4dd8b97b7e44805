//! Copies of small frames without a call.
//!
//! A frame of a small RPC has some fifty bytes. The C library's `memcpy` takes about as many
//! instructions to find out what to do with them as the copy itself; this one decides by size with
//! few branches and moves 32 bytes at a time, the last ones overlapping those before.

use std::ptr::{copy_nonoverlapping, read_unaligned, write_unaligned};

/// Above this, `memcpy` is the better one: it has wider registers.
const INLINE_BYTES_MAX: usize = 256;

/// A block that moves in few registers.
type Block = [u64; 4];
const BLOCK_BYTES: usize = size_of::<Block>();

/// Copies all of `from` to `to`.
///
/// # Safety
/// `to` is valid for writes of that many bytes, which do not overlap `from`.
#[inline]
pub(crate) unsafe fn copy_frame(from: &[u8], to: *mut u8) {
    let len = from.len();
    if len > INLINE_BYTES_MAX {
        // SAFETY: by this function's contract.
        unsafe { copy_nonoverlapping(from.as_ptr(), to, len) }
    } else if len >= BLOCK_BYTES {
        // SAFETY: by this function's contract; there are at least as many bytes as a block.
        unsafe { copy_blocks(from, to) }
    } else {
        // SAFETY: by this function's contract; there are fewer bytes than a block.
        unsafe { copy_less_than_a_block(from, to) }
    }
}

/// # Safety
/// As for [`copy_frame`], with at least a block.
#[inline]
unsafe fn copy_blocks(from: &[u8], to: *mut u8) {
    let last = from.len() - BLOCK_BYTES;
    let mut at = 0;
    // SAFETY: `at` stays below `last`, and a block from there ends within both.
    unsafe {
        while at < last {
            copy_one::<Block>(from, to, at);
            at += BLOCK_BYTES;
        }
        copy_one::<Block>(from, to, last);
    }
}

/// # Safety
/// As for [`copy_frame`], with less than a block.
#[inline]
unsafe fn copy_less_than_a_block(from: &[u8], to: *mut u8) {
    // SAFETY: each pair of copies begins at 0 and ends at the length, which is at least the size
    // of one.
    unsafe {
        match from.len() {
            16.. => copy_ends::<[u64; 2]>(from, to),
            8.. => copy_ends::<u64>(from, to),
            4.. => copy_ends::<u32>(from, to),
            2.. => copy_ends::<u16>(from, to),
            1 => copy_one::<u8>(from, to, 0),
            0 => {}
        }
    }
}

/// Copies the first and the last bytes, which together are all.
///
/// # Safety
/// `from` has at least as many bytes as `T`; otherwise as for [`copy_frame`].
#[inline]
unsafe fn copy_ends<T: Copy>(from: &[u8], to: *mut u8) {
    // SAFETY: both places begin within and end at or before the end.
    unsafe {
        copy_one::<T>(from, to, 0);
        copy_one::<T>(from, to, from.len() - size_of::<T>());
    }
}

/// # Safety
/// The bytes of a `T` at offset `at` are within `from`; otherwise as for [`copy_frame`].
#[inline]
unsafe fn copy_one<T: Copy>(from: &[u8], to: *mut u8, at: usize) {
    // SAFETY: by this function's contract; any bytes are a valid `T`, here an array of integers.
    unsafe {
        let value = read_unaligned(from.as_ptr().add(at).cast::<T>());
        write_unaligned(to.add(at).cast::<T>(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_frame__copies_every_length_and_nothing_else() {
        let source: Vec<u8> = (0..600u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in (0..=300).chain([511, 600]) {
            let mut target = vec![0xEE; 640];
            // SAFETY: the target has room for `len` bytes from 9 on.
            unsafe { copy_frame(&source[..len], target.as_mut_ptr().add(9)) };
            assert_eq!(target[9..9 + len], source[..len], "{len} bytes");
            assert!(target[..9].iter().chain(&target[9 + len..]).all(|&byte| byte == 0xEE));
        }
    }
}
