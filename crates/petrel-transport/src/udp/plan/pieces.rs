//! Runs of bytes to send, as the kernel gathers them, in the order in which they came.
//!
//! Those of one peer follow one another as long as no other peer's come between: then the kernel
//! reads them from here. Links lead over what came between.

use std::ops::Range;

/// Most pieces of a burst, so that one call carries no more than some megabyte at the default MTU,
/// and that an entry of `sendmmsg` stays below the 1024 pieces that the kernel takes.
pub(in crate::udp) const PIECES_MAX: usize = 256;

/// What the kernel need not know of a piece.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    /// The next piece of the message, if this is not its last: the one behind it, or a later one.
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
    /// Whether no other peer's pieces came between.
    #[inline]
    fn is_unbroken(&self) -> bool {
        self.last - self.first + 1 == self.count
    }
}

pub(super) struct Pieces {
    iovecs: Box<[libc::iovec; PIECES_MAX]>,
    notes: Box<[Note; PIECES_MAX]>,
    count: usize,
}

impl Pieces {
    pub(super) fn new() -> Self {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            iovecs: Box::new([nothing; PIECES_MAX]),
            notes: Box::new([Note::default(); PIECES_MAX]),
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

    /// Adds the parts of a frame that have bytes. There must be room for two pieces.
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

    /// Adds bytes to the end of a piece, and frames.
    #[inline]
    pub(super) fn extend(&mut self, index: u32, bytes: usize, frame_count: u32) {
        self.iovecs[index as usize].iov_len += bytes;
        self.notes[index as usize].frame_count += frame_count;
    }

    /// Takes bytes from the start of a piece, which has more.
    #[inline]
    pub(super) fn trim(&mut self, index: u32, bytes: usize) {
        let iovec = &mut self.iovecs[index as usize];
        iovec.iov_base = iovec.iov_base.cast::<u8>().wrapping_add(bytes).cast();
        iovec.iov_len -= bytes;
    }

    /// Puts a run behind another one.
    #[inline]
    pub(super) fn join(&mut self, run: &mut Run, next: Run) {
        self.notes[run.last as usize].next = next.first;
        run.last = next.last;
        run.count += next.count;
    }

    /// The pieces of a run where they lie, if they follow one another.
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

    /// Cuts the first `bytes` bytes, which end with a piece, or else all, from a run of pieces that
    /// have some. Gives what was cut, its bytes, and the frames in it; the rest may be empty.
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

    /// All pieces that do not lie in `own`, to be moved elsewhere.
    pub(super) fn foreign(
        &mut self,
        own: Range<*mut u8>,
    ) -> impl Iterator<Item = &mut libc::iovec> {
        let all = self.iovecs[..self.count].iter_mut();
        all.filter(move |iovec| !own.contains(&iovec.iov_base.cast()))
    }
}

#[inline]
fn iovec(part: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() }
}
