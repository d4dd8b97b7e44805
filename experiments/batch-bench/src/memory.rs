//! Memory in huge pages, where the kernel provides them on request.
//!
//! A prefetch of an address outside of the TLB's reach first waits for the page table. With pages of 4 KiB, each access
//! of these benchmarks would.

use rustix::mm::{Advice, madvise};

/// Size of a huge page on most machines. Another size does no harm: the kernel checks each request.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Returns `count` results of `make`, in huge pages where the kernel provides them.
pub fn filled<T>(count: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
    let mut memory = Vec::with_capacity(count);
    // Before the first write, at which the kernel allocates the pages.
    advise(memory.spare_capacity_mut());
    memory.extend((0..count).map(make));
    memory.into_boxed_slice()
}

/// Returns the bytes of an array, which a caller may copy while the array lives.
pub(crate) fn bytes_of<T>(array: &[T]) -> *const [u8] {
    std::ptr::slice_from_raw_parts(array.as_ptr().cast(), size_of_val(array))
}

fn advise<T>(memory: &mut [T]) {
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
