//! A mapped segment, and the rings' view of it.
//!
//! # Ownership
//!
//! [`Mapping`] owns a range of address space. [`RingMemory`] points into the mapping and keeps it
//! alive by an [`Arc`]: the pointers are valid for the life of the `RingMemory`. The file behind
//! the range is sealed against shrinking before being mapped, hence no access to the range can
//! fault for lack of a file.
//!
//! # Why raw memory shared with another process is sound enough
//!
//! Rust's rules speak of a single program. Towards the peer process they are upheld as follows:
//!
//! - Control words are only ever accessed as atomics, for which any value is valid.
//! - Record headers are atomics too: one load, and no second look at a word that may have changed.
//!   Their places may hold bytes of a frame in the next lap; the hand-overs named below lie between
//!   the two uses.
//! - The bytes of frames are written by plain copies, through raw pointers, and read as
//!   [`RingFrame`]s: no reference to them is ever made. Between correct sides no access races: a
//!   producer writes only to bytes the consumer has released (or never had), a consumer reads only
//!   published bytes, and each hand-over is a release/acquire pair. The rule for producers is
//!   therefore absolute: **a record is never written between its publication and its release.**
//! - A peer that breaks the rule changes bytes during the copy. The copy may be torn, but it is
//!   private and does not change afterwards. [`shared`](crate::SharedBytes) explains how the loads
//!   are made.
//!
//! The two sides of a segment may also live in one process; then all of the above is within the
//! language's own rules.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::config::Geometry;
use super::layout::{control_offset, data_offset, segment_bytes};
use super::ring::{Control, Memory, RECORD_ALIGN, RECORD_HEADER_BYTES, RingFrame};
use super::sync::{AtomicU64, Ordering};
use crate::copy::{INLINE_BYTES_MAX, copy_bytes, copy_frame, copy_one_line, copy_short};
use crate::prefetch::{prefetch, prefetch_write};

/// Alignment of control words and records in memory from the heap.
const HEAP_ALIGN: usize = 128;

const _: () = assert!(HEAP_ALIGN >= align_of::<Control>() && HEAP_ALIGN >= RECORD_ALIGN);

/// A range of address space, readable and writable: a segment's, or (for simulators) the
/// allocator's.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: NonZeroUsize,
    /// The layout of the allocation; `None` for a file's mapping.
    heap: Option<Layout>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and has no interior state.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference only hands out raw pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of the file.
    ///
    /// The file must be at least as long, and sealed against shrinking before the first access.
    pub(super) fn new(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let bytes = NonZeroUsize::new(bytes).ok_or(io::Errno::INVAL)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: the kernel chooses a new range, so no existing mapping is replaced.
        let base = unsafe { mmap(anywhere, bytes.get(), protection, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::Errno::NOMEM)?;
        Ok(Self { base, bytes, heap: None })
    }

    /// Allocates zeroed memory for two sides within this process.
    pub(super) fn on_heap(bytes: usize) -> io::Result<Self> {
        let layout = Layout::from_size_align(bytes, HEAP_ALIGN).map_err(|_| io::Errno::INVAL)?;
        let bytes = NonZeroUsize::new(bytes).ok_or(io::Errno::INVAL)?;
        // SAFETY: the size was just checked not to be 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::Errno::NOMEM)?;
        Ok(Self { base, bytes, heap: Some(layout) })
    }

    /// Returns a pointer to the `len` bytes at `offset`.
    ///
    /// # Panics
    /// When the bytes are not within the mapping.
    pub(super) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes.get() && len <= self.bytes.get() - offset);
        // SAFETY: the range was just checked to lie within the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(layout) = self.heap {
            // SAFETY: the memory was allocated with this layout, and every pointer into it is held
            // beside an `Arc` of `self`.
            return unsafe { dealloc(self.base.as_ptr(), layout) };
        }
        // SAFETY: this value alone owns the range, and every pointer into it is held beside an
        // `Arc` of `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes.get()) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// One ring of a mapped segment.
#[derive(Debug)]
pub(super) struct RingMemory {
    view: RingView<'static>,
    /// Keeps the pointers of the view valid.
    _mapping: Arc<Mapping>,
}

/// The place of a ring: everything that an access needs, in one value that stays in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingView<'a> {
    control: NonNull<Control>,
    data: NonNull<u8>,
    /// The capacity, a power of two, less 1.
    mask: usize,
    /// A view borrows the memory.
    memory: PhantomData<&'a RingMemory>,
}

// SAFETY: the pointers are valid in every thread, and their targets are accessed by the rules of
// `Memory`, which do not depend on the thread.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Ring 0 or 1 of a segment.
    pub(super) fn new(mapping: &Arc<Mapping>, geometry: Geometry, ring: usize) -> Self {
        assert!(ring < 2 && segment_bytes(geometry) <= mapping.bytes.get());
        let view = RingView {
            control: mapping.at(control_offset(ring), size_of::<Control>()).cast(),
            data: mapping.at(data_offset(ring, geometry), geometry.ring_bytes()),
            mask: geometry.ring_bytes() - 1,
            memory: PhantomData,
        };
        Self { view, _mapping: Arc::clone(mapping) }
    }
}

impl RingView<'_> {
    /// Returns the word at `offset`.
    ///
    /// # Safety
    /// `offset` is a multiple of [`RECORD_ALIGN`](super::ring::RECORD_ALIGN) below the capacity,
    /// and no frame's bytes are written there while the reference lives.
    #[inline]
    unsafe fn header(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: by the contract the word lies in the ring, whose bytes start at a page, hence it
        // is aligned; any content is a valid atomic, and the peer's accesses are atomic too.
        unsafe { self.data.add(offset).cast::<AtomicU64>().as_ref() }
    }
}

// SAFETY: the capacity is a ring's size by `Geometry`, thus a power of two; `data` has `capacity`
// bytes, which stay mapped while the memory that the view borrows lives.
unsafe impl Memory for RingView<'_> {
    type View<'a>
        = RingView<'a>
    where
        Self: 'a;

    #[inline]
    fn view(&self) -> RingView<'_> {
        *self
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: the words are mapped and aligned (by the layout's assertions, and since mappings
        // start at pages); for atomics, any content is valid and the peer may change it.
        unsafe { self.control.as_ref() }
    }

    #[inline]
    fn capacity(&self) -> usize {
        self.mask + 1
    }

    #[inline]
    fn mask(&self) -> usize {
        self.mask
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize) {
        prefetch(self.data.as_ptr().wrapping_add(offset));
    }

    #[inline(always)]
    fn prefetch_write<const AHEAD_BYTES: usize>(&self, offset: usize) {
        prefetch_write::<AHEAD_BYTES>(self.data.as_ptr().wrapping_add(offset));
    }

    #[inline]
    unsafe fn store_word(&self, offset: usize, word: u64) {
        // SAFETY: the caller's conditions are those of `header`.
        unsafe { self.header(offset) }.store(word, Ordering::Relaxed);
    }

    #[inline]
    unsafe fn publish_word(&self, offset: usize, word: u64) {
        // SAFETY: as above.
        unsafe { self.header(offset) }.store(word, Ordering::Release);
    }

    #[inline]
    unsafe fn load_word(&self, offset: usize) -> u64 {
        // SAFETY: as above.
        unsafe { self.header(offset) }.load(Ordering::Acquire)
    }

    #[inline]
    unsafe fn store_frame(&self, offset: usize, head: &[u8], body: &[u8]) {
        // SAFETY: the caller guarantees that head and body end within the capacity, in bytes
        // without references. A frame cannot overlap the target: `&[u8]`s to ring bytes exist only
        // while lent by a consumer, and lent bytes are not free.
        unsafe {
            let to = self.data.as_ptr().add(offset);
            match body.len() {
                0 => copy_frame(head, to),
                // A packet of a large message, behind its header: skips the checks for smaller
                // sizes.
                len if len > INLINE_BYTES_MAX && (16..=64).contains(&head.len()) => {
                    copy_one_line(head, to);
                    copy_bytes(body.as_ptr(), to.add(head.len()), len);
                }
                _ => {
                    copy_frame(head, to);
                    copy_frame(body, to.add(head.len()));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_line(&self, offset: usize, frame: &[u8]) {
        // SAFETY: as for `store_frame`; a line has 64 bytes, and the frame less.
        unsafe { copy_one_line(frame, self.data.as_ptr().add(offset).add(RECORD_HEADER_BYTES)) }
    }

    #[inline(always)]
    unsafe fn store_message(&self, offset: usize, header: [u64; 2], message: &[u8]) {
        // SAFETY: as for `store_frame`, and as above.
        unsafe {
            let to = self.data.as_ptr().add(offset).add(RECORD_HEADER_BYTES);
            let words = to.cast::<u64>();
            words.write_unaligned(header[0].to_le());
            words.add(1).write_unaligned(header[1].to_le());
            copy_short(message, to.add(size_of_val(&header)));
        }
    }

    #[inline]
    unsafe fn with_frame<R>(
        &self,
        offset: usize,
        length: usize,
        f: impl FnOnce(RingFrame<'_>) -> R,
    ) -> R {
        // SAFETY: the caller names bytes within the capacity, mapped while the memory is borrowed.
        // The bytes lie behind the header of a record; records begin with a line and have whole
        // lines.
        f(unsafe { RingFrame::new(self.data.add(offset), length) })
    }
}

// SAFETY: every method is the view's, whose memory `_mapping` keeps.
unsafe impl Memory for RingMemory {
    type View<'a> = RingView<'a>;

    #[inline]
    fn view(&self) -> RingView<'_> {
        self.view
    }

    #[inline]
    fn control(&self) -> &Control {
        self.view.control()
    }

    #[inline]
    fn capacity(&self) -> usize {
        self.view.capacity()
    }

    #[inline]
    fn mask(&self) -> usize {
        self.view.mask
    }

    #[inline(always)]
    fn prefetch(&self, offset: usize) {
        self.view.prefetch(offset);
    }

    #[inline(always)]
    fn prefetch_write<const AHEAD_BYTES: usize>(&self, offset: usize) {
        self.view.prefetch_write::<AHEAD_BYTES>(offset);
    }

    #[inline]
    unsafe fn store_word(&self, offset: usize, word: u64) {
        // SAFETY: the contract is the same.
        unsafe { self.view.store_word(offset, word) }
    }

    #[inline]
    unsafe fn publish_word(&self, offset: usize, word: u64) {
        // SAFETY: the contract is the same.
        unsafe { self.view.publish_word(offset, word) }
    }

    #[inline]
    unsafe fn load_word(&self, offset: usize) -> u64 {
        // SAFETY: the contract is the same.
        unsafe { self.view.load_word(offset) }
    }

    #[inline]
    unsafe fn store_frame(&self, offset: usize, head: &[u8], body: &[u8]) {
        // SAFETY: the contract is the same.
        unsafe { self.view.store_frame(offset, head, body) }
    }

    #[inline(always)]
    unsafe fn store_line(&self, offset: usize, frame: &[u8]) {
        // SAFETY: the contract is the same.
        unsafe { self.view.store_line(offset, frame) }
    }

    #[inline(always)]
    unsafe fn store_message(&self, offset: usize, header: [u64; 2], message: &[u8]) {
        // SAFETY: the contract is the same.
        unsafe { self.view.store_message(offset, header, message) }
    }

    #[inline]
    unsafe fn with_frame<R>(
        &self,
        offset: usize,
        length: usize,
        f: impl FnOnce(RingFrame<'_>) -> R,
    ) -> R {
        // SAFETY: the contract is the same.
        unsafe { self.view.with_frame(offset, length, f) }
    }
}
