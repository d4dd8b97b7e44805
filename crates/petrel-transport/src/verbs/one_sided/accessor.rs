//! The end of a connection that reads and writes.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::{Card, Kind, PairAddress, Place};
use crate::buf::Region;
use crate::verbs::card::Owned;
use crate::verbs::error::VerbsError;
use crate::verbs::pair::EMPTY;
use crate::verbs::table::{
    ACCESS_LOCAL_WRITE, Piece, Registration, SEND_FENCE, SEND_SIGNALED, SendRequest,
    WC_REMOTE_ACCESS, WC_REMOTE_INVALID, WC_SUCCESS, WR_RDMA_READ, WR_RDMA_WRITE,
};
use crate::words::WORD_BYTES;

/// Bytes that one chain of requests moves.
const CHAIN_BYTES: usize = 256 << 10;

/// Requests of a chain.
const CHAIN_REQUESTS: usize = 64;

/// The longest wait for a chain: a card answers after its repetitions at the latest, and a card that is gone does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Polls between two looks at the clock.
const POLLS_OF_A_LOOK: u32 = 1 << 10;

/// Why an access has failed. The connection carries no further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The card of the memory's host refused.
    #[error("the host of the memory does not lend it any more")]
    Refused,
    /// The peer's card does not answer, or the own card has failed.
    #[error("the connection of the cards is broken (completion status {0})")]
    Lost(u32),
}

/// The status of [`AccessError::Lost`] without a completion.
const NO_COMPLETION: u32 = u32::MAX;

/// The end that accesses the memory of a peer, one chain of requests at a time.
pub struct Accessor {
    _registration: Owned<Registration>,
    connection: Connection,
    // The card writes here until the registration is gone.
    buffer: Region,
    requests: Box<[(SendRequest, Piece)]>,
    /// The memory of the peer; `None` before the connection.
    place: Option<Place>,
    /// The number of the last chain.
    chains: u64,
    failed: Option<AccessError>,
}

// SAFETY: the pointers of the requests lead to memory of this value, which no other value uses.
unsafe impl Send for Accessor {}

impl Accessor {
    /// Makes an end without a peer.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn open(card: &Arc<Card>, kind: Kind) -> Result<Self, VerbsError> {
        let connection = Connection::open(card, kind, CHAIN_REQUESTS as u32, 0)?;
        let buffer =
            Region::zeroed(CHAIN_BYTES, false).map_err(|why| VerbsError::refused("mmap", why))?;
        // SAFETY: the result holds the memory, and reads it between two chains alone.
        let registration = unsafe {
            connection.register(buffer.start().as_ptr(), CHAIN_BYTES, ACCESS_LOCAL_WRITE)?
        };
        // SAFETY: a registration is a structure with its key.
        let local_key = unsafe { (*registration.get()).local_key };
        let piece = Piece { address: 0, length: 0, local_key };
        let requests =
            vec![(SendRequest::of(0, WR_RDMA_READ), piece); CHAIN_REQUESTS].into_boxed_slice();
        Ok(Self {
            _registration: registration,
            connection,
            buffer,
            requests,
            place: None,
            chains: 0,
            failed: None,
        })
    }

    /// The address that the peer needs.
    pub fn address(&self) -> PairAddress {
        self.connection.address()
    }

    /// Connects to lent memory. The call may wait as [`Lending::open`] does.
    ///
    /// # Errors
    /// See [`VerbsError`].
    ///
    /// # Panics
    /// When the end is connected.
    pub fn connect(&mut self, peer: &PairAddress, place: Place) -> Result<(), VerbsError> {
        assert!(self.place.is_none(), "an end has one peer");
        self.connection.receive_from(peer)?;
        self.connection.send()?;
        self.place = Some(place);
        Ok(())
    }

    /// Reads bytes at an offset of the memory.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        for (number, part) in (0..).zip(to.chunks_mut(CHAIN_BYTES)) {
            let at = offset + number * CHAIN_BYTES as u64;
            self.run(WR_RDMA_READ, [(at, 0, part.len())])?;
            part.copy_from_slice(&self.buffer()[..part.len()]);
        }
        Ok(())
    }

    /// Reads several pieces, offsets and lengths, one behind the other.
    ///
    /// # Errors
    /// See [`AccessError`].
    ///
    /// # Panics
    /// When the pieces have other bytes than `to` in all.
    pub fn read_many(&mut self, pieces: &[(u64, usize)], to: &mut [u8]) -> Result<(), AccessError> {
        let (mut rest, mut pieces) = (to, pieces);
        while let Some(&(offset, len)) = pieces.first() {
            let (count, bytes) = chained(pieces);
            if count == 0 {
                let (into, later) = std::mem::take(&mut rest).split_at_mut(len);
                self.read(offset, into)?;
                (rest, pieces) = (later, &pieces[1..]);
                continue;
            }
            let (into, later) = std::mem::take(&mut rest).split_at_mut(bytes);
            let mut place = 0;
            let chain = pieces[..count].iter().map(|&(offset, len)| {
                place += len;
                (offset, place - len, len)
            });
            self.run(WR_RDMA_READ, chain)?;
            into.copy_from_slice(&self.buffer()[..bytes]);
            (rest, pieces) = (later, &pieces[count..]);
        }
        assert!(rest.is_empty(), "the pieces fill the result");
        Ok(())
    }

    /// Reads a versioned value behind its version at an offset. Returns the version, or `None` if a writer has changed the value meanwhile,
    /// or is changing it. Each read begins after the one before it has ended (a *fence*), since a card may read memory in another order than it
    /// answers.
    ///
    /// # Errors
    /// See [`AccessError`].
    ///
    /// # Panics
    /// With a value of more than 256 KiB less 16 bytes.
    pub fn read_versioned(
        &mut self,
        offset: u64,
        to: &mut [u8],
    ) -> Result<Option<u64>, AccessError> {
        const WORD: usize = WORD_BYTES as usize;
        assert!(to.len() <= Self::VERSIONED_BYTES_MAX, "a value fits in one chain");
        let chain =
            [(offset, 0, WORD), (offset + WORD_BYTES, 2 * WORD, to.len()), (offset, WORD, WORD)];
        self.run_fenced(WR_RDMA_READ, chain)?;
        let (versions, value) = self.buffer()[..2 * WORD + to.len()].split_at(2 * WORD);
        let (before, after) = versions.split_at(WORD);
        let version = u64::from_le_bytes(std::array::from_fn(|at| before[at]));
        if before != after || !version.is_multiple_of(2) {
            return Ok(None);
        }
        to.copy_from_slice(value);
        Ok(Some(version))
    }

    /// The largest value of [`Accessor::read_versioned`], in bytes.
    pub const VERSIONED_BYTES_MAX: usize = CHAIN_BYTES - 2 * WORD_BYTES as usize;

    /// Writes bytes at an offset of the memory.
    ///
    /// # Errors
    /// See [`AccessError`]. Some of the bytes may then have been written.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        self.check()?;
        for (number, part) in (0..).zip(from.chunks(CHAIN_BYTES)) {
            // SAFETY: the buffer belongs to this value, and no chain is in progress: a failed one is the last.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), self.buffer.start().as_ptr(), part.len());
            }
            let at = offset + number * CHAIN_BYTES as u64;
            self.run(WR_RDMA_WRITE, [(at, 0, part.len())])?;
        }
        Ok(())
    }

    /// After a chain that has failed the card may still use the buffer.
    fn check(&self) -> Result<(), AccessError> {
        self.failed.map_or(Ok(()), Err)
    }

    fn buffer(&self) -> &[u8] {
        // SAFETY: the card writes during chains alone, which need the value exclusively.
        unsafe { std::slice::from_raw_parts(self.buffer.start().as_ptr(), CHAIN_BYTES) }
    }

    /// Has the card execute accesses: offsets in the memory, places in the buffer, and lengths.
    fn run(
        &mut self,
        operation: u32,
        accesses: impl IntoIterator<Item = (u64, usize, usize)>,
    ) -> Result<(), AccessError> {
        self.run_with(operation, 0, accesses)
    }

    /// As [`Accessor::run`], one access after the other.
    fn run_fenced(
        &mut self,
        operation: u32,
        accesses: impl IntoIterator<Item = (u64, usize, usize)>,
    ) -> Result<(), AccessError> {
        self.run_with(operation, SEND_FENCE, accesses)
    }

    fn run_with(
        &mut self,
        operation: u32,
        flags: u32,
        accesses: impl IntoIterator<Item = (u64, usize, usize)>,
    ) -> Result<(), AccessError> {
        self.check()?;
        let place = self.place.expect("an end accesses memory after it has connected");
        self.chains += 1;
        let mut count = 0;
        for ((request, piece), (offset, at, len)) in self.requests.iter_mut().zip(accesses) {
            assert!(at + len <= CHAIN_BYTES, "an access stays within the buffer");
            piece.address = self.buffer.start().as_ptr() as u64 + at as u64;
            piece.length = len as u32;
            (request.id, request.operation, request.flags) = (self.chains, operation, flags);
            request.handle =
                ptr::without_provenance_mut(place.address.wrapping_add(offset) as usize);
            request.pair = place.key;
            count += 1;
        }
        self.link(count);
        let outcome = self.post().and_then(|()| self.wait());
        self.failed = outcome.err();
        outcome
    }

    /// Makes a chain of the first requests, of which the last has a completion.
    fn link(&mut self, count: usize) {
        assert!(count > 0, "a chain has a request");
        let mut next: *mut SendRequest = ptr::null_mut();
        for (request, piece) in self.requests[..count].iter_mut().rev() {
            if next.is_null() {
                request.flags |= SEND_SIGNALED;
            }
            (request.pieces, request.next) = (&raw mut *piece, next);
            next = request;
        }
    }

    fn post(&mut self) -> Result<(), AccessError> {
        let post = self.connection.operations().post_send.expect("a provider sends");
        let mut refused = ptr::null_mut();
        fence(Ordering::Release);
        // SAFETY: the requests and pieces stay in place until the completion, and the buffer is registered.
        let error =
            unsafe { post(self.connection.pair.get(), &raw mut self.requests[0].0, &mut refused) };
        if error == 0 { Ok(()) } else { Err(AccessError::Lost(NO_COMPLETION)) }
    }

    /// Waits for the completion of the last chain.
    fn wait(&mut self) -> Result<(), AccessError> {
        let poll = self.connection.operations().poll_cq.expect("a provider has completions");
        let mut polls = 0_u32;
        let mut until = None;
        loop {
            let mut completion = EMPTY;
            // SAFETY: the queue is this value's, and the result has room.
            let count = unsafe { poll(self.connection.queue.get(), 1, &mut completion) };
            if count > 0 && completion.status == WC_SUCCESS {
                assert!(completion.id == self.chains, "a connection completes its last chain");
                fence(Ordering::Acquire);
                return Ok(());
            }
            if count > 0 {
                return Err(match completion.status {
                    WC_REMOTE_ACCESS | WC_REMOTE_INVALID => AccessError::Refused,
                    status => AccessError::Lost(status),
                });
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS_OF_A_LOOK) {
                let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
                if Instant::now() > until {
                    return Err(AccessError::Lost(NO_COMPLETION));
                }
                // The kernel's emulation of a card needs the CPU itself.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// Returns the number of the first pieces that one chain reads, and their bytes.
fn chained(pieces: &[(u64, usize)]) -> (usize, usize) {
    let mut bytes = 0;
    for (count, (_, len)) in pieces.iter().take(CHAIN_REQUESTS).enumerate() {
        if bytes + len > CHAIN_BYTES {
            return (count, bytes);
        }
        bytes += len;
    }
    (pieces.len().min(CHAIN_REQUESTS), bytes)
}

impl fmt::Debug for Accessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accessor").field("connection", &self.connection).finish_non_exhaustive()
    }
}
