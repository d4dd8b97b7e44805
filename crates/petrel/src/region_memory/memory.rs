//! Memory for words, with versioned values.

use std::fmt;
use std::hint;
use std::io;
use std::os::fd::BorrowedFd;

use petrel_proto::Status;
use petrel_transport::words::{MappedRights, WORD_BYTES, WordMemory};

use super::wire::Refusal;
use crate::error::Error;

/// Attempts of a thread to read or to begin a versioned value, while a writer changes it. A writer on another CPU needs some
/// microseconds for a large value.
const VERSION_TRIES_MAX: u32 = 10_000;

/// The memory of a region, for access by any number of threads and processes at the same time.
///
/// Aligned words of 8 bytes are never torn. The words of a longer read or write have no common order with concurrent
/// accesses: for values that have to be consistent, use [`RegionMemory::write_versioned`].
pub struct RegionMemory {
    words: WordMemory,
    /// The rights of other processes; `None` for private memory.
    mapped: Option<MappedRights>,
}

impl RegionMemory {
    /// Makes zeroed memory of this process alone. The kernel provides a page at the first write, and ends a process if no
    /// page is left then.
    ///
    /// # Errors
    /// INVALID_ARGUMENT without a byte, RESOURCE_EXHAUSTED if the kernel refuses the address space.
    pub fn private(bytes: u64) -> Result<Self, Error> {
        let words = WordMemory::private(bytes).map_err(|error| cannot_make(&error))?;
        Ok(Self { words, mapped: None })
    }

    /// Makes zeroed memory that processes of the same user can map, with these rights. The kernel does not reserve this memory: a size
    /// beyond the host's memory causes no error, and pages count for the process that writes them first. They stay until the last mapping
    /// is gone.
    ///
    /// # Errors
    /// INVALID_ARGUMENT without a byte, RESOURCE_EXHAUSTED if the kernel refuses the file or the address space,
    /// UNIMPLEMENTED for [`MappedRights::Read`] with a kernel before 5.1.
    pub fn shared(bytes: u64, rights: MappedRights) -> Result<Self, Error> {
        let words = WordMemory::shared(bytes, rights).map_err(|error| cannot_make(&error))?;
        Ok(Self { words, mapped: Some(rights) })
    }

    /// Lets the kernel provide all pages now. Later writes wait for no page, and cannot fail for lack of
    /// memory. The bytes stay as they are.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED without memory, UNIMPLEMENTED with a kernel before 5.14, PERMISSION_DENIED if the memory is
    /// mapped for reading.
    pub fn populate(&self) -> Result<(), Error> {
        self.check_writable()?;
        self.words.populate().map_err(|error| cannot_make(&error))
    }

    /// Wraps the memory of another process.
    pub(crate) fn mapped(words: WordMemory) -> Self {
        Self { words, mapped: None }
    }

    /// Returns the file of shared memory, and the rights to map it.
    pub(crate) fn file(&self) -> Option<(BorrowedFd<'_>, MappedRights)> {
        self.words.file().zip(self.mapped)
    }

    pub(crate) fn mapped_rights(&self) -> Option<MappedRights> {
        self.mapped
    }

    #[inline]
    pub(crate) fn words(&self) -> &WordMemory {
        &self.words
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.words.bytes()
    }

    /// Returns true unless a client has mapped the memory for reading only.
    pub fn is_writable(&self) -> bool {
        self.words.is_writable()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// OUT_OF_RANGE beyond the end.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.check(offset, to.len() as u64)?;
        self.words.read(offset, to);
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// OUT_OF_RANGE beyond the end, PERMISSION_DENIED if the memory is mapped for reading.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.check(offset, from.len() as u64)?;
        self.check_writable()?;
        self.words.write(offset, from);
        Ok(())
    }

    /// Returns a word.
    ///
    /// # Errors
    /// OUT_OF_RANGE beyond the end, INVALID_ARGUMENT if the offset is no multiple of 8.
    #[inline]
    pub fn load(&self, offset: u64) -> Result<u64, Error> {
        self.check_word(offset)?;
        Ok(self.words.load(offset))
    }

    /// Replaces a word.
    ///
    /// # Errors
    /// As [`RegionMemory::load`] and [`RegionMemory::write`].
    #[inline]
    pub fn store(&self, offset: u64, value: u64) -> Result<(), Error> {
        self.check_word_to_change(offset)?;
        self.words.store(offset, value);
        Ok(())
    }

    /// Replaces a word if it is `expected`. Returns the former value.
    ///
    /// # Errors
    /// As [`RegionMemory::store`].
    #[inline]
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        self.check_word_to_change(offset)?;
        Ok(self.words.compare_swap(offset, expected, new))
    }

    /// Adds to a word, modulo 2⁶⁴. Returns the former value.
    ///
    /// # Errors
    /// As [`RegionMemory::store`].
    #[inline]
    pub fn fetch_add(&self, offset: u64, delta: u64) -> Result<u64, Error> {
        self.check_word_to_change(offset)?;
        Ok(self.words.fetch_add(offset, delta))
    }

    /// Reads a versioned value, whose version is the word at `offset`. Returns the version.
    ///
    /// # Errors
    /// As [`RegionMemory::load`]; ABORTED if writers changed the value all the time, or one of them ended in between.
    pub fn read_versioned(&self, offset: u64, to: &mut [u8]) -> Result<u64, Error> {
        self.check_word(offset)?;
        self.check(offset + WORD_BYTES, to.len() as u64)?;
        self.try_read_versioned(offset, to, VERSION_TRIES_MAX).map_err(refused)
    }

    /// Replaces a versioned value. Returns the new version, which is even and larger than the former version. Writers
    /// exclude each other.
    ///
    /// # Errors
    /// As [`RegionMemory::store`]; ABORTED if another writer does not end. A writer that dies while it writes leaves
    /// an odd version behind, and the value stays unreadable until [`RegionMemory::store`] repairs the version.
    pub fn write_versioned(&self, offset: u64, from: &[u8]) -> Result<u64, Error> {
        self.check_word_to_change(offset)?;
        self.check(offset + WORD_BYTES, from.len() as u64)?;
        self.try_write_versioned(offset, from, VERSION_TRIES_MAX).map_err(refused)
    }

    /// Reads like [`RegionMemory::read_versioned`], within checked bounds, with this number of attempts.
    pub(crate) fn try_read_versioned(
        &self,
        offset: u64,
        to: &mut [u8],
        tries: u32,
    ) -> Result<u64, Refusal> {
        for _ in 0..tries {
            let before = self.words.load(offset);
            if before.is_multiple_of(2) {
                self.words.read(offset + WORD_BYTES, to);
                if self.words.load(offset) == before {
                    return Ok(before);
                }
            }
            hint::spin_loop();
        }
        Err(Refusal::new(Status::Aborted, "the value was being written all the time"))
    }

    /// Writes like [`RegionMemory::write_versioned`], within checked bounds, with this number of attempts.
    pub(crate) fn try_write_versioned(
        &self,
        offset: u64,
        from: &[u8],
        tries: u32,
    ) -> Result<u64, Refusal> {
        for _ in 0..tries {
            let before = self.words.load(offset);
            let begins = before.is_multiple_of(2)
                && self.words.compare_swap(offset, before, before.wrapping_add(1)) == before;
            if begins {
                self.words.write(offset + WORD_BYTES, from);
                let after = before.wrapping_add(2);
                self.words.store(offset, after);
                return Ok(after);
            }
            hint::spin_loop();
        }
        Err(Refusal::new(Status::Aborted, "another writer of the value does not end"))
    }

    #[inline]
    fn check(&self, offset: u64, len: u64) -> Result<(), Error> {
        if self.words.contains(offset, len) { Ok(()) } else { Err(refused(OUT_OF_RANGE)) }
    }

    #[inline]
    fn check_word(&self, offset: u64) -> Result<(), Error> {
        check_word(&self.words, offset).map_err(refused)
    }

    #[inline]
    fn check_writable(&self) -> Result<(), Error> {
        if self.words.is_writable() { Ok(()) } else { Err(refused(READ_ONLY)) }
    }

    #[inline]
    fn check_word_to_change(&self, offset: u64) -> Result<(), Error> {
        self.check_word(offset)?;
        self.check_writable()
    }
}

/// An access beyond the end.
pub(crate) const OUT_OF_RANGE: Refusal =
    Refusal::new(Status::OutOfRange, "the operation goes beyond the end of the region");

const READ_ONLY: Refusal =
    Refusal::new(Status::PermissionDenied, "the region is mapped for reading only");

#[inline]
pub(crate) fn check_word(words: &WordMemory, offset: u64) -> Result<(), Refusal> {
    if words.has_word(offset) {
        Ok(())
    } else if !offset.is_multiple_of(WORD_BYTES) {
        Err(Refusal::new(Status::InvalidArgument, "a word begins at a multiple of 8"))
    } else {
        Err(OUT_OF_RANGE)
    }
}

#[cold]
fn refused(refusal: Refusal) -> Error {
    Error::not_sent(refusal.status(), refusal.why())
}

fn cannot_make(error: &io::Error) -> Error {
    let status = match error.kind() {
        io::ErrorKind::InvalidInput => Status::InvalidArgument,
        io::ErrorKind::Unsupported => Status::Unimplemented,
        _ => Status::ResourceExhausted,
    };
    Error::not_sent(status, format!("cannot make a region's memory: {error}"))
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionMemory({} bytes, mapped by others: {:?})", self.bytes(), self.mapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status<T: fmt::Debug>(result: Result<T, Error>) -> Status {
        result.unwrap_err().status
    }

    #[test]
    fn accesses__beyond_the_end_are_errors() {
        let memory = RegionMemory::private(20).unwrap();
        assert_eq!(status(memory.read(13, &mut [0; 8])), Status::OutOfRange);
        assert_eq!(status(memory.write(u64::MAX, b"x")), Status::OutOfRange);
        assert_eq!(status(memory.load(16)), Status::OutOfRange);
        assert_eq!(status(memory.fetch_add(u64::MAX - 7, 1)), Status::OutOfRange);
        assert_eq!(status(memory.store(4, 1)), Status::InvalidArgument);
        assert_eq!(status(memory.read_versioned(8, &mut [0; 5])), Status::OutOfRange);
        assert_eq!(status(RegionMemory::private(0)), Status::InvalidArgument);
        memory.write(19, b"x").unwrap();
    }

    #[test]
    fn populate__keeps_the_bytes() {
        for memory in [
            RegionMemory::private(3 << 20).unwrap(),
            RegionMemory::shared(3 << 20, MappedRights::ReadWrite).unwrap(),
            // No more mappings can be written to.
            RegionMemory::shared(3 << 20, MappedRights::Read).unwrap(),
        ] {
            memory.write(5, b"petrel").unwrap();
            memory.populate().unwrap();
            let mut seen = [0; 8];
            memory.read(4, &mut seen).unwrap();
            assert_eq!(&seen, b"\0petrel\0");
        }
    }

    #[test]
    fn write_versioned__counts_by_two() {
        let memory = RegionMemory::private(64).unwrap();
        assert_eq!(memory.write_versioned(8, b"first").unwrap(), 2);
        assert_eq!(memory.write_versioned(8, b"other").unwrap(), 4);
        let mut seen = [0; 5];
        assert_eq!((memory.read_versioned(8, &mut seen).unwrap(), &seen), (4, b"other"));
    }

    /// Repeats an access that ends with ABORTED. On a busy machine, the thread that writes the value can lose its CPU
    /// for longer than all attempts of the other threads take.
    fn unless_aborted<T: fmt::Debug>(mut access: impl FnMut() -> Result<T, Error>) -> T {
        loop {
            match access() {
                Ok(value) => return value,
                Err(error) if error.status == Status::Aborted => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn read_versioned__sees_whole_values_under_two_writers() {
        let memory = RegionMemory::private(8 + 256).unwrap();
        memory.write_versioned(0, &[0; 256]).unwrap();
        std::thread::scope(|scope| {
            for writer in [1, 2] {
                let memory = &memory;
                scope.spawn(move || {
                    for round in 0..5_000_u32 {
                        let value = [(round % 100) as u8 * 2 + writer; 256];
                        unless_aborted(|| memory.write_versioned(0, &value));
                    }
                });
            }
            let (mut last, mut seen) = (0, [0; 256]);
            while last < 2 * 10_001 {
                let version = unless_aborted(|| memory.read_versioned(0, &mut seen));
                assert!(version >= last && seen.iter().all(|byte| *byte == seen[0]), "{seen:?}");
                last = version;
            }
        });
    }
}
