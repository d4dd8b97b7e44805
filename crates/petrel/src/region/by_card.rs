//! Regions that RDMA cards access (`docs/wire-protocol.md` §15.4): the server lends memory, and clients' cards read and write it.

use std::fmt;
use std::sync::Arc;

use petrel_proto::Status;
use petrel_transport::Transport;
use petrel_transport::verbs::{
    AccessError, Card, Far, Kind, Lent, Near, Place, Rights, VerbsError,
};

use super::RemoteRegion;
use super::lendings::Lendings;
use super::remote::Versioned;
use crate::control::ControlPlane;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::region_memory::memory::OUT_OF_RANGE;
use crate::region_memory::registry::Entry;
use crate::region_memory::wire::{self, Header, REACH, Refusal};
use crate::region_memory::{Access, RegionMemory, Regions};
use crate::workers::{WorkerRequest, Workers};

/// Reads of a versioned value, before a client is told that others write all the time.
const TRIES: u32 = 64;

const MALFORMED: Refusal =
    Refusal::new(Status::InvalidArgument, "a request for a card has an address behind its header");

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
    /// The name of a peer's Ethernet address can take a second: no endpoint waits for it.
    workers: Workers,
}

impl RegionCard {
    /// Opens the card of a name, as `rdma link` shows it, or the first card if the name is empty.
    ///
    /// # Errors
    /// UNAVAILABLE without `libibverbs`, such a card, or an active port with an address; RESOURCE_EXHAUSTED without a thread.
    pub fn open(name: &str) -> Result<Self, Error> {
        let card = Card::open(name).map_err(|error| unavailable(&error))?;
        let workers =
            Workers::builder().threads(1).name("petrel-card").start().map_err(|error| {
                Error::not_sent(Status::ResourceExhausted, format!("no thread for a card: {error}"))
            })?;
        Ok(Self { card, workers })
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
    /// then. Memory that a client accesses is pinned, and counts for the process's limit of locked memory, until the client's session
    /// ends. A key that is revoked opens nothing to cards either.
    ///
    /// The method 65 519 is then taken.
    ///
    /// # Panics
    /// When the endpoint does so already.
    pub fn serve_regions_by_card(&mut self, regions: &Regions, card: &RegionCard) {
        let lendings = Arc::new(Lendings::default());
        let ended = Arc::clone(&lendings);
        self.on_session_end(move |session| ended.end(session));
        let (regions, card) = (regions.clone(), card.clone());
        let queue = card.workers.clone();
        let prepare = {
            let lendings = Arc::clone(&lendings);
            move |_: &mut S, request: &crate::Request<'_>| lendings.expect(request.session())
        };
        self.on_worker_with(REACH, &queue, prepare, move |(), request: WorkerRequest| {
            match lend(&regions, &card.card, &lendings, &request) {
                Ok(answer) => request.reply(&answer),
                Err(error) => request.fail(error.status, &error.message),
            }
        });
    }
}

/// Lends the region that a request names. Returns the response.
fn lend(
    regions: &Regions,
    card: &Arc<Card>,
    lendings: &Lendings,
    request: &WorkerRequest,
) -> Result<Vec<u8>, Error> {
    let refused = |refusal: Refusal| Error::not_sent(refusal.status(), refusal.why());
    let (header, rest) = Header::split(request.data()).map_err(refused)?;
    let far = rest.try_into().ok().and_then(Far::from_bytes);
    let far = far.filter(|_| header.len() == 0 && header.offset() == 0);
    let far = far.ok_or_else(|| refused(MALFORMED))?;
    let entry = regions.find(&header).map_err(refused)?;
    let rights = rights_of(&entry).map_err(refused)?;
    let memory = (entry.share(), RegionMemory::words);
    let lent = Lent::open(card, Kind::Reliable, memory, rights, &far)
        .map_err(|error| unavailable(&error))?;
    let lent = Arc::new(lent);
    entry.lend(&lent).map_err(refused)?;
    let answer = wire::reached(
        lent.address().to_bytes(),
        (lent.place().address, lent.place().key),
        entry.memory().bytes(),
        (rights.read, rights.write),
    );
    lendings.keep(request.session(), lent).map_err(refused)?;
    Ok(answer)
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
    /// PERMISSION_DENIED if the key is revoked or grants neither reads nor writes.
    pub fn by_card_wait(&self, card: &str) -> Result<CardRegion, Error> {
        let card = Card::open(card).map_err(|error| unavailable(&error))?;
        let mut near = Near::open(&card, Kind::Reliable).map_err(|error| unavailable(&error))?;
        let header = Header::new(self.key(), 0, 0);
        let request = header.followed_by(&near.address().to_bytes());
        let answer = self.client().call(REACH, request).wait()?;
        let (far, (address, key), bytes, (read, write)) = wire::read_reached(&answer)
            .and_then(|(far, place, bytes, rights)| {
                Some((Far::from_bytes(&far)?, place, bytes, rights))
            })
            .ok_or_else(|| Error::new(Status::Internal, "the server's answer names no memory"))?;
        near.connect(&far, Place { address, key }).map_err(|error| unavailable(&error))?;
        Ok(CardRegion { near, bytes, rights: Rights { read, write } })
    }
}

/// A region of a server, accessed by RDMA cards. See [`RemoteRegion::by_card_wait`].
///
/// Operations take the thread until they end, some microseconds. After an error other than OUT_OF_RANGE, PERMISSION_DENIED for a right that
/// the key never had, and ABORTED, the connection is gone, and a new one is made by [`RemoteRegion::by_card_wait`].
///
/// Operations on words, and changes of versioned values, are calls of [`RemoteRegion`]: cards execute them beside the processors, and not
/// with them.
#[derive(Debug)]
pub struct CardRegion {
    near: Near,
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
    /// As [`CardRegion::read`]; INVALID_ARGUMENT if the offset is no multiple of 8, ABORTED if writers change the value all the time,
    /// RESOURCE_EXHAUSTED beyond 256 KiB.
    pub fn read_versioned(&mut self, offset: u64, len: usize) -> Result<Versioned, Error> {
        if !offset.is_multiple_of(8) {
            return Err(Error::not_sent(
                Status::InvalidArgument,
                "a version begins at a multiple of 8",
            ));
        }
        if len > Near::VERSIONED_BYTES_MAX {
            let text = "a card reads versioned values up to 256 KiB";
            return Err(Error::not_sent(Status::ResourceExhausted, text));
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

    /// Writes bytes at `offset`. When the call returns, the card of the server's host has the bytes.
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

#[cold]
fn failed(error: AccessError) -> Error {
    let status = match error {
        AccessError::Refused => Status::PermissionDenied,
        AccessError::Lost(_) => Status::Unavailable,
    };
    Error::new(status, error.to_string())
}
