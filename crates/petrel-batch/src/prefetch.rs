//! Prefetch instructions, and the addresses that marks name.

/// The length of a cache line in bytes. Apple's processors have lines of 128 bytes, which two steps fetch.
const LINE_BYTES: usize = 64;

/// Starts loading the cache line of an address into the first-level cache, without waiting.
///
/// Any address is allowed; an unmapped one has no effect. No effect on processors other than x86-64 and AArch64.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on memory that the program could notice, whatever the address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Starts loading the cache line of an address with the intent to write it: as [`prefetch`], and other cores give the line up.
///
/// On x86-64 by `prefetchw`, which processors without it execute as a no-op. The compiler's intrinsic would load the line to
/// read it, unless the target is known to have the instruction.
#[inline(always)]
pub fn prefetch_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on memory that the program could notice, whatever the address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// An address that a mark may name: a reference, a pointer, or an `Option` of them.
///
/// `None` is an address without memory, for which a mark fetches nothing.
pub trait Address {
    /// Returns the first byte of the memory, or `None` without memory.
    fn first_byte(self) -> Option<*const u8>;
}

impl<T: ?Sized> Address for &T {
    #[inline(always)]
    fn first_byte(self) -> Option<*const u8> {
        Some(core::ptr::from_ref(self).cast())
    }
}

impl<T: ?Sized> Address for *const T {
    #[inline(always)]
    fn first_byte(self) -> Option<*const u8> {
        Some(self.cast())
    }
}

impl<T: ?Sized> Address for *mut T {
    #[inline(always)]
    fn first_byte(self) -> Option<*const u8> {
        Some(self.cast_const().cast())
    }
}

impl<A: Address> Address for Option<A> {
    #[inline(always)]
    fn first_byte(self) -> Option<*const u8> {
        self.and_then(A::first_byte)
    }
}

/// [`prefetch`] of `lines` cache lines from an address on.
#[inline(always)]
pub fn prefetch_lines(address: impl Address, lines: usize) {
    each_line(address, lines, prefetch);
}

/// Fetches `lines` cache lines from an address on, to write them.
#[inline(always)]
pub fn fetch_write(address: impl Address, lines: usize) {
    each_line(address, lines, prefetch_write);
}

#[inline(always)]
fn each_line(address: impl Address, lines: usize, fetch_line: impl Fn(*const u8)) {
    let Some(first) = address.first_byte() else { return };
    for line in 0..lines {
        // Wrapping: the addresses are not followed, and may lie beyond the object.
        fetch_line(first.wrapping_add(line * LINE_BYTES));
    }
}
