//! Memory that several processes read and write at the same time, word by word.
//!
//! [`WordMemory`] is the memory of a region (`docs/regions.md`): the owner, the owner's endpoints, and
//! processes that map the memory access its words without locks. Every access is to aligned words of
//! 64 bits, as atomics, so
//!
//! - a word is never torn, and an access to some bytes of a word leaves the other bytes alone;
//! - no two sizes of atomics meet at an address, and no reference to the bytes exists;
//! - the order between the words of one read or write is open.
//!
//! # Mapping by other processes
//!
//! [`WordMemory::shared`] makes a memory file, sealed against any change of its size. With the seal,
//! no other user of the file can make a process that maps the file fault. Unless other processes may
//! write, a further seal prevents all later writable mappings.

mod block;
mod copy;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{
    FileType, MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::shared::SharedBytes;
use crate::shm::{discard, is_in_huge_pages, new_memory_file, set_size};

/// Bytes of a word.
pub const WORD_BYTES: u64 = 8;

/// Without these seals, a user of the file could truncate the file, and the other users would
/// fault.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The rights of processes that map a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedRights {
    /// Only reads: the kernel refuses writable mappings.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// Why a process cannot use a file as memory.
#[derive(Debug, thiserror::Error)]
pub enum OpenMemoryError {
    /// The file is not as [`WordMemory::shared`] makes it.
    #[error("the file is no memory of a region: {0}")]
    NotMemory(&'static str),
    /// The kernel refused.
    #[error("cannot map a region's memory: {0}")]
    System(#[from] io::Error),
}

/// A range of bytes within a [`WordMemory`].
#[derive(Clone, Copy, Debug)]
pub struct WordRange<'a> {
    /// The words that have a byte of the range.
    words: &'a [AtomicU64],
    /// Bytes of the first word in front of the range.
    skipped: usize,
    len: usize,
}

impl WordRange<'_> {
    /// The number of bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a range of no bytes is read like any other")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Copies the bytes out. The next accesses of the thread come after the read.
    ///
    /// # Panics
    /// When `to` has another length.
    #[inline]
    pub fn read(self, to: &mut [u8]) {
        assert!(to.len() == self.len, "a read of the whole range");
        copy::read(self.words, self.skipped, to);
        fence(Ordering::Acquire);
    }
}

/// Zeroed memory for concurrent access, word by word, by any thread and, if shared, any process.
#[derive(Debug)]
pub struct WordMemory {
    start: NonNull<AtomicU64>,
    /// The accessible bytes; the mapping has whole words.
    bytes: u64,
    is_writable: bool,
    file: Option<OwnedFd>,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for WordMemory {}
// SAFETY: all shared access is to atomics.
unsafe impl Sync for WordMemory {}

impl WordMemory {
    /// Makes memory of this process alone.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for no bytes, or more than an address space has; the kernel's
    /// errors.
    pub fn private(bytes: u64) -> io::Result<Self> {
        let len = mapped_bytes(bytes)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a given address, no existing mapping is replaced.
        let start = unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE)? };
        Ok(Self { start: at(start)?, bytes, is_writable: true, file: None })
    }

    /// Makes memory that other processes can map by the [file](WordMemory::file).
    ///
    /// # Errors
    /// As [`WordMemory::private`]; [`io::ErrorKind::FileTooLarge`] beyond the process's limit of file sizes;
    /// [`io::ErrorKind::Unsupported`] for [`MappedRights::Read`] with a
    /// kernel before 5.1.
    pub fn shared(bytes: u64, rights: MappedRights) -> io::Result<Self> {
        let len = mapped_bytes(bytes)?;
        let file = new_memory_file(MemfdFlags::empty())?;
        // Keeps other users from opening the file through /proc.
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        set_size(file.as_fd(), len as u64, false)?;
        let start = map(file.as_fd(), len, true)?;
        let memory = Self { start, bytes, is_writable: true, file: Some(file) };
        memory.seal(rights)?;
        Ok(memory)
    }

    fn seal(&self, rights: MappedRights) -> io::Result<()> {
        let file = self.file.as_ref().expect("shared memory has a file");
        let seals = match rights {
            MappedRights::Read => SEALS | SealFlags::FUTURE_WRITE,
            MappedRights::ReadWrite => SEALS,
        };
        match fcntl_add_seals(file, seals | SealFlags::SEAL) {
            Ok(()) => Ok(()),
            Err(Errno::INVAL) => Err(io::ErrorKind::Unsupported.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Maps memory of another process of this user. The file is not trusted; a refused one is closed
    /// without waiting.
    ///
    /// # Errors
    /// [`OpenMemoryError`].
    pub fn open(file: OwnedFd, bytes: u64, rights: MappedRights) -> Result<Self, OpenMemoryError> {
        let checked = check_file(file.as_fd(), bytes).and_then(|len| {
            let is_writable = rights == MappedRights::ReadWrite;
            let start = map(file.as_fd(), len, is_writable)?;
            Ok(Self { start, bytes, is_writable, file: None })
        });
        // The mapping needs no descriptor, and the file may be of any kind if it is refused.
        match checked {
            Ok(memory) => Ok(memory),
            Err(error) => {
                discard(vec![file]);
                Err(error)
            }
        }
    }

    /// Provides all pages now, and changes no byte: later writes wait for no page.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] with a kernel before 5.14; the kernel's errors, above all for lack of memory.
    ///
    /// # Panics
    /// When the memory is not writable.
    pub fn populate(&self) -> io::Result<()> {
        assert!(self.is_writable, "a mapping for reading is not written to");
        let len = mapped_bytes(self.bytes)?;
        // SAFETY: the mapping has this length, and the advice changes no byte.
        match unsafe { madvise(self.start.as_ptr().cast(), len, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(()),
            Err(Errno::INVAL) => Err(io::ErrorKind::Unsupported.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// The number of bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true unless the memory is mapped for reading only.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The file by which another process can [open](WordMemory::open) shared memory.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Returns true if `len` bytes at `offset` lie within the memory.
    #[inline]
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset <= self.bytes && len <= self.bytes - offset
    }

    /// Returns true if a whole word begins at `offset`.
    #[inline]
    pub fn has_word(&self, offset: u64) -> bool {
        offset.is_multiple_of(WORD_BYTES) && self.contains(offset, WORD_BYTES)
    }

    /// Copies bytes out. The next accesses of the thread come after the read.
    ///
    /// # Panics
    /// When the range is not within the memory.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        self.range(offset, to.len() as u64).expect("a read within the memory").read(to);
    }

    /// Copies bytes out, as [`WordMemory::read`] does, if they are whole words within the memory. Returns false otherwise,
    /// without a change.
    #[inline(always)]
    pub fn try_read_words(&self, offset: u64, to: &mut [u8]) -> bool {
        let len = to.len() as u64;
        if !(offset | len).is_multiple_of(WORD_BYTES) || !self.contains(offset, len) {
            return false;
        }
        // SAFETY: the range lies within the memory; otherwise as in `words`.
        let words = unsafe {
            let first = self.start.as_ptr().byte_add(offset as usize);
            std::slice::from_raw_parts(first, to.len() / WORD_BYTES as usize)
        };
        copy::read_words(words, to);
        fence(Ordering::Acquire);
        true
    }

    /// Returns a range to read. `None` if the range is not within the memory.
    #[inline]
    pub fn range(&self, offset: u64, len: u64) -> Option<WordRange<'_>> {
        if !self.contains(offset, len) {
            return None;
        }
        let (offset, len) = (offset as usize, len as usize);
        let (first, skipped) = (offset / WORD_BYTES as usize, offset % WORD_BYTES as usize);
        let count = (skipped + len).div_ceil(WORD_BYTES as usize);
        // SAFETY: the range ends within the memory, and the mapping has whole words; otherwise as in `words`.
        let words = unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(first), count) };
        Some(WordRange { words, skipped, len })
    }

    /// Copies bytes in. The former accesses of the thread come before the write.
    ///
    /// # Panics
    /// When the range is not within the memory, or the memory is not writable.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) {
        self.write_from(offset, from);
    }

    /// [`WordMemory::write`] of bytes that another process may change meanwhile, in one copy.
    ///
    /// # Panics
    /// As [`WordMemory::write`].
    #[inline]
    pub fn write_shared(&self, offset: u64, from: SharedBytes<'_>) {
        self.write_from(offset, from);
    }

    #[inline]
    fn write_from(&self, offset: u64, from: impl copy::Source) {
        assert!(self.is_writable, "a mapping for reading is not written to");
        assert!(self.contains(offset, from.len() as u64), "a write within the memory");
        fence(Ordering::Release);
        copy::write(self.words(), offset as usize, from);
    }

    /// Returns the word at `offset`.
    ///
    /// # Panics
    /// When no whole word begins there.
    #[inline]
    pub fn load(&self, offset: u64) -> u64 {
        let word = self.word(offset);
        if self.is_writable {
            return u64::from_le(word.load(Ordering::SeqCst));
        }
        // The language allows no stronger load from memory that cannot be written to.
        let value = word.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        u64::from_le(value)
    }

    /// Replaces the word at `offset`.
    ///
    /// # Panics
    /// When no whole word begins there, or the memory is not writable.
    #[inline]
    pub fn store(&self, offset: u64, value: u64) {
        self.word_to_change(offset).store(value.to_le(), Ordering::SeqCst);
    }

    /// Replaces the word at `offset` if it is `expected`. Returns the word's former value.
    ///
    /// # Panics
    /// As [`WordMemory::store`].
    #[inline]
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> u64 {
        let word = self.word_to_change(offset);
        let (expected, new) = (expected.to_le(), new.to_le());
        let swapped = word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst);
        u64::from_le(swapped.unwrap_or_else(|found| found))
    }

    /// Adds to the word at `offset`, modulo 2⁶⁴. Returns the word's former value.
    ///
    /// # Panics
    /// As [`WordMemory::store`].
    #[inline]
    pub fn fetch_add(&self, offset: u64, delta: u64) -> u64 {
        let word = self.word_to_change(offset);
        if cfg!(target_endian = "little") {
            return word.fetch_add(delta, Ordering::SeqCst);
        }
        let mut found = word.load(Ordering::SeqCst);
        loop {
            let sum = u64::from_le(found).wrapping_add(delta).to_le();
            match word.compare_exchange_weak(found, sum, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(former) => return u64::from_le(former),
                Err(now) => found = now,
            }
        }
    }

    /// The first byte, for a card that accesses the memory.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        let count = self.bytes.div_ceil(WORD_BYTES) as usize;
        // SAFETY: the mapping has at least this many words, lives as long as `self`, and any bits
        // are a valid atomic. The process accesses the words only as atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), count) }
    }

    #[inline]
    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(self.has_word(offset), "a whole word within the memory");
        &self.words()[(offset / WORD_BYTES) as usize]
    }

    #[inline]
    fn word_to_change(&self, offset: u64) -> &AtomicU64 {
        assert!(self.is_writable, "a mapping for reading is not written to");
        self.word(offset)
    }
}

impl Drop for WordMemory {
    fn drop(&mut self) {
        let len = mapped_bytes(self.bytes).expect("it was mapped with this size");
        // SAFETY: the range is this value's own mapping, and no reference into it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Returns the bytes to map: whole words.
fn mapped_bytes(bytes: u64) -> io::Result<usize> {
    let len = bytes.checked_next_multiple_of(WORD_BYTES).and_then(|len| usize::try_from(len).ok());
    len.filter(|len| *len > 0 && isize::try_from(*len).is_ok())
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn at(start: *mut std::ffi::c_void) -> io::Result<NonNull<AtomicU64>> {
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Maps the first bytes of a file, which is sealed against shrinking before the first access.
fn map(file: BorrowedFd<'_>, len: usize, is_writable: bool) -> io::Result<NonNull<AtomicU64>> {
    let access = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: without a given address, no existing mapping is replaced.
    at(unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, file, 0)? })
}

/// Checks the kernel's data about another process's file; returns the bytes to map.
fn check_file(file: BorrowedFd<'_>, bytes: u64) -> Result<usize, OpenMemoryError> {
    let len = mapped_bytes(bytes)?;
    let Ok(seals) = fcntl_get_seals(file) else {
        return Err(OpenMemoryError::NotMemory("it is not a memory file"));
    };
    if !seals.contains(SEALS) {
        return Err(OpenMemoryError::NotMemory("it is not sealed against changes of its size"));
    }
    if is_in_huge_pages(file).map_err(io::Error::from)? {
        return Err(OpenMemoryError::NotMemory("its owner can take huge pages away"));
    }
    let stat = fstat(file).map_err(io::Error::from)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(OpenMemoryError::NotMemory("it is not a memory file"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(OpenMemoryError::NotMemory("it belongs to another user"));
    }
    let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if file_bytes < len as u64 {
        return Err(OpenMemoryError::NotMemory("it is smaller than the region"));
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(memory: &WordMemory, rights: MappedRights) -> Result<WordMemory, OpenMemoryError> {
        let file = memory.file().expect("shared memory has a file");
        WordMemory::open(file.try_clone_to_owned().unwrap(), memory.bytes(), rights)
    }

    fn why(refused: Result<WordMemory, OpenMemoryError>) -> String {
        refused.expect_err("refused").to_string()
    }

    #[test]
    fn shared__is_the_same_memory_for_both_sides() {
        let owner = WordMemory::shared(100, MappedRights::ReadWrite).unwrap();
        let other = opened(&owner, MappedRights::ReadWrite).unwrap();
        owner.write(3, b"from the owner");
        let mut seen = [0; 14];
        other.read(3, &mut seen);
        assert_eq!(&seen, b"from the owner");
        other.store(96 - 8, 7);
        assert_eq!((owner.load(96 - 8), owner.fetch_add(96 - 8, 5)), (7, 7));
        assert_eq!(other.compare_swap(96 - 8, 12, 1), 12);
        assert_eq!(other.compare_swap(96 - 8, 12, 2), 1, "nothing is replaced");
        assert_eq!((owner.load(96 - 8), other.bytes(), other.file().is_some()), (1, 100, false));
    }

    #[test]
    fn shared__for_reading_cannot_be_mapped_for_writing() {
        let owner = WordMemory::shared(4096, MappedRights::Read).unwrap();
        let reader = opened(&owner, MappedRights::Read).unwrap();
        owner.write(0, b"after the seal");
        let mut seen = [0; 14];
        reader.read(0, &mut seen);
        assert_eq!((&seen, reader.is_writable()), (b"after the seal", false));
        assert!(why(opened(&owner, MappedRights::ReadWrite)).contains("cannot map"));
    }

    #[test]
    fn populate__provides_all_pages() {
        const BYTES: u64 = 1 << 20;
        for rights in [MappedRights::Read, MappedRights::ReadWrite] {
            let memory = WordMemory::shared(BYTES, rights).unwrap();
            let provided = || 512 * fstat(memory.file().unwrap()).unwrap().st_blocks as u64;
            memory.write(5, b"petrel");
            assert!(provided() < BYTES, "{} bytes", provided());
            memory.populate().unwrap();
            assert!(provided() >= BYTES, "{} bytes", provided());
            let mut seen = [0; 8];
            memory.read(4, &mut seen);
            assert_eq!(&seen, b"\0petrel\0");
        }
    }

    #[test]
    fn open__refuses_files_of_other_kinds() {
        let pipe = rustix::pipe::pipe().unwrap().0;
        assert!(why(WordMemory::open(pipe, 8, MappedRights::Read)).contains("not a memory file"));
        let unsealed = new_memory_file(MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(why(WordMemory::open(unsealed, 8, MappedRights::Read)).contains("not sealed"));
        // A kernel may have no huge pages.
        let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB | MemfdFlags::ALLOW_SEALING;
        if let Ok(huge) = rustix::fs::memfd_create(c"test", flags) {
            fcntl_add_seals(&huge, SEALS).unwrap();
            let refused = WordMemory::open(huge, 8, MappedRights::Read);
            assert!(why(refused).contains("huge pages"));
        }
        let memory = WordMemory::shared(4096, MappedRights::Read).unwrap();
        let file = || memory.file().unwrap().try_clone_to_owned().unwrap();
        assert!(why(WordMemory::open(file(), 4097, MappedRights::Read)).contains("smaller"));
        for bytes in [0, u64::MAX, 1 << 63] {
            assert!(
                why(WordMemory::open(file(), bytes, MappedRights::Read)).contains("cannot map")
            );
            assert!(
                WordMemory::private(bytes).is_err()
                    && WordMemory::shared(bytes, MappedRights::Read).is_err()
            );
        }
    }

    #[test]
    fn contains__ends_at_the_last_byte() {
        let memory = WordMemory::private(20).unwrap();
        assert!(memory.contains(0, 20) && memory.contains(20, 0) && !memory.contains(20, 1));
        assert!(!memory.contains(u64::MAX, 2) && !memory.contains(1, u64::MAX));
        assert!(memory.has_word(8) && !memory.has_word(16) && !memory.has_word(4));
    }

    #[test]
    fn range__of_every_place_within_the_memory_and_of_no_other() {
        let memory = WordMemory::private(20).unwrap();
        let all: Vec<u8> = (1..=20).collect();
        memory.write(0, &all);
        for offset in 0..=20 {
            for len in 0..=20 {
                let range = memory.range(offset, len);
                assert_eq!(range.is_some(), offset + len <= 20, "{len} at {offset}");
                let Some(range) = range else { continue };
                let mut seen = vec![0; range.len()];
                range.read(&mut seen);
                assert_eq!(seen, all[offset as usize..][..len as usize]);
            }
        }
        assert!(memory.range(u64::MAX, 2).is_none() && memory.range(1, u64::MAX).is_none());
    }

    #[test]
    fn try_read_words__of_whole_words_within_the_memory_and_of_nothing_else() {
        let memory = WordMemory::private(120).unwrap();
        let all: Vec<u8> = (1..=120).collect();
        memory.write(0, &all);
        for offset in 0..=121 {
            for len in 0..=121 {
                let mut seen = vec![0xEE; len];
                let is_whole = offset % 8 == 0 && len % 8 == 0 && offset + len <= 120;
                assert_eq!(memory.try_read_words(offset as u64, &mut seen), is_whole);
                let expected = if is_whole { &all[offset..][..len] } else { &[0xEE; 121][..len] };
                assert_eq!(seen, expected, "{len} at {offset}");
            }
        }
        assert!(!memory.try_read_words(u64::MAX - 7, &mut [0; 16]));
        assert!(!memory.try_read_words(1 << 63, &mut []));
    }

    panics! {
        read__of_another_length_than_the_range: "a read of the whole range" => {
            WordMemory::private(20).unwrap().range(3, 8).unwrap().read(&mut [0; 7]);
        };
        read__beyond_the_end: "a read within the memory" => {
            WordMemory::private(20).unwrap().read(13, &mut [0; 8]);
        };
        store__to_a_mapping_for_reading: "a mapping for reading is not written to" => {
            let owner = WordMemory::shared(4096, MappedRights::Read).unwrap();
            opened(&owner, MappedRights::Read).unwrap().store(0, 1);
        };
    }

    #[test]
    fn fetch_add__by_two_threads_loses_nothing() {
        let memory = WordMemory::private(8).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..20_000).for_each(|_| _ = memory.fetch_add(0, 1)));
            }
        });
        assert_eq!(memory.load(0), 40_000);
    }
}
