//! Prefetches of cache lines. They have no effect on memory that a program could notice, whatever the address.

/// Starts loading the cache line of an address into the first-level cache, without waiting.
///
/// For handlers and services whose reads miss the cache: prefetch the data of several requests first and then read it,
/// to overlap the waits (G-Opt §3). Any address is allowed; an unmapped one has no effect. No effect on processors
/// other than x86-64 and AArch64.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch accesses no memory.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// Starts to load the cache line `AHEAD_BYTES` behind an address in order to write it: other cores give the line up. The
/// distance is a part of the instruction.
///
/// On x86-64 by `prefetchw`, which processors without it execute as a no-op. The compiler would only use the instruction for
/// targets that are known to have it, and else load the line to read it.
#[inline(always)]
pub(crate) fn prefetch_write<const AHEAD_BYTES: usize>(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "prefetchw [{} + {}]",
            in(reg) address,
            const AHEAD_BYTES,
            options(nostack, readonly, preserves_flags)
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        let address = address.wrapping_add(AHEAD_BYTES);
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}
