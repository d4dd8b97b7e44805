//! The four rings and the memory of one socket, without a system call.
//!
//! A chunk for receiving goes round: fill ring, kernel, receive ring, reader, fill ring. A chunk for sending: free list, writer, send ring, kernel,
//! completion ring, free list. [`Owner`] records the step of each chunk, so that a descriptor from the kernel is believed only if the kernel owns the
//! chunk. All other descriptors are *faults*: counted, and ignored.

use std::ops::Range;

use petrel_planted::planted;

use super::rings::{Consumer, Producer};
use super::umem::{Owner, Umem};

/// Released chunks that are given back to the kernel at once. Each time costs two stores that the kernel's processor must fetch, and the kernel must
/// never run out of chunks meanwhile: an eighth of the smallest ring.
const RETURN_BATCH: u32 = 8;

/// The four rings.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    pub(super) receive: Consumer<libc::xdp_desc>,
    pub(super) send: Producer<libc::xdp_desc>,
}

/// A received frame in the reader's hands.
#[derive(Clone, Debug)]
struct Lent {
    chunk: u32,
    bytes: Range<usize>,
}

/// The frames of one socket.
#[derive(Debug)]
pub(super) struct Queue {
    umem: Umem,
    rings: Rings,
    frame_bytes_max: usize,
    begun: Option<u32>,
    lent: Option<Lent>,
    /// Chunks released since the kernel was last told.
    released: u32,
    faults: u64,
}

impl Queue {
    /// Offers all chunks for receiving to the kernel.
    ///
    /// # Panics
    /// If the fill ring is too small for them, or a chunk for a frame.
    pub(super) fn new(umem: Umem, rings: Rings, receive: u32, frame_bytes_max: usize) -> Self {
        assert!(frame_bytes_max <= umem.chunk_bytes(), "a frame has a chunk");
        let (begun, lent) = (None, None);
        let mut queue = Self { umem, rings, frame_bytes_max, begun, lent, released: 0, faults: 0 };
        for chunk in 0..receive {
            assert!(queue.umem.owner(chunk) == Owner::Filling && queue.rings.fill.has_room());
            queue.rings.fill.push(queue.umem.address(chunk));
        }
        queue.rings.fill.publish();
        queue
    }

    /// See [`Nic::has_room`](super::super::Nic::has_room).
    pub(super) fn has_room(&mut self, frames: usize) -> bool {
        if self.umem.free_chunks() < frames {
            self.complete();
        }
        self.umem.free_chunks() >= frames && self.rings.send.room() as usize >= frames
    }

    /// See [`Nic::begin`](super::super::Nic::begin).
    pub(super) fn begin(&mut self) -> Option<&mut [u8]> {
        let chunk = match self.begun {
            Some(chunk) => chunk,
            None if !self.rings.send.has_room() => return None,
            None => self.umem.take_free().or_else(|| {
                self.complete();
                self.umem.take_free()
            })?,
        };
        self.begun = Some(chunk);
        Some(self.umem.bytes(chunk, 0..self.frame_bytes_max))
    }

    /// See [`Nic::commit`](super::super::Nic::commit).
    pub(super) fn commit(&mut self, bytes: usize) {
        let chunk = self.begun.take().expect("a frame was begun");
        assert!(bytes <= self.frame_bytes_max, "a frame of {bytes} bytes");
        self.umem.pass(chunk, Owner::Free, Owner::Sending);
        let addr = self.umem.address(chunk);
        self.rings.send.push(libc::xdp_desc { addr, len: bytes as u32, options: 0 });
    }

    /// Shows the kernel all queued frames.
    pub(super) fn publish(&mut self) {
        self.rings.send.publish();
    }

    /// Returns the number of queued frames that the kernel has not taken yet.
    pub(super) fn unsent(&mut self) -> u32 {
        self.rings.send.pending()
    }

    /// Returns true if the kernel sends only after a system call.
    pub(super) fn send_needs_wakeup(&self) -> bool {
        self.rings.send.needs_wakeup()
    }

    /// Returns true if the kernel receives only after a system call.
    pub(super) fn fill_needs_wakeup(&self) -> bool {
        self.rings.fill.needs_wakeup()
    }

    /// Takes the chunks of sent frames back.
    fn complete(&mut self) {
        for _ in 0..self.rings.completion.size() {
            let Some(address) = self.rings.completion.pop() else { break };
            match self.umem.find(address) {
                Some((chunk, 0))
                    if self.umem.owner(chunk) == Owner::Sending
                        || planted("xdp_completion_counted_twice") =>
                {
                    let owner = self.umem.owner(chunk);
                    self.umem.pass(chunk, owner, Owner::Free);
                }
                _ => self.faults += 1,
            }
        }
        self.rings.completion.release();
    }

    /// See [`Nic::received`](super::super::Nic::received). Without a frame, all released chunks have been given back.
    pub(super) fn received(&mut self) -> Option<&mut [u8]> {
        if !self.has_received() {
            self.give_back();
        }
        let Lent { chunk, bytes } = self.lent.clone()?;
        Some(self.umem.bytes(chunk, bytes))
    }

    /// Returns true if [`Queue::received`] has a frame.
    pub(super) fn has_received(&mut self) -> bool {
        if self.lent.is_none() {
            self.lent = self.next();
        }
        self.lent.is_some()
    }

    fn next(&mut self) -> Option<Lent> {
        // A kernel that publishes one wrong descriptor after another cannot keep this side here.
        for _ in 0..self.rings.receive.size() {
            let descriptor = self.rings.receive.pop()?;
            let found = self.umem.find(descriptor.addr);
            let Some((chunk, start)) =
                found.filter(|found| self.umem.owner(found.0) == Owner::Filling)
            else {
                self.faults += 1;
                continue;
            };
            self.umem.pass(chunk, Owner::Filling, Owner::Received);
            let bytes = start..start.saturating_add(descriptor.len as usize);
            if bytes.end <= self.umem.chunk_bytes() && descriptor.options & libc::XDP_PKT_CONTD == 0
            {
                return Some(Lent { chunk, bytes });
            }
            self.faults += 1;
            self.refill(chunk);
        }
        None
    }

    /// See [`Nic::release`](super::super::Nic::release).
    pub(super) fn release(&mut self) {
        let Lent { chunk, .. } = self.lent.take().expect("a frame was received");
        self.refill(chunk);
        if self.released >= RETURN_BATCH {
            self.give_back();
        }
    }

    fn refill(&mut self, chunk: u32) {
        self.released += 1;
        if planted("xdp_fill_ring_not_refilled") {
            return;
        }
        // The ring has twice as many entries as there are chunks: the kernel shows a frame shortly before it shows that the fill ring's entry is read.
        // So only a kernel that lies leaves no room, and loses the chunk.
        if !self.rings.fill.has_room() {
            self.faults += 1;
            return;
        }
        self.umem.pass(chunk, Owner::Received, Owner::Filling);
        self.rings.fill.push(self.umem.address(chunk));
    }

    fn give_back(&mut self) {
        if self.released > 0 {
            self.released = 0;
            // In this order: a kernel with a chunk must have an entry for its frame.
            self.rings.receive.release();
            self.rings.fill.publish();
        }
    }

    /// Returns the number of descriptors and indices from the kernel that were wrong.
    pub(super) fn faults(&self) -> u64 {
        let Rings { fill, completion, receive, send } = &self.rings;
        self.faults + fill.lies() + completion.lies() + receive.lies() + send.lies()
    }
}

#[cfg(test)]
mod tests;
