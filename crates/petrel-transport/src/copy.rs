//! Copies of small frames without a call.
//!
//! A frame of a small RPC has some fifty bytes. The C library's `memcpy` takes about as many
//! instructions to choose a strategy as the copy itself. The function here decides by size with few
//! branches, and copies the first and the last bytes, which overlap. It has no loop, since the
//! compiler replaces any copying loop by a call to `memcpy`.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vectors;

use std::ptr::{copy_nonoverlapping, read_unaligned, write_unaligned};

/// Longest frame copied inline. Above this size, `memcpy` is faster, by wider registers.
pub(crate) const INLINE_BYTES_MAX: usize = 128;

/// A unit that moves in few registers.
type Block = [u64; 4];
const BLOCK_BYTES: usize = size_of::<Block>();

/// Copies all of `from` to `to`.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes, which do not overlap `from`.
#[inline]
pub(crate) unsafe fn copy_frame(from: &[u8], to: *mut u8) {
    let len = from.len();
    // SAFETY: by this function's contract; the length is compared first.
    unsafe {
        if len < BLOCK_BYTES {
            copy_less_than_a_block(from, to);
        } else if len <= 2 * BLOCK_BYTES {
            copy_ends::<Block>(from, to);
        } else if len <= INLINE_BYTES_MAX {
            copy_ends::<[Block; 2]>(from, to);
        } else {
            copy_large(from, to);
        }
    }
}

/// The lengths that [`copy_one_line`] accepts.
pub(crate) const ONE_LINE_BYTES: std::ops::RangeInclusive<usize> = 16..=64;

/// [`copy_frame`] of 16 to 64 bytes: covers most small messages, and is short enough to inline
/// anywhere.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes, which do not overlap `from`, and the length is
/// in [`ONE_LINE_BYTES`].
#[inline(always)]
pub(crate) unsafe fn copy_one_line(from: &[u8], to: *mut u8) {
    // SAFETY: by this function's contract.
    unsafe {
        if from.len() < BLOCK_BYTES {
            copy_ends::<[u64; 2]>(from, to);
        } else {
            copy_ends::<Block>(from, to);
        }
    }
}

/// [`copy_frame`] of up to 64 bytes, for the message of a frame of one line: 16 to 32 bytes take
/// half the instructions of longer ones.
///
/// # Safety
/// As for [`copy_frame`], and `from` has at most 64 bytes.
#[inline(always)]
pub(crate) unsafe fn copy_short(from: &[u8], to: *mut u8) {
    // SAFETY: by this function's contract.
    unsafe {
        match from.len() {
            16..=BLOCK_BYTES => copy_ends::<[u64; 2]>(from, to),
            33.. => copy_ends::<Block>(from, to),
            _ => copy_less_than_a_block(from, to),
        }
    }
}

/// [`copy_frame`] as a call, for callers that handle the usual lengths themselves.
///
/// # Safety
/// As for [`copy_frame`].
#[inline(never)]
pub(crate) unsafe fn copy_out_of_line(from: &[u8], to: *mut u8) {
    // SAFETY: by this function's contract.
    unsafe { copy_frame(from, to) }
}

/// Out of line, so callers with small frames have no call to prepare for.
///
/// # Safety
/// As for [`copy_frame`].
#[inline(never)]
unsafe fn copy_large(from: &[u8], to: *mut u8) {
    // SAFETY: by this function's contract.
    unsafe { copy_bytes(from.as_ptr(), to, from.len()) }
}

/// Copies bytes of any number, most likely a packet of a large message: as `memcpy`, but never slow on processors of
/// AMD (see `vectors`).
///
/// # Safety
/// `from` is readable and `to` is valid for writes of `len` bytes, and the two do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if vectors::are_better_for(len) {
        // SAFETY: by this function's contract.
        return unsafe { vectors::copy_or_ask(from, to, len) };
    }
    // SAFETY: by this function's contract.
    unsafe { copy_nonoverlapping(from, to, len) }
}

/// # Safety
/// As for [`copy_frame`], with less than a block.
#[inline]
unsafe fn copy_less_than_a_block(from: &[u8], to: *mut u8) {
    // SAFETY: a pair of copies begins at 0 and ends at the length, at least the size of one copy.
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

/// Copies the first and the last `T`, which together cover all bytes of `from`.
///
/// # Safety
/// `from` has at least as many bytes as `T`; otherwise as for [`copy_frame`].
#[inline]
unsafe fn copy_ends<T: Copy>(from: &[u8], to: *mut u8) {
    // SAFETY: the copies begin at or after the start of `from` and end at or before its end.
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
    fn copy_one_line__copies_every_length_and_nothing_else() {
        let source: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(7).wrapping_add(1)).collect();
        for len in 16..=64 {
            let mut target = vec![0xEE; 80];
            // SAFETY: the target has room for `len` bytes from 9 on.
            unsafe { copy_one_line(&source[..len], target.as_mut_ptr().add(9)) };
            assert_eq!(target[9..9 + len], source[..len], "{len} bytes");
            assert!(target[..9].iter().chain(&target[9 + len..]).all(|&byte| byte == 0xEE));
        }
    }

    #[test]
    fn copy_short__copies_every_length_and_nothing_else() {
        let source: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(7).wrapping_add(1)).collect();
        for len in 0..=64 {
            let mut target = vec![0xEE; 80];
            // SAFETY: the target has room for `len` bytes from 9 on.
            unsafe { copy_short(&source[..len], target.as_mut_ptr().add(9)) };
            assert_eq!(target[9..9 + len], source[..len], "{len} bytes");
            assert!(target[..9].iter().chain(&target[9 + len..]).all(|&byte| byte == 0xEE));
        }
    }

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
