//! A segment: the memory a pair of endpoints shares.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{
    FileType, MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat,
    fstatfs, memfd_create,
};
use rustix::io::Errno;

use super::config::{Geometry, ShmConfig};
use super::error::ShmError;
use super::fds::discard;
use super::file_size::set_size;
use super::layout::{
    CLAIMS_OFFSET, HEADER_BYTES, HUGE_PAGE_BYTES, decode_header, encode_header, segment_bytes,
};
use super::mapping::{Mapping, RingMemory};
use super::ring::{Consumer, Producer};
use super::sync::{AtomicU32, Ordering};

/// One of a segment's two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The endpoint that called [`Segment::create`].
    Creator,
    /// The endpoint that got the descriptor and called [`Segment::from_fd`].
    Opener,
}

/// The memory a pair of endpoints shares: one ring for each direction, in a file without a name
/// (`memfd`). The kernel frees the file with the last process that has it, however the process
/// ends.
///
/// The file cannot shrink, grow, or get other seals. The seals protect a process from faults caused
/// by the peer.
#[derive(Debug)]
pub struct Segment {
    file: OwnedFd,
    mapping: Arc<Mapping>,
    geometry: Geometry,
}

/// The result of `fstatfs` for memory files in huge pages (linux/magic.h).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Without these seals, a peer could truncate the file and make us fault.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Segment {
    /// Creates a fresh segment with the configured sizes.
    ///
    /// # Errors
    /// When the configuration is impossible, or memory or descriptors are lacking.
    pub fn create(config: &ShmConfig) -> Result<Self, ShmError> {
        config.validate()?;
        let geometry = Geometry::new(config.ring_bytes, config.max_frame_bytes)?;
        let (file, mapping) = map_new_file(geometry, config.huge_pages)?;
        let header = encode_header(geometry);
        let to = mapping.at(0, HEADER_BYTES);
        // SAFETY: `at` checked the range, and no other process has the file yet.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(&header).cast(), HEADER_BYTES) };
        Ok(Self { file, mapping: Arc::new(mapping), geometry })
    }

    /// Opens a segment a peer created, in pages of the usual size. `file` is not trusted: a file
    /// that cannot be used safely is refused.
    ///
    /// # Errors
    /// When `file` is not a sealed memory file of this user with a valid header and the header's
    /// size, or when mapping fails.
    pub fn from_fd(file: OwnedFd) -> Result<Self, ShmError> {
        Self::from_fd_of(file, rustix::process::geteuid().as_raw(), false)
    }

    /// [`Segment::from_fd`] for a file of a user, in huge pages too if `huge_pages`. Use huge pages only for peers that
    /// are trusted not to punch holes into the file and exhaust the system's huge pages (see the
    /// [module](super)).
    ///
    /// # Errors
    /// As [`Segment::from_fd`].
    pub fn from_fd_of(file: OwnedFd, user: u32, huge_pages: bool) -> Result<Self, ShmError> {
        match open_file(file.as_fd(), user, huge_pages) {
            Ok((mapping, geometry)) => Ok(Self { file, mapping, geometry }),
            Err(error) => {
                // The file may be a descriptor of any kind.
                discard(vec![file]);
                Err(error)
            }
        }
    }

    /// Size of each of the two rings in bytes.
    pub fn ring_bytes(&self) -> usize {
        self.geometry.ring_bytes()
    }

    /// The largest frame, in bytes, in either direction.
    pub fn max_frame_bytes(&self) -> usize {
        self.geometry.max_frame_bytes()
    }

    /// Returns the ring ends of `side`, or `None` if the side is in use already, here or in another
    /// process.
    pub(super) fn take_rings(
        &self,
        side: Side,
    ) -> Option<(Producer<RingMemory>, Consumer<RingMemory>)> {
        self.claim(outgoing_ring(side)).then(|| ends_of(&self.mapping, self.geometry, side))
    }

    /// Marks one side as in use, for ever. A ring's private positions start at the ring's birth,
    /// hence a second user is impossible even after the first.
    fn claim(&self, side: usize) -> bool {
        let word = self.mapping.at(CLAIMS_OFFSET + 4 * side, 4).cast::<AtomicU32>();
        // SAFETY: `at` checked the range; the offset is a multiple of 4, the mapping is aligned to
        // pages, and any content is a valid atomic.
        unsafe { word.as_ref() }.swap(1, Ordering::AcqRel) == 0
    }
}

/// The ring on which a side sends; the peer sends on the second ring.
fn outgoing_ring(side: Side) -> usize {
    match side {
        Side::Creator => 0,
        Side::Opener => 1,
    }
}

/// Returns the ring ends of `side`; the ends must not exist already.
pub(super) fn ends_of(
    mapping: &Arc<Mapping>,
    geometry: Geometry,
    side: Side,
) -> (Producer<RingMemory>, Consumer<RingMemory>) {
    let ring = |index| RingMemory::new(mapping, geometry, index);
    let (outgoing, max_frame_bytes) = (outgoing_ring(side), geometry.max_frame_bytes());
    (
        Producer::new(ring(outgoing), max_frame_bytes),
        Consumer::new(ring(1 - outgoing), max_frame_bytes),
    )
}

impl AsFd for Segment {
    /// The descriptor to send to the peer.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Creates a sealed and mapped file of zeros, in huge pages if wanted and available.
fn map_new_file(geometry: Geometry, huge_pages: bool) -> Result<(OwnedFd, Mapping), ShmError> {
    let bytes = segment_bytes(geometry);
    if huge_pages {
        // Any failure means that huge pages are not available here; normal pages report real
        // trouble.
        let whole_pages = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        if let Ok(done) = map_new_file_with(flags, whole_pages) {
            return Ok(done);
        }
    }
    Ok(map_new_file_with(MemfdFlags::empty(), bytes)?)
}

fn map_new_file_with(kind: MemfdFlags, bytes: usize) -> io::Result<(OwnedFd, Mapping)> {
    let file = new_memory_file(kind)?;
    // Keeps other users from opening the file through /proc.
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    set_size(file.as_fd(), bytes as u64, kind.contains(MemfdFlags::HUGETLB))?;
    fcntl_add_seals(&file, SEALS)?;
    let mapping = Mapping::new(file.as_fd(), bytes)?;
    Ok((file, mapping))
}

/// Creates a memory file that cannot be executed, since hardened systems refuse others. Kernels
/// before 6.3 do not know the flag.
pub(crate) fn new_memory_file(kind: MemfdFlags) -> io::Result<OwnedFd> {
    const NAME: &std::ffi::CStr = c"petrel-shm";
    let flags = kind | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(memfd_create(NAME, flags)?),
        other => Ok(other?),
    }
}

/// Checks a peer's file, and maps it.
fn open_file(
    file: BorrowedFd<'_>,
    user: u32,
    huge_pages: bool,
) -> Result<(Arc<Mapping>, Geometry), ShmError> {
    let file_bytes = check_file(file, user)?;
    if !huge_pages && is_in_huge_pages(file)? {
        return Err(ShmError::NotASegment("it is in huge pages, which are not configured here"));
    }
    let geometry = decode_header(&read_header(file)?)?;
    let needed = segment_bytes(geometry);
    if !(needed..needed + HUGE_PAGE_BYTES).contains(&file_bytes) {
        return Err(ShmError::NotASegment("its size is not what its header says"));
    }
    // Maps the whole file: with huge pages, nothing else is possible.
    Ok((Arc::new(Mapping::new(file, file_bytes)?), geometry))
}

/// Returns true if a memory file is in huge pages, which each process that has the file can remove.
pub(crate) fn is_in_huge_pages(file: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(fstatfs(file)?.f_type as u64 == HUGETLBFS_MAGIC)
}

/// Checks the kernel's data about a peer's file, and returns the file's size.
fn check_file(file: BorrowedFd<'_>, user: u32) -> Result<usize, ShmError> {
    let no_memory_file = ShmError::NotASegment("it is not a memory file");
    let Ok(seals) = fcntl_get_seals(file) else { return Err(no_memory_file) };
    if !seals.contains(SEALS) {
        return Err(ShmError::NotASegment("it is not sealed against changes of its size"));
    }
    let stat = fstat(file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(no_memory_file);
    }
    if stat.st_uid != user {
        return Err(ShmError::NotASegment("it belongs to another user"));
    }
    usize::try_from(stat.st_size).map_err(|_| no_memory_file)
}

/// Copies the header out, so that the checked bytes are the used bytes.
fn read_header(file: BorrowedFd<'_>) -> Result<[u8; HEADER_BYTES], ShmError> {
    let mut bytes = [MaybeUninit::uninit(); HEADER_BYTES];
    let (header, _) = rustix::io::pread(file, &mut bytes, 0)?;
    (*header).try_into().map_err(|_| ShmError::NotASegment("it is shorter than a header"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::fds::tests::{ends_soon, lingering};

    #[test]
    fn from_fd__does_not_wait_for_the_close_of_what_it_refuses() {
        for huge_pages in [false, true] {
            let (stream, _listener) = lingering();
            ends_soon(move || {
                let user = rustix::process::geteuid().as_raw();
                let refused = Segment::from_fd_of(stream.into(), user, huge_pages);
                assert!(matches!(refused, Err(ShmError::NotASegment(_))), "{refused:?}");
            });
        }
    }
}
