//! Accesses to memory of a peer by *reliable connections* (RC queue pairs): the card of the memory's host executes reads and writes, and the
//! process that lends the memory runs no instruction (HERD §2.2; Pilaf and FaRM, which HERD §5 compares with).
//!
//! Each connection has a protection domain of its own, so the key of lent memory is valid for the connection's peer alone. A third process
//! that guesses the key reaches nothing.
//!
//! Cards also have operations on words. Most cards make them atomic among themselves alone (`IBV_ATOMIC_HCA`), and not beside the host's
//! processors, so they would break the promise of [`WordMemory`]. They are not used.

use std::any::Any;
use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::card::{Owned, Port};
use super::error::VerbsError;
use super::pair::EMPTY;
use super::table::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, Capacity, CompletionQueue, Domain,
    LIBRARY, Pair, PairSettings, PairState, Piece, QP_ACCESS_FLAGS, QP_AV, QP_PATH_MTU, QP_PEER,
    QP_PEER_READS, QP_PKEY_INDEX, QP_PORT, QP_READS, QP_RETRY_COUNT, QP_RNR_RETRY, QP_RNR_TIMER,
    QP_RQ_PSN, QP_SQ_PSN, QP_STATE, QP_TIMEOUT, QPS_INIT, QPS_RTR, QPS_RTS, QPT_RC, QPT_UC,
    Registration, SEND_SIGNALED, SendRequest, Table, WC_REMOTE_ACCESS, WC_REMOTE_INVALID,
    WC_SUCCESS, WR_RDMA_READ, WR_RDMA_WRITE,
};
use super::{PAIRS_MAX, VerbsConfig};
use crate::buf::Region;
use crate::words::{WORD_BYTES, WordMemory};

/// Bytes that one chain of requests moves.
const CHAIN_BYTES: usize = 256 << 10;

/// Requests of a chain.
const CHAIN_REQUESTS: usize = 64;

/// Reads that a connection has in progress: every card allows at least as many.
const READS: u8 = 4;

/// The time until a card sends a packet again, 4.096 µs times two to this power, and the repetitions: half a second in all.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;

/// The longest wait for a chain: a card answers after its repetitions at the latest, and a card that is gone does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Polls between two looks at the clock.
const POLLS_OF_A_LOOK: u32 = 1 << 10;

/// An open card, for any number of connections.
pub struct Card {
    table: Table,
    port: Port,
}

impl Card {
    /// Opens the card of a name, as `rdma link` shows it, or the first card if the name is empty.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let table = Table::open(LIBRARY)?;
        let config = VerbsConfig { card: name.to_owned(), ..VerbsConfig::default() };
        let port = Port::open(&table, &config)?;
        Ok(Arc::new(Self { table, port }))
    }

    /// The number of the port's largest packet: 1 for 256 bytes, and each further number doubles the bytes.
    fn mtu(&self) -> u8 {
        (self.port.mtu.ilog2() - 7) as u8
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card").field("port", &self.port).finish_non_exhaustive()
    }
}

/// The address of an end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    gid: [u8; 16],
    lid: u16,
    pair: u32,
    /// The number of the first packet.
    first: u32,
    mtu: u8,
}

impl Far {
    /// Bytes of an address.
    pub const BYTES: usize = 27;

    /// Returns the address in the form of `docs/wire-protocol.md` §15.4.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..18].copy_from_slice(&self.lid.to_le_bytes());
        bytes[18..22].copy_from_slice(&self.pair.to_le_bytes());
        bytes[22..26].copy_from_slice(&self.first.to_le_bytes());
        bytes[26] = self.mtu;
        bytes
    }

    /// Returns the address that the bytes mean, or `None` if a number is beyond its limit.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let far = Self {
            gid: std::array::from_fn(|at| bytes[at]),
            lid: u16::from_le_bytes([bytes[16], bytes[17]]),
            pair: word(18),
            first: word(22),
            mtu: bytes[26],
        };
        let is_valid = far.pair < PAIRS_MAX && far.first < PAIRS_MAX && (1..=5).contains(&far.mtu);
        is_valid.then_some(far)
    }
}

/// The accesses that a peer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Whether the peer may read.
    pub read: bool,
    /// Whether the peer may write.
    pub write: bool,
}

impl Rights {
    fn flags(self) -> c_int {
        let read = if self.read { ACCESS_REMOTE_READ } else { 0 };
        // A card lets peers write where the process itself may.
        read | if self.write { ACCESS_REMOTE_WRITE | ACCESS_LOCAL_WRITE } else { 0 }
    }
}

/// Lent memory, as the peer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address of the first byte.
    pub address: u64,
    /// The card's key.
    pub key: u32,
}

/// The kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Packets are acknowledged and sent again (RC): reads and writes.
    Reliable,
    /// Packets are sent once (UC): writes, which end when the own card has sent them. HERD's clients write their requests so.
    Unreliable,
}

/// A queue pair of a connection.
struct Connection {
    pair: Owned<Pair>,
    queue: Owned<CompletionQueue>,
    domain: Owned<Domain>,
    card: Arc<Card>,
    kind: Kind,
    first: u32,
}

impl Connection {
    fn open(card: &Arc<Card>, kind: Kind, sends: u32, access: c_int) -> Result<Self, VerbsError> {
        let (table, context) = (&card.table, card.port.context.get());
        // SAFETY: the context is open.
        let domain = unsafe { (table.alloc_domain)(context) };
        let domain = Owned::new(domain, table.dealloc_domain, "ibv_alloc_pd")?;
        // SAFETY: the context is open; the queue has no channel.
        let queue = unsafe {
            (table.create_queue)(context, sends as c_int, ptr::null_mut(), ptr::null_mut(), 0)
        };
        let queue = Owned::new(queue, table.destroy_queue, "ibv_create_cq")?;
        let mut settings = PairSettings {
            owner: ptr::null_mut(),
            send_queue: queue.get(),
            receive_queue: queue.get(),
            shared_queue: ptr::null_mut(),
            capacity: Capacity {
                sends,
                receives: 1,
                send_pieces: 1,
                receive_pieces: 1,
                inline_bytes: 0,
            },
            kind: if kind == Kind::Reliable { QPT_RC } else { QPT_UC },
            signal_all: 0,
        };
        // SAFETY: the queue and the domain outlive the pair.
        let pair = unsafe { (table.create_pair)(domain.get(), &mut settings) };
        let pair = Owned::new(pair, table.destroy_pair, "ibv_create_qp")?;
        let mut number = [0; 4];
        getrandom::fill(&mut number).map_err(|error| {
            VerbsError::refused("getrandom", io::Error::other(error.to_string()))
        })?;
        let first = u32::from_ne_bytes(number) % PAIRS_MAX;
        let this = Self { pair, queue, domain, card: Arc::clone(card), kind, first };
        let port = card.port.number;
        this.modify(QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS, |state| {
            (state.state, state.port, state.access) = (QPS_INIT, port, access);
        })?;
        Ok(this)
    }

    fn address(&self) -> Far {
        let port = self.card.port.address();
        // SAFETY: a queue pair is a structure with its number.
        let pair = unsafe { (*self.pair.get()).number };
        Far { gid: port.gid, lid: port.lid, pair, first: self.first, mtu: self.card.mtu() }
    }

    /// Lets the pair receive from a peer.
    fn receive_from(&self, peer: &Far) -> Result<(), VerbsError> {
        let path = self.card.port.path_to((peer.gid, peer.lid), false);
        let mask = QP_AV
            | QP_PATH_MTU
            | QP_PEER
            | QP_RQ_PSN
            | self.of_reliable(QP_PEER_READS | QP_RNR_TIMER);
        self.modify(mask, |state| {
            state.state = QPS_RTR;
            state.path = path;
            state.path_mtu = peer.mtu.min(self.card.mtu()).into();
            (state.peer, state.receive_number) = (peer.pair, peer.first);
            (state.peer_reads, state.rnr_timer) = (READS, 1);
        })
    }

    /// Lets the pair send.
    fn send(&self) -> Result<(), VerbsError> {
        let mask =
            QP_SQ_PSN | self.of_reliable(QP_TIMEOUT | QP_RETRY_COUNT | QP_RNR_RETRY | QP_READS);
        self.modify(mask, |state| {
            (state.state, state.send_number) = (QPS_RTS, self.first);
            (state.timeout, state.retries, state.rnr_retries) = (TIMEOUT, RETRIES, RETRIES);
            state.reads = READS;
        })
    }

    /// Returns the mask if the connection is of the kind that has these attributes.
    fn of_reliable(&self, mask: c_int) -> c_int {
        if self.kind == Kind::Reliable { mask } else { 0 }
    }

    fn modify(&self, mask: c_int, set: impl FnOnce(&mut PairState)) -> Result<(), VerbsError> {
        // SAFETY: zero is a value of each field.
        let mut state: PairState = unsafe { std::mem::zeroed() };
        set(&mut state);
        let modify = self.card.table.modify_pair;
        // SAFETY: the pair is this value's, and the mask names fields that are set.
        match unsafe { modify(self.pair.get(), &mut state, mask | QP_STATE) } {
            0 => Ok(()),
            error => Err(VerbsError::refused("ibv_modify_qp", io::Error::from_raw_os_error(error))),
        }
    }

    /// Lets the card access memory.
    ///
    /// # Safety
    /// The memory stays mapped until the result is dropped, and the process expects changes by the peer if it grants writing.
    unsafe fn register(
        &self,
        start: *mut u8,
        bytes: usize,
        access: c_int,
    ) -> Result<Owned<Registration>, VerbsError> {
        let register = self.card.table.register;
        // SAFETY: by the promise of the caller.
        let registration = unsafe { register(self.domain.get(), start.cast(), bytes, access) };
        Owned::new(registration, self.card.table.deregister, "ibv_reg_mr")
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

/// Memory that a peer accesses. The value ends the connection when it is dropped.
pub struct Lent {
    registration: Mutex<Option<Owned<Registration>>>,
    connection: Connection,
    place: Place,
    // The card reaches the memory until the registration is gone.
    _memory: Arc<dyn Any + Send + Sync>,
}

impl Lent {
    /// Lends the words of an object to a peer. The call may wait for the network to name the peer's Ethernet address, a second at most.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn open<M: Send + Sync + 'static>(
        card: &Arc<Card>,
        kind: Kind,
        (memory, words): (Arc<M>, impl Fn(&M) -> &WordMemory),
        rights: Rights,
        peer: &Far,
    ) -> Result<Self, VerbsError> {
        let connection = Connection::open(card, kind, 1, rights.flags() & !ACCESS_LOCAL_WRITE)?;
        let words = words(&memory);
        assert!(words.is_writable() || !rights.write, "read-only memory is not lent for writing");
        // SAFETY: the result holds the memory, whose users expect changes of its words at any time.
        let registration =
            unsafe { connection.register(words.start(), words.bytes() as usize, rights.flags())? };
        connection.receive_from(peer)?;
        // SAFETY: a registration is a structure with its key.
        let key = unsafe { (*registration.get()).remote_key };
        let place = Place { address: words.start() as u64, key };
        Ok(Self {
            registration: Mutex::new(Some(registration)),
            connection,
            place,
            _memory: memory,
        })
    }

    /// The address to which the peer connects.
    pub fn address(&self) -> Far {
        self.connection.address()
    }

    /// The memory, as the peer names it.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Takes the memory back. The peer's next access is refused by the card.
    pub fn take_back(&self) {
        self.registration.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("connection", &self.connection).finish_non_exhaustive()
    }
}

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
pub struct Near {
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
unsafe impl Send for Near {}

impl Near {
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
        let request = SendRequest {
            id: 0,
            next: ptr::null_mut(),
            pieces: ptr::null_mut(),
            count: 1,
            operation: WR_RDMA_READ,
            flags: 0,
            immediate: 0,
            handle: ptr::null_mut(),
            pair: 0,
            key: 0,
            rest: [0; 9],
        };
        // SAFETY: a registration is a structure with its key.
        let local_key = unsafe { (*registration.get()).local_key };
        let piece = Piece { address: 0, length: 0, local_key };
        let requests = vec![(request, piece); CHAIN_REQUESTS].into_boxed_slice();
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
    pub fn address(&self) -> Far {
        self.connection.address()
    }

    /// Connects to lent memory. The call may wait as [`Lent::open`] does.
    ///
    /// # Errors
    /// See [`VerbsError`].
    ///
    /// # Panics
    /// When the end is connected.
    pub fn connect(&mut self, peer: &Far, place: Place) -> Result<(), VerbsError> {
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
    /// or is changing it. A card executes the reads of a connection in their order.
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
        self.run(WR_RDMA_READ, chain)?;
        let (versions, value) = self.buffer()[..2 * WORD + to.len()].split_at(2 * WORD);
        let (before, after) = versions.split_at(WORD);
        let version = u64::from_le_bytes(std::array::from_fn(|at| before[at]));
        if before != after || !version.is_multiple_of(2) {
            return Ok(None);
        }
        to.copy_from_slice(value);
        Ok(Some(version))
    }

    /// The largest value of [`Near::read_versioned`], in bytes.
    pub const VERSIONED_BYTES_MAX: usize = CHAIN_BYTES - 2 * WORD_BYTES as usize;

    /// Writes bytes at an offset of the memory.
    ///
    /// # Errors
    /// See [`AccessError`]. Some of the bytes may then have been written.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        for (number, part) in (0..).zip(from.chunks(CHAIN_BYTES)) {
            // SAFETY: the buffer belongs to this value, and no chain is in progress.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), self.buffer.start().as_ptr(), part.len());
            }
            let at = offset + number * CHAIN_BYTES as u64;
            self.run(WR_RDMA_WRITE, [(at, 0, part.len())])?;
        }
        Ok(())
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
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let place = self.place.expect("an end accesses memory after it has connected");
        self.chains += 1;
        let mut count = 0;
        for ((request, piece), (offset, at, len)) in self.requests.iter_mut().zip(accesses) {
            assert!(at + len <= CHAIN_BYTES, "an access stays within the buffer");
            piece.address = self.buffer.start().as_ptr() as u64 + at as u64;
            piece.length = len as u32;
            (request.id, request.operation, request.flags) = (self.chains, operation, 0);
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
            request.flags = if next.is_null() { SEND_SIGNALED } else { 0 };
            (request.pieces, request.next) = (&raw mut *piece, next);
            next = request;
        }
    }

    fn post(&mut self) -> Result<(), AccessError> {
        let post = self.operations().post_send.expect("a provider sends");
        let mut refused = ptr::null_mut();
        fence(Ordering::Release);
        // SAFETY: the requests and pieces stay in place until the completion, and the buffer is registered.
        let error =
            unsafe { post(self.connection.pair.get(), &raw mut self.requests[0].0, &mut refused) };
        if error == 0 { Ok(()) } else { Err(AccessError::Lost(NO_COMPLETION)) }
    }

    /// Waits for the completion of the last chain.
    fn wait(&mut self) -> Result<(), AccessError> {
        let poll = self.operations().poll_cq.expect("a provider has completions");
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

    fn operations(&self) -> &super::table::Operations {
        // SAFETY: the context stays open as long as this value, and its operations do not change.
        unsafe { &(*self.connection.card.port.context.get()).operations }
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

impl fmt::Debug for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Near").field("connection", &self.connection).finish_non_exhaustive()
    }
}
