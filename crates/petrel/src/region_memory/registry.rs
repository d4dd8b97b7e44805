//! Registration and revocation of regions.

use std::fmt;
use std::ops::Deref;

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_transport::verbs::Lending;
use petrel_transport::words::{MappedRights, WordRange};

use super::access::Access;
use super::door::{Door, Mappable};
use super::key::RegionKey;
use super::memory::{OUT_OF_RANGE, RegionMemory};
use super::owner_lock::{OwnerGuard, OwnerLock};
use super::wire::{Header, Refusal};
use crate::error::Error;
use crate::sync::{Arc, Mutex, Weak, lock};

pub(crate) const NO_REGION: Refusal =
    Refusal::new(Status::PermissionDenied, "the server has no region with this key");
const NO_RIGHT: Refusal =
    Refusal::new(Status::PermissionDenied, "the region's key does not grant this operation");

const REGIONS_MAX: usize = 1 << 20;

/// The regions of a server, shared by its endpoints; clones are the same.
///
/// An endpoint that [serves](crate::Endpoint::serve_regions) regions executes the operations of its sessions.
#[derive(Clone, Default)]
pub struct Regions {
    shared: Arc<Shared>,
}

/// The state of a registry.
#[derive(Default)]
pub(crate) struct Shared {
    table: Mutex<Table>,
    door: Mutex<Option<Door>>,
}

/// Counters of the operations that a server's endpoints executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionStats {
    /// Registered regions.
    pub regions: u64,
    /// Reads; every piece of a request for several pieces counts.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Operations on a word.
    pub atomics: u64,
    /// Bytes of reads.
    pub bytes_read: u64,
    /// Bytes of writes.
    pub bytes_written: u64,
    /// Mappings handed to other processes.
    pub mapped: u64,
    /// Refused operations: wrong keys, missing rights, ranges beyond the end, malformed requests.
    pub refused: u64,
}

impl RegionStats {
    /// Counts reads of this many bytes together.
    #[inline]
    pub(crate) fn count_reads(&mut self, reads: u64, bytes: u64) {
        self.reads += reads;
        self.bytes_read += bytes;
    }

    /// Names and values of the counters of an endpoint.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("region_reads", self.reads),
            ("region_writes", self.writes),
            ("region_atomics", self.atomics),
            ("region_bytes_read", self.bytes_read),
            ("region_bytes_written", self.bytes_written),
            ("region_refused", self.refused),
        ]
        .into_iter()
    }

    fn add(&mut self, other: &RegionStats) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.atomics += other.atomics;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.mapped += other.mapped;
        self.refused += other.refused;
    }
}

/// Regions by number, and the views of the endpoints.
#[derive(Default)]
struct Table {
    entries: Entries,
    free: Vec<u32>,
    views: Vec<Arc<OwnerLock<ViewState>>>,
    /// The counters of the door and of ended endpoints.
    ended: RegionStats,
}

pub(crate) type Entries = Vec<Option<Arc<Entry>>>;

/// The regions as an endpoint sees them. Of all endpoints only the view's own locks the view, for every operation. So the
/// lock is free unless a region is registered or revoked, and a revocation waits for the operation in progress. The table's
/// lock is taken before a view's.
pub(crate) struct View {
    shared: Arc<Shared>,
    state: Arc<OwnerLock<ViewState>>,
}

#[derive(Default)]
pub(crate) struct ViewState {
    pub(crate) entries: Entries,
    pub(crate) stats: RegionStats,
}

impl View {
    #[inline]
    pub(crate) fn lock(&self) -> OwnerGuard<'_, ViewState> {
        self.state.lock()
    }

    /// Returns `None` while a region is registered or revoked.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<OwnerGuard<'_, ViewState>> {
        self.state.try_lock()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the counters of the endpoint.
    pub(crate) fn stats(&self) -> RegionStats {
        self.lock().stats
    }
}

impl Drop for View {
    /// Leaves the counters to the table: in one step, because a sum must not miss them.
    fn drop(&mut self) {
        let mut table = lock(&self.shared.table);
        let place = table.views.iter().position(|state| Arc::ptr_eq(state, &self.state));
        table.views.swap_remove(place.expect("the table has the state of each view"));
        table.ended.add(&self.state.lock().stats);
    }
}

/// A registered region.
pub(crate) struct Entry {
    secret: u64,
    access: Access,
    memory: Arc<RegionMemory>,
    /// The memory that cards access by this key; `None` once the key is revoked.
    lent: Mutex<Option<Vec<Weak<Lending>>>>,
}

impl Entry {
    #[inline]
    pub(crate) fn secret(&self) -> u64 {
        self.secret
    }

    #[inline]
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    #[inline]
    pub(crate) fn memory(&self) -> &RegionMemory {
        &self.memory
    }

    pub(crate) fn share(&self) -> Arc<RegionMemory> {
        Arc::clone(&self.memory)
    }

    /// Has a revocation of the key take the memory back from a card.
    pub(crate) fn lend(&self, lent: &Arc<Lending>) -> Result<(), Refusal> {
        let mut all = lock(&self.lent);
        let all = all.as_mut().ok_or(NO_REGION)?;
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(lent));
        Ok(())
    }

    fn take_back(&self) {
        let lent = lock(&self.lent).take().expect("a key is revoked once");
        lent.iter().filter_map(Weak::upgrade).for_each(|lent| lent.take_back());
    }
}

impl Table {
    /// Adds a region; returns its number, or `None` if there are too many.
    fn add(&mut self, entry: Entry) -> Option<u32> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.entries.len() < REGIONS_MAX => self.entries.len() as u32,
            None => return None,
        };
        assert!((id as usize) < REGIONS_MAX, "the numbers of regions are within their limit");
        self.set(id, Some(Arc::new(entry)));
        Some(id)
    }

    /// Removes a region; returns it.
    fn remove(&mut self, id: u32) -> Arc<Entry> {
        let entry = self.entries[id as usize].clone().expect("a region is revoked once");
        self.set(id, None);
        self.free.push(id);
        assert!(self.free.len() <= self.entries.len(), "the number of a region is freed once");
        entry
    }

    /// Sets a number's region here and in all views.
    fn set(&mut self, id: u32, entry: Option<Arc<Entry>>) {
        let is_added = entry.is_some();
        let former = place(&mut self.entries, id).is_some();
        assert!(former != is_added, "a free number gets a region, and a region is revoked once");
        let views_max = match is_added || !planted("region_second_view_not_told") {
            true => usize::MAX,
            false => 1,
        };
        for view in self.views.iter().take(views_max) {
            let mut view = view.lock();
            let viewed = place(&mut view.entries, id);
            assert!(viewed.is_some() != is_added, "each view has the regions of the table");
            *viewed = entry.clone();
        }
        *place(&mut self.entries, id) = entry;
    }
}

/// Returns a number's place, and makes it if necessary.
fn place(entries: &mut Entries, id: u32) -> &mut Option<Arc<Entry>> {
    let id = id as usize;
    if entries.len() <= id {
        entries.resize(id + 1, None);
    }
    &mut entries[id]
}

impl Shared {
    fn find(&self, id: u32, secret: u64) -> Option<Arc<Entry>> {
        let table = lock(&self.table);
        let entry = table.entries.get(id as usize)?.as_ref()?;
        (entry.secret == secret).then(|| Arc::clone(entry))
    }

    /// Returns a region's file and size for a process that maps it, and counts the request.
    fn mappable(&self, id: u32, secret: u64) -> Option<Mappable> {
        let entry = self.find(id, secret).filter(|entry| entry.access.includes(Access::MAP));
        let found = entry.as_ref().and_then(|entry| {
            let (file, rights) = entry.memory.file()?;
            let (file, bytes) = (file.try_clone_to_owned().ok()?, entry.memory.bytes());
            Some(Mappable::new(file, rights, bytes))
        });
        let stats = &mut lock(&self.table).ended;
        let counter = if found.is_some() { &mut stats.mapped } else { &mut stats.refused };
        *counter += 1;
        found
    }

    /// Returns the name of the socket for mappings, and starts the thread behind it if necessary.
    pub(crate) fn door_name(self: &Arc<Self>) -> std::io::Result<Vec<u8>> {
        let mut door = lock(&self.door);
        let door = match &mut *door {
            Some(door) => door,
            closed => {
                let regions = Arc::downgrade(self);
                let look_up = move |id, secret| regions.upgrade()?.mappable(id, secret);
                closed.insert(Door::open(look_up)?)
            }
        };
        Ok(door.name().to_vec())
    }
}

impl Regions {
    /// No regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers memory. The key of the result lets clients access the memory with these rights, until the result is
    /// dropped.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for rights that the memory cannot have. [`Access::MAP`] needs [shared](RegionMemory::shared)
    /// memory: for reading if the rights include no change, and for writing if they do, because a mapping cannot be
    /// restricted to words. RESOURCE_EXHAUSTED for more than a million regions, or without randomness.
    pub fn register(&self, memory: RegionMemory, access: Access) -> Result<Region, Error> {
        self.register_again(Arc::new(memory), access)
    }

    fn register_again(&self, memory: Arc<RegionMemory>, access: Access) -> Result<Region, Error> {
        let secret = random().map_err(|error| {
            let text = format!("no randomness for a region's key: {error}");
            Error::not_sent(Status::ResourceExhausted, text)
        })?;
        self.register_under(secret, memory, access)
    }

    /// Registers memory under a secret.
    pub(crate) fn register_under(
        &self,
        secret: u64,
        memory: Arc<RegionMemory>,
        access: Access,
    ) -> Result<Region, Error> {
        check_rights(&memory, access)?;
        let lent = Mutex::new(Some(Vec::new()));
        let entry = Entry { secret, access, memory: Arc::clone(&memory), lent };
        let id = lock(&self.shared.table).add(entry).ok_or_else(|| {
            Error::not_sent(Status::ResourceExhausted, "a server has at most a million regions")
        })?;
        let key = RegionKey::new(id, secret, memory.bytes());
        Ok(Region { shared: Arc::clone(&self.shared), memory, key, access })
    }

    /// Returns the counters of all endpoints, which never go back; the number of regions may.
    pub fn stats(&self) -> RegionStats {
        let table = lock(&self.shared.table);
        assert!(table.free.len() <= table.entries.len(), "a number that is free is listed once");
        let regions = (table.entries.len() - table.free.len()) as u64;
        let mut stats = RegionStats { regions, ..table.ended };
        table.views.iter().for_each(|view| stats.add(&view.lock().stats));
        stats
    }

    /// Returns the region of a request.
    pub(crate) fn find(&self, header: &Header) -> Result<Arc<Entry>, Refusal> {
        self.shared.find(header.region(), header.secret()).ok_or_else(|| {
            lock(&self.shared.table).ended.refused += 1;
            NO_REGION
        })
    }

    pub(crate) fn view(&self) -> View {
        let mut table = lock(&self.shared.table);
        let state = ViewState { entries: table.entries.clone(), stats: RegionStats::default() };
        let state = Arc::new(OwnerLock::new(state));
        table.views.push(Arc::clone(&state));
        View { shared: Arc::clone(&self.shared), state }
    }
}

fn check_rights(memory: &RegionMemory, access: Access) -> Result<(), Error> {
    let refuse = |text| Err(Error::not_sent(Status::InvalidArgument, text));
    if access.may_change() && !memory.is_writable() {
        return refuse("memory that is mapped for reading cannot be changed by clients");
    }
    if !access.includes(Access::MAP) {
        return Ok(());
    }
    if !access.includes(Access::READ) {
        return refuse("clients that map memory can read it");
    }
    match (memory.mapped_rights(), access.may_change()) {
        (None, _) => refuse("only shared memory can be mapped by clients"),
        (Some(MappedRights::Read), true) => {
            refuse("memory that is shared for reading cannot be mapped for writing")
        }
        (Some(MappedRights::ReadWrite), _) if !access.includes(Access::WRITE | Access::ATOMIC) => {
            refuse("clients that map memory shared for writing can write and swap")
        }
        _ => Ok(()),
    }
}

fn random() -> Result<u64, getrandom::Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A registered region. Dropping it revokes the key: an operation in progress ends before, and operations that begin
/// afterwards are refused. Processes that have mapped the memory keep their mapping.
pub struct Region {
    shared: Arc<Shared>,
    memory: Arc<RegionMemory>,
    key: RegionKey,
    access: Access,
}

impl Region {
    /// The key, for clients.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// The rights that the key grants.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Registers the same memory once more, with a key and rights of its own.
    ///
    /// # Errors
    /// As [`Regions::register`].
    pub fn register_with(&self, access: Access) -> Result<Region, Error> {
        Regions { shared: Arc::clone(&self.shared) }
            .register_again(Arc::clone(&self.memory), access)
    }
}

impl Deref for Region {
    type Target = RegionMemory;

    fn deref(&self) -> &RegionMemory {
        &self.memory
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let entry = lock(&self.shared.table).remove(self.key.id());
        // The system's calls for a card need no lock of the table.
        entry.take_back();
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:?}, {:?})", self.key, self.access)
    }
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

/// Returns the range of a read, in a region whose key grants it.
#[inline]
pub(crate) fn find_to_read<'s>(
    entries: &'s [Option<Arc<Entry>>],
    header: &Header,
) -> Result<WordRange<'s>, Refusal> {
    let words = find(entries, header, Access::READ)?.memory().words();
    words.range(header.offset(), header.len().into()).ok_or(OUT_OF_RANGE)
}

/// Returns the region of a request whose key grants the rights.
#[inline]
pub(crate) fn find<'s>(
    entries: &'s [Option<Arc<Entry>>],
    header: &Header,
    rights: Access,
) -> Result<&'s Entry, Refusal> {
    let entry = entries.get(header.region() as usize).and_then(Option::as_deref);
    let entry = entry.filter(|entry| entry.secret() == header.secret()).ok_or(NO_REGION)?;
    if entry.access().includes(rights) { Ok(entry) } else { Err(NO_RIGHT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register__refuses_rights_that_the_memory_cannot_have() {
        let regions = Regions::new();
        let private = || RegionMemory::private(64).unwrap();
        let shared = |rights| RegionMemory::shared(64, rights).unwrap();
        let all = Access::READ | Access::WRITE | Access::ATOMIC | Access::MAP;
        for (memory, access) in [
            (private(), Access::READ | Access::MAP),
            (shared(MappedRights::Read), all),
            (shared(MappedRights::ReadWrite), Access::READ | Access::MAP),
            (shared(MappedRights::ReadWrite), Access::READ | Access::WRITE | Access::MAP),
            (shared(MappedRights::Read), Access::MAP),
            (shared(MappedRights::ReadWrite), Access::WRITE | Access::ATOMIC | Access::MAP),
        ] {
            let error = regions.register(memory, access).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument, "{error}");
        }
        for (memory, access) in [
            (private(), Access::READ | Access::ATOMIC),
            (shared(MappedRights::Read), Access::READ | Access::MAP),
            (shared(MappedRights::Read), Access::READ | Access::WRITE),
            (shared(MappedRights::ReadWrite), all),
        ] {
            regions.register(memory, access).unwrap();
        }
    }

    #[test]
    fn view__sees_regions_before_and_after_it() {
        let regions = Regions::new();
        let register = || regions.register(RegionMemory::private(64).unwrap(), Access::READ);
        let before = register().unwrap();
        let view = regions.view();
        let after = register().unwrap();
        view.lock().stats.reads = 3;
        let secrets = |view: &View| {
            let state = view.lock();
            state.entries.iter().flatten().map(|entry| entry.secret()).collect::<Vec<_>>()
        };
        assert_eq!(secrets(&view), [before.key().secret(), after.key().secret()]);
        assert_eq!((regions.stats().reads, regions.stats().regions), (3, 2));
        drop(view);
        assert_eq!(regions.stats().reads, 3, "counters outlive an endpoint");
    }

    /// A sum that is made while an endpoint ends has the endpoint's counters once.
    #[test]
    fn stats__never_go_back_while_views_end() {
        const VIEWS: u64 = 20_000;
        let regions = Regions::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..VIEWS {
                    let view = regions.view();
                    view.lock().stats.reads += 1;
                }
            });
            let mut last = 0;
            while last < VIEWS {
                let reads = regions.stats().reads;
                assert!((last..=VIEWS).contains(&reads), "{reads} after {last}");
                last = reads;
            }
        });
        assert!(lock(&regions.shared.table).views.is_empty(), "ended views leave nothing");
    }

    #[test]
    fn drop__revokes_and_frees_the_number() {
        let regions = Regions::new();
        let first = regions.register(RegionMemory::private(64).unwrap(), Access::READ).unwrap();
        let again = first.register_with(Access::READ | Access::WRITE).unwrap();
        let (key, other) = (first.key(), again.key());
        assert!(regions.shared.find(key.id(), key.secret()).is_some());
        assert!(regions.shared.find(key.id(), other.secret()).is_none());
        let views = [(); 2].map(|()| regions.view());
        let seen = || views.each_ref().map(|view| view.lock().entries[key.id() as usize].is_some());
        assert_eq!(seen(), [true; 2]);
        drop(first);
        assert_eq!(seen(), [false; 2]);
        assert!(regions.shared.find(key.id(), key.secret()).is_none());
        assert_eq!(regions.stats().regions, 1);
        let next = regions.register(RegionMemory::private(8).unwrap(), Access::READ).unwrap();
        assert_eq!((next.key().id(), next.key().secret() == key.secret()), (key.id(), false));
        again.write(0, b"the memory is still there").unwrap();
    }
}
