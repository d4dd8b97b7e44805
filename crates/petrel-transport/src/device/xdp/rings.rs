//! Rings of descriptors in memory that the kernel shares.
//!
//! # Ownership
//!
//! A ring has one [`Producer`] and one [`Consumer`], of which one is the kernel. The producer alone stores the producer index, and writes only
//! entries that the consumer has given back. The consumer alone stores the consumer index, and reads only published entries. Each index is stored
//! with release and loaded with acquire ordering, so the entries need no atomics.
//!
//! The indices are counters modulo 2³². An index of the other side that claims more entries than the ring has is a lie. The side that reads the lie
//! counts the lie, and goes on with the former index. All places come from masked own indices, so no lie leads out of the memory.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::net::xdp::XdpRingOffset;

use super::umem::Memory;

/// A value that the kernel writes: an entry of a ring, or an option of a socket.
///
/// # Safety
/// All values of all bytes are valid.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: a structure of integers.
unsafe impl Plain for libc::ucred {}

// SAFETY: a structure of integers without padding.
unsafe impl Plain for libc::xdp_desc {}

/// A mapped ring, without a role.
#[derive(Debug)]
pub(super) struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Keeps the pointers valid.
    _memory: Arc<Memory>,
}

// SAFETY: the pointers are valid in every thread, and the accesses follow the rules above.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Plain> Ring<T> {
    /// Returns the ring of `entries` entries in the memory, where the kernel said that its parts are.
    ///
    /// # Panics
    /// If the parts are not in the memory or not aligned, or `entries` is not a power of two.
    pub(super) fn new(memory: &Arc<Memory>, offsets: &XdpRingOffset, entries: u32) -> Self {
        assert!(entries.is_power_of_two(), "the kernel takes no other sizes");
        let word = |offset: u64| {
            assert!(offset.is_multiple_of(align_of::<AtomicU32>() as u64));
            memory.at(offset as usize, size_of::<AtomicU32>()).cast::<AtomicU32>()
        };
        let flags = offsets.flags.expect("kernels with links have the flags of rings");
        assert!(offsets.desc.is_multiple_of(align_of::<T>() as u64));
        Self {
            producer: word(offsets.producer),
            consumer: word(offsets.consumer),
            flags: word(flags),
            entries: memory.at(offsets.desc as usize, entries as usize * size_of::<T>()).cast(),
            mask: entries - 1,
            _memory: Arc::clone(memory),
        }
    }

    fn size(&self) -> u32 {
        self.mask + 1
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the word is mapped and aligned by the constructor's checks; any value is valid.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    /// Returns true if the kernel wants a system call before it goes on with this ring.
    fn needs_wakeup(&self) -> bool {
        // The kernel sets the flag before its last look at the indices: this side must look at the flag after its own store.
        fence(Ordering::SeqCst);
        // SAFETY: as above.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn place(&self, index: u32) -> *mut T {
        // SAFETY: a masked index is below the number of entries, whose memory the constructor has checked.
        unsafe { self.entries.as_ptr().add((index & self.mask) as usize) }
    }
}

/// The writing side of a ring.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// The index of the next entry, ahead of the shared index until [`Producer::publish`].
    next: u32,
    /// The consumer's index as last believed.
    taken: u32,
    lies: u64,
}

impl<T: Plain> Producer<T> {
    pub(super) fn new(ring: Ring<T>) -> Self {
        let next = ring.producer().load(Ordering::Relaxed);
        Self { ring, next, taken: next, lies: 0 }
    }

    /// Returns true if [`Producer::push`] has room.
    pub(super) fn has_room(&mut self) -> bool {
        self.next.wrapping_sub(self.taken) < self.ring.size() || {
            self.look();
            self.next.wrapping_sub(self.taken) < self.ring.size()
        }
    }

    /// Writes the next entry.
    ///
    /// # Panics
    /// Without room.
    pub(super) fn push(&mut self, entry: T) {
        assert!(self.next.wrapping_sub(self.taken) < self.ring.size(), "the ring has room");
        // SAFETY: the place lies in the ring; the consumer has given the entry back.
        unsafe { self.ring.place(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the consumer all written entries.
    pub(super) fn publish(&mut self) {
        // Pairs with the consumer's acquire in `Consumer::pop`.
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Returns the number of entries for which [`Producer::push`] has room.
    pub(super) fn room(&mut self) -> u32 {
        self.ring.size() - self.pending()
    }

    /// Returns the number of written entries that the consumer has not taken yet.
    pub(super) fn pending(&mut self) -> u32 {
        self.look();
        self.next.wrapping_sub(self.taken)
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }

    pub(super) fn lies(&self) -> u64 {
        self.lies
    }

    fn look(&mut self) {
        // Pairs with the release in `Consumer::release`: the entries up to there have been read.
        let taken = self.ring.consumer().load(Ordering::Acquire);
        // An honest index lies between the former one and this side's own.
        if taken.wrapping_sub(self.taken) <= self.next.wrapping_sub(self.taken) {
            self.taken = taken;
        } else {
            self.lies += 1;
        }
    }
}

/// The reading side of a ring.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// The index of the next entry, ahead of the shared index until [`Consumer::release`].
    next: u32,
    /// The producer's index as last believed.
    published: u32,
    lies: u64,
}

impl<T: Plain> Consumer<T> {
    pub(super) fn new(ring: Ring<T>) -> Self {
        let next = ring.consumer().load(Ordering::Relaxed);
        Self { ring, next, published: next, lies: 0 }
    }

    /// Reads the next entry.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.published && !self.look() {
            return None;
        }
        // SAFETY: the place lies in the ring, and the producer has published the entry. A producer that writes again meanwhile breaks the rules
        // above; the value is then torn, but valid.
        let entry = unsafe { self.ring.place(self.next).read_volatile() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives all entries that were read back to the producer.
    pub(super) fn release(&mut self) {
        // Pairs with the acquire in `Producer::look`.
        self.ring.consumer().store(self.next, Ordering::Release);
    }

    /// Returns the number of the ring's entries.
    pub(super) fn size(&self) -> u32 {
        self.ring.size()
    }

    pub(super) fn lies(&self) -> u64 {
        self.lies
    }

    /// Returns true if the producer has published more entries.
    fn look(&mut self) -> bool {
        // Pairs with the release in `Producer::publish`.
        let published = self.ring.producer().load(Ordering::Acquire);
        let more = published.wrapping_sub(self.next);
        if more > self.ring.size() {
            self.lies += 1;
            return false;
        }
        self.published = published;
        more > 0
    }
}
