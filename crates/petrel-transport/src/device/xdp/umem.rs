//! Memory shared with the kernel, and the owners of its chunks.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use petrel_planted::planted;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A mapped range of address space.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference only hands out raw pointers.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns zeroed memory that begins at a page.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses a new range, so no existing mapping is replaced.
        let base = unsafe { mmap_anonymous(null_mut(), bytes, protection, flags)? };
        let memory =
            Self { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, bytes };
        // After a fork, a write must not move this process to copies of pages that the kernel still holds.
        // SAFETY: the range was just mapped; a child process without the mapping has no pointer into the mapping either.
        unsafe { madvise(base, bytes, Advice::LinuxDontFork)? };
        Ok(memory)
    }

    /// Maps a part of a socket: a ring.
    pub(super) fn of_socket(socket: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as above.
        let base = unsafe { mmap(null_mut(), bytes, protection, flags, socket, offset)? };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, bytes })
    }

    /// Returns a pointer to the `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// If the bytes are not within the memory.
    pub(super) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "within the memory");
        // SAFETY: the range was just checked to lie within the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value alone owns the range; pointers into the range are kept beside an `Arc` of the value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// The owner of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// This side, for a frame to send.
    Free,
    /// The kernel, for a frame to receive.
    Filling,
    /// This side, until a received frame is released.
    Received,
    /// The kernel, until a sent frame is completed.
    Sending,
}

/// Chunks of equal size that hold a frame each: some for receiving, the others for sending.
///
/// References to a chunk's bytes exist only while this side owns the chunk. The kernel keeps the pages pinned while a socket uses them.
#[derive(Debug)]
pub(super) struct Umem {
    memory: Memory,
    chunk_bytes: usize,
    owners: Box<[Owner]>,
    free: Vec<u32>,
}

impl Umem {
    /// Returns chunks of which the first `receive` are the kernel's to receive into, and `send` further ones free.
    pub(super) fn new(receive: u32, send: u32, chunk_bytes: usize) -> io::Result<Self> {
        let memory = Memory::anonymous((receive + send) as usize * chunk_bytes)?;
        let owner = |chunk| if chunk < receive { Owner::Filling } else { Owner::Free };
        let owners = (0..receive + send).map(owner).collect();
        // The last free chunk is used first: few chunks stay in the processor's caches under little load.
        Ok(Self { memory, chunk_bytes, owners, free: (receive..receive + send).rev().collect() })
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Returns the address and the size of the whole memory, for the kernel.
    pub(super) fn extent(&self) -> (*mut u8, usize) {
        (self.memory.base.as_ptr(), self.memory.bytes)
    }

    /// Returns the first address of a chunk, as descriptors have it.
    pub(super) fn address(&self, chunk: u32) -> u64 {
        u64::from(chunk) * self.chunk_bytes as u64
    }

    /// Returns the chunk of an address and the address's offset within the chunk. The address may be wrong.
    pub(super) fn find(&self, address: u64) -> Option<(u32, usize)> {
        let chunk_bytes = self.chunk_bytes as u64;
        let chunk = u32::try_from(address / chunk_bytes).ok()?;
        ((chunk as usize) < self.owners.len()).then_some((chunk, (address % chunk_bytes) as usize))
    }

    pub(super) fn owner(&self, chunk: u32) -> Owner {
        self.owners[chunk as usize]
    }

    pub(super) fn free_chunks(&self) -> usize {
        self.free.len()
    }

    /// Takes a free chunk, which stays this side's.
    pub(super) fn take_free(&mut self) -> Option<u32> {
        let chunk = self.free.pop()?;
        assert!(self.owner(chunk) == Owner::Free, "a chunk in the list is free");
        Some(chunk)
    }

    /// Moves a chunk to its next owner.
    ///
    /// # Panics
    /// If `from` does not own the chunk: two owners would write to the same bytes.
    pub(super) fn pass(&mut self, chunk: u32, from: Owner, to: Owner) {
        let owner = &mut self.owners[chunk as usize];
        assert!(*owner == from, "chunk {chunk} is {owner:?}, not {from:?}");
        *owner = to;
        if to == Owner::Free {
            self.free.push(chunk);
            if planted("xdp_chunk_given_back_twice") {
                self.free.push(chunk);
            }
        }
    }

    /// Returns bytes of a chunk.
    ///
    /// # Panics
    /// If the kernel owns the chunk, or the chunk has fewer bytes.
    pub(super) fn bytes(&mut self, chunk: u32, range: Range<usize>) -> &mut [u8] {
        assert!(matches!(self.owner(chunk), Owner::Free | Owner::Received), "this side owns it");
        assert!(range.start <= range.end && range.end <= self.chunk_bytes);
        let at = self.memory.at(self.address(chunk) as usize + range.start, range.len());
        // SAFETY: the bytes are mapped and initialised (the system zeroes new pages); the kernel does not access a chunk that this side owns; the
        // returned reference borrows `self`, so no second one exists.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), range.len()) }
    }
}
