//! Runs of bytes to send, as the kernel gathers them, in order of arrival.
//!
//! A peer's pieces are contiguous if no other peer's pieces come between; the kernel then reads
//! them from here. Links skip the pieces between.

use std::ops::Range;

/// Most pieces of a burst. At the default MTU, one call thus carries no more than about a megabyte,
/// and an entry of `sendmmsg` stays below the kernel's limit of 1024 pieces.
pub(in crate::udp) const PIECES_MAX: usize = 256;

/// Places for pieces: a sealed datagram has a piece of its own, and the pieces before sealing, of which it has at least one, keep
/// their places.
const PLACES: usize = 2 * PIECES_MAX;

/// Per-piece data for the plan alone, not for the kernel.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    /// The next piece of the message, unless this piece is the last: the piece behind, or a later
    /// one.
    next: u32,
    /// Frames that begin in the piece.
    frame_count: u32,
}

/// Consecutive pieces of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) count: u32,
}

impl Run {
    /// Returns true if no other peer's pieces came between.
    #[inline]
    fn is_unbroken(&self) -> bool {
        self.last - self.first + 1 == self.count
    }
}

pub(super) struct Pieces {
    iovecs: Box<[libc::iovec; PLACES]>,
    notes: Box<[Note; PLACES]>,
    count: usize,
}

impl Pieces {
    pub(super) fn new() -> Self {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            iovecs: Box::new([nothing; PLACES]),
            notes: Box::new([Note::default(); PLACES]),
            count: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds a piece. There must be room.
    #[inline]
    pub(super) fn push(&mut self, start: *const u8, bytes: usize, frame_count: u32) -> u32 {
        let index = self.count;
        self.iovecs[index] = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: bytes };
        self.notes[index] = Note { next: index as u32 + 1, frame_count };
        self.count = index + 1;
        index as u32
    }

    /// Adds the non-empty parts of a frame. There must be room for two pieces.
    #[inline]
    pub(super) fn push_parts(&mut self, head: &[u8], body: &[u8]) {
        if head.is_empty() || body.is_empty() {
            let only = if body.is_empty() { head } else { body };
            self.push(only.as_ptr(), only.len(), 1);
            return;
        }
        let index = self.count;
        self.iovecs[index..][..2].copy_from_slice(&[iovec(head), iovec(body)]);
        let next = index as u32 + 1;
        let notes =
            [(next, 1), (next + 1, 0)].map(|(next, frame_count)| Note { next, frame_count });
        self.notes[index..][..2].copy_from_slice(&notes);
        self.count = index + 2;
    }

    /// Adds bytes and frames to the end of a piece.
    #[inline]
    pub(super) fn extend(&mut self, index: u32, bytes: usize, frame_count: u32) {
        self.iovecs[index as usize].iov_len += bytes;
        self.notes[index as usize].frame_count += frame_count;
    }

    /// Removes bytes from the start of a piece, which has more.
    #[inline]
    pub(super) fn trim(&mut self, index: u32, bytes: usize) {
        let iovec = &mut self.iovecs[index as usize];
        iovec.iov_base = iovec.iov_base.cast::<u8>().wrapping_add(bytes).cast();
        iovec.iov_len -= bytes;
    }

    /// Appends a run to another run.
    #[inline]
    pub(super) fn join(&mut self, run: &mut Run, next: Run) {
        self.notes[run.last as usize].next = next.first;
        run.last = next.last;
        run.count += next.count;
    }

    /// The pieces of a run in place, if they are contiguous.
    #[inline]
    pub(super) fn slice(&self, run: Run) -> Option<&[libc::iovec]> {
        run.is_unbroken().then(|| &self.iovecs[run.first as usize..][..run.count as usize])
    }

    /// The pieces of a run.
    pub(super) fn list(&self, run: Run) -> impl Iterator<Item = libc::iovec> {
        let mut at = run.first;
        (0..run.count).map(move |_| {
            let index = at as usize;
            at = self.notes[index].next;
            self.iovecs[index]
        })
    }

    /// Cuts the first `bytes` bytes, which end with a piece, or else all, from a run of non-empty
    /// pieces. Returns the cut run, with the numbers of bytes and frames; the rest may be empty.
    pub(super) fn cut(&self, run: &mut Run, bytes: usize) -> (Run, usize, u32) {
        let mut cut = Run { first: run.first, last: run.first, count: 0 };
        let (mut cut_bytes, mut frame_count) = (0, 0);
        while cut_bytes < bytes && run.count > 0 {
            let index = run.first as usize;
            cut_bytes += self.iovecs[index].iov_len;
            frame_count += self.notes[index].frame_count;
            (cut.last, cut.count) = (run.first, cut.count + 1);
            (run.first, run.count) = (self.notes[index].next, run.count - 1);
        }
        (cut, cut_bytes, frame_count)
    }

    /// Empties the pieces of a run, whose bytes are no longer needed.
    pub(super) fn blank(&mut self, run: Run) {
        let mut at = run.first as usize;
        for _ in 0..run.count {
            self.iovecs[at].iov_len = 0;
            at = self.notes[at].next as usize;
        }
    }

    /// Returns true if the first piece of a run is in `area`.
    pub(super) fn is_in(&self, run: Run, area: Range<*mut u8>) -> bool {
        area.contains(&self.iovecs[run.first as usize].iov_base.cast())
    }

    /// All pieces with bytes outside `own`, to be moved elsewhere.
    pub(super) fn foreign(
        &mut self,
        own: [Range<*mut u8>; 2],
    ) -> impl Iterator<Item = &mut libc::iovec> {
        let all = self.iovecs[..self.count].iter_mut().filter(|iovec| iovec.iov_len > 0);
        all.filter(move |iovec| !own.iter().any(|own| own.contains(&iovec.iov_base.cast())))
    }
}

#[inline]
fn iovec(part: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() }
}
