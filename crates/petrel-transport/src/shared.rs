//! Bytes another process may change while this process reads them.
//!
//! # Ownership and soundness
//!
//! A frame in a ring lies in memory to which the peer can write at any time. A `&[u8]` promises
//! constant bytes, and safe code relies on the promise: `str::from_utf8` checks bytes, and the
//! `&str` is used later. Application and protocol code therefore never gets a reference to ring
//! memory, only one of three types:
//!
//! - [`Line`]: a private copy of a frame of at most [`LINE_BYTES`], in registers and on the stack;
//! - a private copy in the transport's own memory, for frames up to [`PRIVATE_BYTES_MAX`];
//! - [`SharedBytes`], for longer frames: a view with operations that copy bytes out. An operation
//!   reads every byte once. Two operations may read different values.
//!
//! The compiler must execute every load from shared memory exactly once and assume nothing about
//! the source afterwards. A line is loaded by assembler, other short reads by volatile words.
//! Longer copies use `memcpy` behind a call that is never inlined, and pass the destination through
//! a black box.

use std::fmt;
use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use crate::copy::copy_bytes;

/// Longest frame copied in registers: a line of the ring without the record's header.
pub(crate) const LINE_BYTES: usize = 56;

/// Longest frame over shared memory copied for the handler, in bytes. A longer frame is probably a
/// packet of a large message. The receiver copies the packet into the message; a copy here would be
/// the second.
pub const PRIVATE_BYTES_MAX: usize = 1024;

/// Bytes another process may change at any time.
///
/// The type never hands out a `&[u8]`. Copy the needed bytes once and examine the copy: two reads
/// of one byte may return different values.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> SharedBytes<'a> {
    /// The `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes are mapped and readable for `'a`. Other processes may write to them.
    #[inline(always)]
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// The address of the first byte, for copies by assembler.
    #[inline(always)]
    pub(crate) fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a part of the bytes.
    ///
    /// # Panics
    /// When the range is not within the bytes.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> SharedBytes<'a> {
        assert!(range.start <= range.end && range.end <= self.len, "beyond the shared bytes");
        // SAFETY: the range was just checked to lie within the bytes.
        unsafe { Self::new(self.start.add(range.start), range.end - range.start) }
    }

    /// Copies all bytes to `to`.
    ///
    /// # Panics
    /// When `to` has another length.
    #[inline]
    pub fn copy_to_slice(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.len, "as many bytes as there are");
        // SAFETY: source and destination have this length; a mutably borrowed `to` lies elsewhere.
        unsafe { copy_shared(self.start.as_ptr(), to.as_mut_ptr(), self.len) }
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        self.copy_to_slice(&mut copy);
        copy
    }

    /// Returns the `N` bytes at `offset`, for example for `u32::from_le_bytes`; `None` beyond the
    /// end.
    #[inline]
    pub fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end = offset.checked_add(N).filter(|end| *end <= self.len)?;
        let mut bytes = [0; N];
        let part = self.slice(offset..end);
        let words = part.start.cast::<u64>();
        let (chunks, []) = bytes.as_chunks_mut() else {
            part.copy_to_slice(&mut bytes);
            return Some(bytes);
        };
        if words.is_aligned() {
            // For headers: a call for so few bytes takes five times the instructions.
            for (at, chunk) in chunks.iter_mut().enumerate() {
                // SAFETY: the part has as many words as `bytes` has chunks, and their alignment was
                // checked.
                *chunk = unsafe { words.add(at).read_volatile() }.to_ne_bytes();
            }
        } else {
            part.copy_to_slice(&mut bytes);
        }
        Some(bytes)
    }
}

impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    /// Wraps constant private bytes in the interface of shared bytes.
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: a slice is readable for the lifetime of its borrow.
        unsafe { Self::new(NonNull::from(bytes).cast(), bytes.len()) }
    }
}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len)
    }
}

/// A frame in a ring, whose record occupies whole lines.
#[derive(Clone, Copy)]
pub struct RingFrame<'a>(SharedBytes<'a>);

impl<'a> RingFrame<'a> {
    /// A frame of `len` bytes.
    ///
    /// # Safety
    /// As for [`SharedBytes::new`], for the larger of `len` and [`LINE_BYTES`] bytes. `start` is a
    /// multiple of 8.
    #[inline(always)]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        // SAFETY: by this function's contract.
        Self(unsafe { SharedBytes::new(start, len) })
    }

    /// Returns a private copy if the record is one line.
    #[inline(always)]
    pub(crate) fn line(self) -> Option<Line> {
        let len = self.0.len;
        // SAFETY: `new` promises [`LINE_BYTES`] readable bytes, at a multiple of 8.
        (len <= LINE_BYTES).then(|| Line { bytes: unsafe { load_line(self.0.start) }, len })
    }

    /// The frame's bytes.
    #[inline(always)]
    pub fn bytes(self) -> SharedBytes<'a> {
        self.0
    }

    /// Returns a copy of the frame's bytes.
    pub fn to_vec(self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// The frame's length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(self) -> usize {
        self.0.len
    }
}

impl fmt::Debug for RingFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.to_vec().fmt(f)
    }
}

impl PartialEq<Vec<u8>> for RingFrame<'_> {
    fn eq(&self, other: &Vec<u8>) -> bool {
        self.to_vec() == *other
    }
}

/// A private copy of a short frame.
pub(crate) struct Line {
    bytes: [u64; LINE_BYTES / 8],
    len: usize,
}

impl Line {
    #[inline(always)]
    pub(crate) fn frame(&self) -> &[u8] {
        // SAFETY: `len` is at most the array's size in bytes; any integers are initialised bytes.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
    }
}

/// Loads [`LINE_BYTES`] bytes, each exactly once.
///
/// # Safety
/// The bytes are readable, and `from` is a multiple of 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn load_line(from: NonNull<u8>) -> [u64; LINE_BYTES / 8] {
    use std::arch::x86_64::__m128i;
    let (first, second, third): (__m128i, __m128i, __m128i);
    let last: u64;
    // SAFETY: the contract makes the bytes readable. Every x86-64 has these registers. Vectors,
    // since words took 14 instructions instead of 8; assembler, since an unaligned vector has no
    // volatile load.
    unsafe {
        std::arch::asm!(
            "movups {first}, [{from}]",
            "movups {second}, [{from} + 16]",
            "movups {third}, [{from} + 32]",
            "mov {last}, [{from} + 48]",
            from = in(reg) from.as_ptr(),
            first = out(xmm_reg) first,
            second = out(xmm_reg) second,
            third = out(xmm_reg) third,
            last = out(reg) last,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[repr(C)]
    struct Parts([__m128i; 3], u64, u64);
    let parts = Parts([first, second, third], last, 0);
    // SAFETY: the array is the first 56 of the 64 bytes of `Parts`, all of which are initialised
    // integers.
    unsafe { std::mem::transmute_copy(&parts) }
}

/// Loads [`LINE_BYTES`] bytes, each exactly once.
///
/// # Safety
/// The bytes are readable, and `from` is a multiple of 8.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn load_line(from: NonNull<u8>) -> [u64; LINE_BYTES / 8] {
    let words = from.cast::<u64>();
    // SAFETY: the contract makes the bytes readable and aligned.
    std::array::from_fn(|at| unsafe { words.add(at).read_volatile() })
}

/// Copies from memory with concurrent writers.
///
/// # Safety
/// `from` is readable and `to` is valid for writes of `len` bytes; the two do not overlap.
#[inline(never)]
unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: by this function's contract. A torn value is as good as any: all bytes are values of
    // `u8`.
    unsafe { copy_bytes(from, to, len) };
    // Forces the compiler to serve later reads of the copy from the copy, never again from its
    // source.
    black_box(to);
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn line__has_the_bytes_of_the_frame() {
        let words: [u64; 7] = std::array::from_fn(|at| 0x0101_0101_0101_0101 * (at as u64 + 1));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for len in 1..=LINE_BYTES {
            // SAFETY: `words` has at least `len` bytes and is aligned.
            let frame = unsafe { RingFrame::new(NonNull::from(&words).cast(), len) };
            assert_eq!(frame.line().unwrap().frame(), &bytes[..len]);
            assert_eq!(frame, bytes[..len].to_vec());
            assert_eq!((frame.to_vec(), frame.len()), (bytes[..len].to_vec(), len));
            let mut other = bytes[..len].to_vec();
            other[len - 1] ^= 1;
            assert!(frame != other && frame != bytes[..len - 1].to_vec());
        }
        // SAFETY: the frame's bytes are not read.
        assert!(unsafe { RingFrame::new(NonNull::from(&words).cast(), 57) }.line().is_none());
    }

    #[test]
    fn shared_bytes__are_copied_out() {
        let bytes = SharedBytes::from(&b"0123456789"[..]);
        assert_eq!(bytes.slice(2..5).to_vec(), b"234");
        assert_eq!((bytes.read::<2>(8), bytes.read::<2>(9)), (Some(*b"89"), None));
        assert_eq!(bytes.read::<4>(usize::MAX), None);
        let words: [u64; 4] = std::array::from_fn(|at| 0x0101_0101_0101_0101 * (at as u64 + 1));
        let flat: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // SAFETY: the 32 bytes belong to `words`, which outlives `shared`.
        let shared = unsafe { SharedBytes::new(NonNull::from(&words).cast(), 32) };
        for offset in [0, 3, 8] {
            assert_eq!(shared.read::<16>(offset).unwrap(), flat[offset..offset + 16]);
            assert_eq!(shared.read::<24>(offset).unwrap(), flat[offset..offset + 24]);
        }
        assert_eq!(shared.read::<24>(9), None);
        assert!(bytes.slice(10..10).is_empty());
    }

    panics! {
        slice__beyond_the_end_panics: "beyond the shared bytes"
            => _ = SharedBytes::from(&b"0123"[..]).slice(2..5);
    }
}
