//! Memory in huge pages, where the kernel provides them on request.
//!
//! With pages of 4 KiB nearly every access to a table of many MiB also misses the processor's TLB, and waits for that, too.

use rustix::mm::{Advice, madvise};

/// Size of a huge page on most machines. Another size does no harm: the kernel checks each request.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Returns `count` results of `make`, in huge pages where the kernel provides them.
pub fn filled<T>(count: usize, make: impl FnMut() -> T) -> Box<[T]> {
    let mut memory = Vec::with_capacity(count);
    advise(memory.spare_capacity_mut());
    memory.resize_with(count, make);
    memory.into_boxed_slice()
}

/// Asks for huge pages. The kernel allocates the pages at the first write, before which the advice has to come.
pub fn advise<T>(memory: &mut [T]) {
    let start = memory.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(HUGE_PAGE_BYTES);
    let Some(bytes) = size_of_val(memory).checked_sub(skipped) else { return };
    let bytes = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if bytes > 0 {
        // SAFETY: the range lies within `memory`, and begins at a page. The advice changes the kernel's choice of
        // pages, never their content. A kernel without this advice returns an error, and nothing changes.
        let _ =
            unsafe { madvise(start.wrapping_add(skipped).cast(), bytes, Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled__has_all_things_whether_the_pages_are_huge_or_not() {
        for count in [0, 1, 1_000, HUGE_PAGE_BYTES / 8 * 3 + 7] {
            let mut next = 0u64;
            let things = filled(count, || {
                next += 1;
                next
            });
            assert!(things.iter().copied().eq(1..=count as u64));
        }
    }
}
