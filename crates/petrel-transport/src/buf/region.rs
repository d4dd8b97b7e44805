//! Anonymous memory from the operating system.

use std::io;
use std::ptr::NonNull;

/// Regions from this size on may ask for transparent huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A private mapping, zeroed and aligned to a page. Pages are backed by memory at first touch.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
}

impl Region {
    /// Maps `bytes` bytes. With `huge_pages`, and from 2 MiB on, requests huge pages, a hint the
    /// kernel may ignore.
    ///
    /// # Errors
    /// The kernel's error: usually the address space or the commit limit is used up.
    ///
    /// # Panics
    /// When `bytes` is 0.
    pub fn zeroed(bytes: usize, huge_pages: bool) -> io::Result<Self> {
        assert!(bytes > 0, "an empty region");
        let start = os::map(bytes)?;
        if huge_pages && bytes >= HUGE_PAGE_BYTES {
            os::advise_huge(start, bytes);
        }
        Ok(Self { start, bytes })
    }

    /// The first byte. The whole region may be read and written through it.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Size in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives up ownership without unmapping; [`Region::from_raw`] restores it.
    pub(super) fn into_raw(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).start
    }

    /// # Safety
    /// `start` comes from [`Region::into_raw`] of a region of `bytes` bytes, and is used here only
    /// once.
    pub(super) unsafe fn from_raw(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` describe a mapping owned by `self` alone.
        unsafe { os::unmap(self.start, self.bytes) }
    }
}

// SAFETY: a region is plain memory with one owner, bound to no thread.
unsafe impl Send for Region {}

#[cfg(not(miri))]
mod os {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::io;
    use std::ptr::{NonNull, null_mut};

    pub(super) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a given address, no existing mapping is replaced.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE)? };
        NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn advise_huge(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the range is a mapping of ours; the advice does not change its contents. A kernel
        // without huge pages refuses, and ordinary pages serve as well.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
    }

    /// # Safety
    /// The range is a mapping from [`map`] that is no longer used.
    pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: by this function's contract.
        let unmapped = unsafe { munmap(start.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Miri has no `mmap` with advice; heap memory exposes the same errors.
#[cfg(miri)]
mod os {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4096).expect("region sizes are far below isize::MAX")
    }

    pub(super) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: `bytes` is not zero, as `Region::zeroed` asserts.
        let start = unsafe { alloc_zeroed(layout(bytes)) };
        NonNull::new(start).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn advise_huge(_start: NonNull<u8>, _bytes: usize) {}

    /// # Safety
    /// The range is an allocation from [`map`] that is no longer used.
    pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: by this function's contract, and with the layout of the allocation.
        unsafe { dealloc(start.as_ptr(), layout(bytes)) }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Returns true if all these addresses are mapped.
    fn is_mapped(start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the call changes nothing: an anonymous mapping has no file to write to.
        unsafe { libc::msync(start.as_ptr().cast(), bytes, libc::MS_ASYNC) == 0 }
    }

    #[test]
    fn drop__gives_the_addresses_back() {
        // Larger than the mappings of concurrent tests in this program, of which the largest block of a pool has more than 1 GiB.
        const BYTES: usize = 3 << 30;
        for huge_pages in [false, true] {
            let region = Region::zeroed(BYTES, huge_pages).unwrap();
            let start = region.start();
            assert!(is_mapped(start, BYTES));
            // SAFETY: ownership is restored once, with the region's size.
            drop(unsafe { Region::from_raw(region.into_raw(), BYTES) });
            assert!(!is_mapped(start, BYTES));
        }
    }
}
