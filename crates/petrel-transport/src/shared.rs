//! Bytes that another process may change while we read them.
//!
//! # Who owns what, and why it is sound
//!
//! A frame in a ring lies in memory to which the peer can write at any time. A `&[u8]` promises that its
//! bytes do not change, and safe code relies on that: `str::from_utf8` looks at bytes, and the `&str` is
//! used later. So no reference to ring memory is ever made for application or protocol code. They
//! get one of these:
//!
//! - [`Line`]: a private copy of a frame of at most [`LINE_BYTES`], in registers and on the stack;
//! - a private copy in the transport's own memory, for frames up to [`PRIVATE_BYTES_MAX`];
//! - [`SharedBytes`], for longer ones: a view whose only verbs copy bytes out. Each byte is read once by
//!   each verb. What two verbs read may differ.
//!
//! Loads from shared memory are written so that the compiler makes each exactly once and assumes nothing
//! of the source afterwards: assembler for a line, volatile words elsewhere, and for longer copies `memcpy` behind a
//! call that is never inlined, with its destination given to a black box.

use std::fmt;
use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Longest frame that is copied in registers: a line of the ring without its record's header.
pub(crate) const LINE_BYTES: usize = 56;

/// Longest frame over shared memory that is copied for its handler, in bytes. What is longer is probably a
/// packet of a large message, whose receiver copies it to its place: to copy it here too would be to copy it
/// twice.
pub const PRIVATE_BYTES_MAX: usize = 1024;

/// Bytes that another process may change at any time.
///
/// There is no way to get a `&[u8]` of them. Copy what is needed, once, and look at the copy: what
/// two readings of one byte give may differ.
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
    /// They are mapped and readable for `'a`. Others may write to them.
    #[inline(always)]
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// How many there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some of them.
    ///
    /// # Panics
    /// When the range is not within the bytes.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> SharedBytes<'a> {
        assert!(range.start <= range.end && range.end <= self.len, "beyond the shared bytes");
        // SAFETY: just checked to be some of these bytes.
        unsafe { Self::new(self.start.add(range.start), range.end - range.start) }
    }

    /// Copies all of them.
    ///
    /// # Panics
    /// When `to` has another length.
    #[inline]
    pub fn copy_to_slice(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.len, "as many bytes as there are");
        // SAFETY: both have this length; `to` is borrowed, so that it lies elsewhere.
        unsafe { copy_shared(self.start.as_ptr(), to.as_mut_ptr(), self.len) }
    }

    /// A copy of them.
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        self.copy_to_slice(&mut copy);
        copy
    }

    /// The `N` bytes at `offset`, for example for `u32::from_le_bytes`; `None` if there are not so many.
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
            // Headers: a call for so few bytes takes five times the instructions.
            for (at, chunk) in chunks.iter_mut().enumerate() {
                // SAFETY: the part has as many words, and their alignment was looked at.
                *chunk = unsafe { words.add(at).read_volatile() }.to_ne_bytes();
            }
        } else {
            part.copy_to_slice(&mut bytes);
        }
        Some(bytes)
    }
}

impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    /// Private bytes, which do not change, seen in the same way.
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: a slice is readable as long as it is borrowed.
        unsafe { Self::new(NonNull::from(bytes).cast(), bytes.len()) }
    }
}

impl fmt::Debug for SharedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.len)
    }
}

/// A frame in a ring, whose record has whole lines.
#[derive(Clone, Copy)]
pub struct RingFrame<'a>(SharedBytes<'a>);

impl<'a> RingFrame<'a> {
    /// A frame of `len` bytes.
    ///
    /// # Safety
    /// As for [`SharedBytes::new`], for `len` bytes and for no less than [`LINE_BYTES`]. `start` is a multiple of 8.
    #[inline(always)]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the contract has it.
        Self(unsafe { SharedBytes::new(start, len) })
    }

    /// A private copy, if the record is one line.
    #[inline(always)]
    pub(crate) fn line(self) -> Option<Line> {
        let len = self.0.len;
        // SAFETY: `new` promises as many bytes, at a multiple of 8.
        (len <= LINE_BYTES).then(|| Line { bytes: unsafe { load_line(self.0.start) }, len })
    }

    /// The frame's bytes.
    #[inline(always)]
    pub fn bytes(self) -> SharedBytes<'a> {
        self.0
    }

    /// A copy of them.
    pub fn to_vec(self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// How many there are.
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

/// Loads [`LINE_BYTES`], each once.
///
/// # Safety
/// They are readable, and `from` is a multiple of 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn load_line(from: NonNull<u8>) -> [u64; LINE_BYTES / 8] {
    use std::arch::x86_64::__m128i;
    let (first, second, third): (__m128i, __m128i, __m128i);
    let last: u64;
    // SAFETY: the contract has the bytes. Every x86-64 has these registers. Vectors, as words took 14 instructions
    // in place of 8; assembler, as there is no volatile load of a vector that is not aligned.
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
    // SAFETY: the array has the first 56 of the 64 bytes, all of which are initialised integers.
    unsafe { std::mem::transmute_copy(&parts) }
}

/// Loads [`LINE_BYTES`], each once.
///
/// # Safety
/// They are readable, and `from` is a multiple of 8.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn load_line(from: NonNull<u8>) -> [u64; LINE_BYTES / 8] {
    let words = from.cast::<u64>();
    // SAFETY: the contract has the bytes, and the alignment.
    std::array::from_fn(|at| unsafe { words.add(at).read_volatile() })
}

/// Copies from memory that others may write to.
///
/// # Safety
/// `from` is readable and `to` is valid for writes of `len` bytes, which do not overlap.
#[inline(never)]
unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: by this function's contract. A torn value is as good as any: all bytes are values of `u8`.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    // What is read from the copy later is read from the copy, and not from its source again.
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
            // SAFETY: there are that many, and `words` is aligned.
            let frame = unsafe { RingFrame::new(NonNull::from(&words).cast(), len) };
            assert_eq!(frame.line().unwrap().frame(), &bytes[..len]);
            assert_eq!(frame, bytes[..len].to_vec());
            assert_eq!((frame.to_vec(), frame.len()), (bytes[..len].to_vec(), len));
            let mut other = bytes[..len].to_vec();
            other[len - 1] ^= 1;
            assert!(frame != other && frame != bytes[..len - 1].to_vec());
        }
        // SAFETY: nobody reads it.
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
        // SAFETY: the words live as long.
        let shared = unsafe { SharedBytes::new(NonNull::from(&words).cast(), 32) };
        for offset in [0, 3, 8] {
            assert_eq!(shared.read::<16>(offset).unwrap(), flat[offset..offset + 16]);
            assert_eq!(shared.read::<24>(offset).unwrap(), flat[offset..offset + 24]);
        }
        assert_eq!(shared.read::<24>(9), None);
        assert!(bytes.slice(10..10).is_empty());
    }

    #[test]
    #[should_panic(expected = "beyond the shared bytes")]
    fn slice__beyond_the_end_panics() {
        let _ = SharedBytes::from(&b"0123"[..]).slice(2..5);
    }
}
