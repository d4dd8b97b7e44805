//! Regions that RDMA cards access (`docs/wire-protocol.md` §15.4): the server lends memory, and clients' cards read and write it.

use std::fmt;
use std::io;
use std::sync::Arc;

use petrel_proto::Status;
use petrel_proto::control::CardAddress;
use petrel_transport::Transport;
use petrel_transport::verbs::{
    AccessError, Accessor, Card, Kind, Lending, PairAddress, Place, Rights, VerbsError,
};

use super::RemoteRegion;
use super::lendings::{Borrower, Lendings};
use super::remote::Versioned;
use crate::client::Call;
use crate::control::ControlPlane;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::region_memory::memory::OUT_OF_RANGE;
use crate::region_memory::registry::{Entry, NO_REGION};
use crate::region_memory::wire::{self, Header, REACH, Refusal};
use crate::region_memory::{Access, RegionMemory, Regions};
use crate::workers::{WorkerRequest, Workers};

/// The lengths in the header of a request: to lend the region to a queue pair, or to take the memory back from the pair.
const LEND: u32 = 0;
const GIVE_BACK: u32 = 1;

/// Reads of a versioned value, before a client is told that others write all the time.
const TRIES: u32 = 64;

const MALFORMED: Refusal =
    Refusal::new(Status::InvalidArgument, "a request for a card has an address behind its header");

/// A client inside TLS is promised that its frames are sealed.
const ENCRYPTED: Refusal = Refusal::new(
    Status::FailedPrecondition,
    "the client's connection is encrypted, and accesses by an RDMA card are not",
);

/// The bytes of memory that a card pins for clients, unless set.
const PINNED_BYTES_MAX: u64 = 4 << 30;

/// An RDMA card of this host that lends regions to clients; clones are the same.
///
/// ```no_run
/// use petrel::Server;
/// use petrel::region::{Access, RegionCard, RegionMemory, Regions};
///
/// let regions = Regions::new();
/// let table = regions.register(RegionMemory::private(1 << 20)?, Access::READ)?;
/// let card = RegionCard::open("rxe0")?;
/// let served = regions.clone();
/// let server = Server::bind("0.0.0.0:31850").serve(|_| (), move |endpoint| {
///     endpoint.serve_regions(&served);
///     endpoint.serve_regions_by_card(&served, &card);
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RegionCard {
    card: Arc<Card>,
    lendings: Arc<Lendings>,
    /// The name of a peer's Ethernet address can take a second: no endpoint waits for it.
    workers: Workers,
}

impl RegionCard {
    /// Opens the card of a name, as `rdma link` shows it, or the first card if the name is empty. The card pins 4 GiB for clients at most.
    ///
    /// # Errors
    /// UNAVAILABLE without `libibverbs`, such a card, or an active port with an address; RESOURCE_EXHAUSTED without a thread.
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::pinning(name, PINNED_BYTES_MAX)
    }

    /// Opens a card that pins these bytes at most for clients. The memory of a region counts for each client that accesses the region.
    ///
    /// # Errors
    /// As [`RegionCard::open`].
    pub fn pinning(name: &str, bytes_max: u64) -> Result<Self, Error> {
        let card = Card::open(name).map_err(|error| unavailable(&error))?;
        let no_thread = |error: io::Error| {
            Error::not_sent(Status::ResourceExhausted, format!("no thread for a card: {error}"))
        };
        let workers = Workers::builder().threads(1).name("petrel-card").start();
        let workers = workers.map_err(no_thread)?;
        let lendings = Arc::new(Lendings::new(bytes_max).map_err(no_thread)?);
        Ok(Self { card, lendings, workers })
    }
}

impl fmt::Debug for RegionCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.card.fmt(f)
    }
}

fn unavailable(error: &VerbsError) -> Error {
    Error::not_sent(Status::Unavailable, error.to_string())
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Lets the cards of clients access regions, for clients that [ask for it](RemoteRegion::by_card_wait): the endpoint executes nothing
    /// then. Memory that a client accesses is pinned, and counts for the process's limit of locked memory, until the client gives it back or its
    /// session ends. A key that is revoked opens nothing to cards either.
    ///
    /// The method 65 519 is then taken.
    ///
    /// # Panics
    /// When the method has a handler.
    pub fn serve_regions_by_card(&mut self, regions: &Regions, card: &RegionCard) {
        assert!(!self.has_handler(REACH), "the method {REACH} is that of regions by a card");
        let own = OfEndpoint {
            number: card.lendings.add_endpoint(),
            lendings: Arc::clone(&card.lendings),
        };
        let endpoint = own.number;
        self.on_session_end(move |session| own.lendings.end((own.number, session)));
        let prepare = {
            let lendings = Arc::clone(&card.lendings);
            move |_: &mut S, request: &crate::Request<'_>| {
                let borrower = (endpoint, request.session());
                lendings.expect(borrower);
                borrower
            }
        };
        let (regions, lender) = (regions.clone(), card.clone());
        let handler = move |borrower, request: WorkerRequest| {
            let answer = answer(&regions, &lender, borrower, &request);
            match answer {
                Ok(answer) => request.reply(&answer),
                Err(error) => request.fail(error.status, &error.message),
            }
        };
        self.on_worker_with(REACH, &card.workers, prepare, handler);
        self.keep_method(REACH);
    }
}

/// The lendings to sessions of an endpoint, which end with the endpoint.
struct OfEndpoint {
    number: u32,
    lendings: Arc<Lendings>,
}

impl Drop for OfEndpoint {
    fn drop(&mut self) {
        self.lendings.end_all(self.number);
    }
}

/// Executes a request. Returns the response.
fn answer(
    regions: &Regions,
    lender: &RegionCard,
    borrower: Borrower,
    request: &WorkerRequest,
) -> Result<Vec<u8>, Error> {
    let (header, rest) = Header::split(request.data()).map_err(refused)?;
    let far = rest.try_into().ok().and_then(PairAddress::from_bytes).filter(names_a_host);
    let far = far.filter(|_| header.offset() == 0).ok_or_else(|| refused(MALFORMED))?;
    match header.len() {
        LEND if request.peer().is_some_and(|peer| peer.identity.is_some()) => {
            Err(refused(ENCRYPTED))
        }
        LEND => lend(regions, lender, (borrower, far), (&header, request)),
        GIVE_BACK => {
            lender.lendings.give_back(borrower, far);
            Ok(Vec::new())
        }
        _ => Err(refused(MALFORMED)),
    }
}

/// Lends the region that a request names to the client's queue pair.
fn lend(
    regions: &Regions,
    lender: &RegionCard,
    (borrower, far): (Borrower, PairAddress),
    (header, request): (&Header, &WorkerRequest),
) -> Result<Vec<u8>, Error> {
    let entry = regions.find(header).map_err(refused)?;
    let rights = rights_of(&entry).map_err(refused)?;
    // Before anything is done that costs: the memory is pinned, and the network may be asked.
    lender.lendings.reserve(borrower, far, entry.memory().bytes()).map_err(refused)?;
    let lent = lend_reserved(&entry, rights, lender, (borrower, far));
    let is_late = request.is_cancelled();
    if is_late || lent.is_err() {
        lender.lendings.give_back(borrower, far);
    }
    let (address, place) = lent?;
    let (place, bytes) = ((place.address, place.key), entry.memory().bytes());
    Ok(wire::reached(address.to_bytes(), place, bytes, (rights.read, rights.write)))
}

fn lend_reserved(
    entry: &Entry,
    rights: Rights,
    lender: &RegionCard,
    (borrower, far): (Borrower, PairAddress),
) -> Result<(PairAddress, Place), Error> {
    let memory = (entry.share(), RegionMemory::words);
    let lending = Lending::open(&lender.card, Kind::Reliable, memory, rights, &far);
    let lending = Arc::new(lending.map_err(|error| unavailable(&error))?);
    // A revocation, or the end of the session, takes the memory back from here on.
    lender.lendings.keep(borrower, far, &lending).map_err(refused)?;
    entry.lend(&lending).map_err(refused)?;
    let no_room = |error: VerbsError| {
        let text = format!("the server's card cannot have the memory: {error}");
        Error::not_sent(Status::ResourceExhausted, text)
    };
    let place = lending.lend().map_err(no_room)?.ok_or_else(|| refused(NO_REGION))?;
    Ok((lending.address(), place))
}

fn refused(refusal: Refusal) -> Error {
    Error::not_sent(refusal.status(), refusal.why())
}

/// Returns true for the address of a queue pair of one host, as §8.4 of the specification has it.
fn names_a_host(address: &PairAddress) -> bool {
    let (gid, lid, pair) = address.names();
    CardAddress { gid, lid, pair, key: 0 }.is_valid()
}

/// Returns the accesses that a region's key grants to a card.
fn rights_of(entry: &Entry) -> Result<Rights, Refusal> {
    let includes = |access| entry.access().includes(access);
    let rights = Rights { read: includes(Access::READ), write: includes(Access::WRITE) };
    if rights.read || rights.write {
        return Ok(rights);
    }
    Err(Refusal::new(Status::PermissionDenied, "the region's key grants neither reads nor writes"))
}

impl RemoteRegion {
    /// Has the RDMA card of this name access the region, by the card of the server's host: later reads and writes take no time of the
    /// server's processors. Parks the thread until both cards are connected. The server must
    /// [serve its regions by a card](Endpoint::serve_regions_by_card).
    ///
    /// # Errors
    /// UNAVAILABLE if a card is missing or cannot reach the other one, UNIMPLEMENTED if the server serves no regions by a card,
    /// FAILED_PRECONDITION if the client's connection is encrypted, since accesses by cards are not, PERMISSION_DENIED if the key is revoked or grants neither reads nor writes.
    pub fn by_card_wait(&self, card: &str) -> Result<CardRegion, Error> {
        let card = Card::open(card).map_err(|error| unavailable(&error))?;
        let near = Accessor::open(&card, Kind::Reliable).map_err(|error| unavailable(&error))?;
        let answer = self.reach(LEND, &near).wait()?;
        // From here on the value gives the memory back when it is dropped.
        let remote = self.clone();
        let nothing = Rights { read: false, write: false };
        let mut region = CardRegion { near, remote, bytes: 0, rights: nothing };
        let no_memory = || Error::new(Status::Internal, "the server's answer names no memory");
        let (far, (address, key), bytes, (read, write)) =
            wire::read_reached(&answer).ok_or_else(no_memory)?;
        let far = PairAddress::from_bytes(&far).ok_or_else(no_memory)?;
        let place = Place { address, key };
        region.near.connect(&far, place).map_err(|error| unavailable(&error))?;
        (region.bytes, region.rights) = (bytes, Rights { read, write });
        Ok(region)
    }

    fn reach(&self, what: u32, near: &Accessor) -> Call {
        let request = Header::new(self.key(), 0, what).followed_by(&near.address().to_bytes());
        self.client().call(REACH, request)
    }
}

/// A region of a server, accessed by RDMA cards. See [`RemoteRegion::by_card_wait`].
///
/// Operations take the thread until they end: some microseconds, and up to 5 s if the peer's card does not answer. After UNAVAILABLE, or
/// PERMISSION_DENIED by a revoked key, the connection is gone; [`RemoteRegion::by_card_wait`] makes another. The memory is given back when
/// the value is dropped.
///
/// Operations on words, and changes of versioned values, are calls of [`RemoteRegion`]: cards execute them beside the processors, and not
/// with them.
#[derive(Debug)]
pub struct CardRegion {
    near: Accessor,
    remote: RemoteRegion,
    bytes: u64,
    rights: Rights,
}

impl CardRegion {
    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads bytes at `offset`.
    ///
    /// # Errors
    /// OUT_OF_RANGE beyond the end, PERMISSION_DENIED if the key is revoked or does not grant reading, UNAVAILABLE if the server is gone.
    pub fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.check_read(offset, to.len())?;
        self.near.read(offset, to).map_err(failed)
    }

    /// Reads several pieces, offsets and lengths, one behind the other. The card has up to 64 of them in progress.
    ///
    /// # Errors
    /// As [`CardRegion::read`].
    pub fn read_many(&mut self, pieces: &[(u64, usize)]) -> Result<Vec<u8>, Error> {
        let mut bytes = 0;
        for (offset, len) in pieces {
            self.check_read(*offset, *len)?;
            bytes += len;
        }
        let mut to = vec![0; bytes];
        self.near.read_many(pieces, &mut to).map_err(failed)?;
        Ok(to)
    }

    /// Reads a versioned value of `len` bytes, whose version is the word at `offset`.
    ///
    /// # Errors
    /// As [`CardRegion::read`]; INVALID_ARGUMENT if the offset is no multiple of 8,
    /// or the value has more than 256 KiB less 16 bytes, ABORTED if writers change the value all the time.
    pub fn read_versioned(&mut self, offset: u64, len: usize) -> Result<Versioned, Error> {
        if !offset.is_multiple_of(8) {
            return Err(Error::not_sent(
                Status::InvalidArgument,
                "a version begins at a multiple of 8",
            ));
        }
        if len > Accessor::VERSIONED_BYTES_MAX {
            let text = "a card reads versioned values up to 256 KiB less 16 bytes";
            return Err(Error::not_sent(Status::InvalidArgument, text));
        }
        self.check_read(offset, 8 + len)?;
        let mut value = vec![0; len];
        for _ in 0..TRIES {
            if let Some(version) = self.near.read_versioned(offset, &mut value).map_err(failed)? {
                return Ok(Versioned { version, value });
            }
        }
        Err(Error::new(Status::Aborted, "the value was being written all the time"))
    }

    /// Writes bytes at `offset`. When the function returns, the card of the server's host has the bytes, and their way to memory may be longer
    /// than that of a call to the server: before a call that tells the server of the bytes, read the last one of them by the card.
    ///
    /// # Errors
    /// As [`CardRegion::read`]. Some of the bytes may then have been written, unless the error says that the write was not executed.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.check(self.rights.write, offset, from.len())?;
        self.near.write(offset, from).map_err(failed)
    }

    fn check_read(&self, offset: u64, len: usize) -> Result<(), Error> {
        self.check(self.rights.read, offset, len)
    }

    fn check(&self, is_granted: bool, offset: u64, len: usize) -> Result<(), Error> {
        if !is_granted {
            let text = "the region's key does not grant this operation";
            return Err(Error::not_sent(Status::PermissionDenied, text));
        }
        let is_within = offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes);
        if is_within {
            Ok(())
        } else {
            Err(Error::not_sent(OUT_OF_RANGE.status(), OUT_OF_RANGE.why()))
        }
    }
}

impl Drop for CardRegion {
    fn drop(&mut self) {
        self.remote.reach(GIVE_BACK, &self.near).detach();
    }
}

#[cold]
fn failed(error: AccessError) -> Error {
    let status = match error {
        AccessError::Refused => Status::PermissionDenied,
        AccessError::Lost(_) => Status::Unavailable,
    };
    Error::new(status, error.to_string())
}
