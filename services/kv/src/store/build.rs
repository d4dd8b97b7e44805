//! From an image's chunks back to a store.

use std::sync::Arc;

use super::Store;
use super::image::{
    END, HEAD, LEASE, LEASED_KEY, PAIR, SESSION, VERSION, VERSION_LEASED, VERSION_RESTORED,
};
use super::restore::{Restores, Restoring};
use super::sessions::{Session, Slot};
use crate::api::{Applied, Pair};
use crate::command::check_ttl;
use crate::hash::{hash, mix};
use crate::limits::{
    LEASE_CLOCK_MS_MAX, LEASES_MAX, PENDING_WRITES_MAX, RESTORED_REVISION_MAX, SESSIONS_MAX,
};
use crate::pair_check::PairCheck;
use crate::wire::{DecodeError, Reader};

/// Builds a store from the chunks of an [`Image`](super::Image), in their order.
///
/// ```
/// use petrel_kv::store::{Builder, Store};
///
/// let image = Store::new().image();
/// let store = Builder::build(image.chunks(64 << 10))?;
/// assert_eq!(store.digest(), image.digest());
/// # Ok::<(), petrel_kv::store::BuildError>(())
/// ```
#[derive(Debug, Default)]
pub struct Builder {
    store: Store,
    part: Part,
    check: u64,
    /// The number of keys in the head.
    keys: u64,
    sessions: usize,
    leases: usize,
    /// The number of the last lease.
    last_lease: u64,
    /// The unfinished restore: number, revision and check.
    restoring: Option<(u64, u64, u64)>,
    last_key: Vec<u8>,
    last_used: u64,
}

/// The reason why no store could be built. The builder is no longer usable; fetch the image again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A chunk does not consist of whole records.
    #[error("the image is malformed: {0}")]
    Malformed(#[from] DecodeError),
    /// The image has the format of another version.
    #[error("the image has format {0}; this version reads formats {VERSION} to {VERSION_LEASED}")]
    Version(u16),
    /// A record is out of order: chunks are missing, repeated or exchanged.
    #[error("the image has {0} out of place")]
    OutOfPlace(&'static str),
    /// A record contradicts earlier records.
    #[error("the image is wrong: {0}")]
    Wrong(&'static str),
    /// The check at the end does not match the records.
    #[error("the image is damaged: its check does not match")]
    Damaged,
    /// The end is missing.
    #[error("the image is incomplete")]
    Incomplete,
}

/// The kind of the last record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    #[default]
    Nothing,
    Pairs,
    Sessions,
    Leases,
    End,
}

impl Builder {
    /// A builder without chunks.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Builds a store from all chunks.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if the chunks are not those of an image, in order.
    pub fn build(chunks: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Store, BuildError> {
        let mut builder = Builder::new();
        chunks.into_iter().try_for_each(|chunk| builder.add(chunk.as_ref()))?;
        builder.finish()
    }

    /// Adds the next chunk.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if the chunk does not continue the stream. The builder is then no longer usable.
    pub fn add(&mut self, chunk: &[u8]) -> Result<(), BuildError> {
        let mut reader = Reader::new(chunk);
        while !reader.rest().is_empty() {
            let record = reader.rest();
            self.record(&mut reader)?;
            let record = &record[..record.len() - reader.rest().len()];
            self.check = mix(self.check, hash(record));
        }
        Ok(())
    }

    /// Returns the finished store.
    ///
    /// # Errors
    ///
    /// [`BuildError::Incomplete`] if chunks are missing.
    pub fn finish(self) -> Result<Store, BuildError> {
        if self.part == Part::End { Ok(self.store) } else { Err(BuildError::Incomplete) }
    }

    fn record(&mut self, reader: &mut Reader<'_>) -> Result<(), BuildError> {
        match reader.u8("record")? {
            HEAD => self.head(reader),
            PAIR => self.pair(Pair::read(reader)?),
            SESSION => self.session(reader),
            LEASE => self.lease(reader),
            LEASED_KEY => self.leased_key(reader.key()?),
            END => self.end(reader.u64("check")?),
            kind => Err(DecodeError::UnknownKind { field: "record", kind }.into()),
        }
    }

    fn head(&mut self, reader: &mut Reader<'_>) -> Result<(), BuildError> {
        demand(self.part == Part::Nothing, BuildError::OutOfPlace("a head"))?;
        let version = reader.u16("version")?;
        let is_known = (VERSION..=VERSION_LEASED).contains(&version);
        demand(is_known, BuildError::Version(version))?;
        self.part = Part::Pairs;
        self.store.applied = reader.u64("applied")?;
        self.keys = reader.u64("keys")?;
        self.sessions = reader.u32("sessions")? as usize;
        demand(self.sessions <= SESSIONS_MAX, BuildError::Wrong("too many sessions"))?;
        if version >= VERSION_RESTORED {
            self.restores(reader)?;
        }
        if version >= VERSION_LEASED {
            let clock_ms = reader.u64("lease clock")?;
            self.leases = reader.u32("leases")? as usize;
            let possible = clock_ms <= LEASE_CLOCK_MS_MAX && self.leases <= LEASES_MAX;
            demand(possible, BuildError::Wrong("a lease clock or too many leases"))?;
            self.store.leases.resume_clock(clock_ms);
        }
        Ok(())
    }

    fn restores(&mut self, reader: &mut Reader<'_>) -> Result<(), BuildError> {
        let base = reader.u64("base")?;
        if reader.bool("restore")? {
            let mut number = || reader.u64("restore");
            self.restoring = Some((number()?, number()?, number()?));
        }
        let limit = RESTORED_REVISION_MAX;
        let is_last = self.restoring.is_none_or(|(_, revision, _)| revision <= limit);
        let possible = base <= limit && self.store.applied <= u64::MAX - limit && is_last;
        demand(possible, BuildError::Wrong("a revision out of range"))?;
        self.store.restores = Restores::resume(base, None);
        let revision = self.store.revision();
        let has_begun = self.restoring.is_none_or(|(id, ..)| (1..=revision).contains(&id));
        demand(has_begun, BuildError::Wrong("a restore from the future"))
    }

    fn pair(&mut self, pair: Pair<'_>) -> Result<(), BuildError> {
        demand(self.part == Part::Pairs, BuildError::OutOfPlace("a pair"))?;
        demand(pair.key > &self.last_key[..], BuildError::OutOfPlace("a key"))?;
        let last = self.restoring.map_or(self.store.revision(), |(_, revision, _)| revision);
        let written = (1..=last).contains(&pair.revision);
        demand(written, BuildError::Wrong("a revision that was not applied"))?;
        self.last_key.clear();
        self.last_key.extend_from_slice(pair.key);
        self.store.map.unrecorded().put(pair.key, pair.value, pair.revision);
        Ok(())
    }

    fn session(&mut self, reader: &mut Reader<'_>) -> Result<(), BuildError> {
        let expected = matches!(self.part, Part::Pairs | Part::Sessions);
        demand(expected, BuildError::OutOfPlace("a session"))?;
        self.part = Part::Sessions;
        let id = reader.u64("session")?;
        let last_used = reader.u64("last used")?;
        demand(last_used > self.last_used, BuildError::OutOfPlace("a session"))?;
        self.last_used = last_used;
        let possible = id >= 1 && id <= last_used && last_used <= self.store.revision();
        demand(possible, BuildError::Wrong("a session from the future"))?;
        demand(!self.store.sessions.contains(id), BuildError::Wrong("a session twice"))?;
        demand(self.store.sessions.len() < self.sessions, BuildError::Wrong("too many sessions"))?;
        let session = Arc::new(read_session(reader, id, last_used)?);
        self.store.sessions.add(Slot { id, last_used, session });
        Ok(())
    }

    fn lease(&mut self, reader: &mut Reader<'_>) -> Result<(), BuildError> {
        let expected = matches!(self.part, Part::Pairs | Part::Sessions | Part::Leases);
        demand(expected, BuildError::OutOfPlace("a lease"))?;
        self.part = Part::Leases;
        let (id, ttl_ms) = (reader.u64("lease")?, reader.u64("time of the lease")?);
        check_ttl(ttl_ms)?;
        let end_ms = reader.bool("end")?.then(|| reader.u64("end")).transpose()?;
        demand(id > self.last_lease, BuildError::OutOfPlace("a lease"))?;
        self.last_lease = id;
        let clock_ms = self.store.leases.clock_ms();
        let possible =
            id <= self.store.revision() && end_ms.is_none_or(|end_ms| end_ms <= clock_ms + ttl_ms);
        demand(possible, BuildError::Wrong("a lease from the future"))?;
        demand(self.store.leases.len() < self.leases, BuildError::Wrong("too many leases"))?;
        self.store.leases.add(id, ttl_ms, end_ms);
        Ok(())
    }

    fn leased_key(&mut self, key: &[u8]) -> Result<(), BuildError> {
        demand(self.part == Part::Leases, BuildError::OutOfPlace("a key of a lease"))?;
        let lease = self.store.leases.get(self.last_lease);
        let last = lease.and_then(|lease| lease.keys.last());
        demand(last.is_none_or(|last| key > &**last), BuildError::OutOfPlace("a key of a lease"))?;
        let is_free = self.store.map.get(key).is_some() && !self.store.leases.is_leased(key);
        let fits = self.store.leases.refusal(key, self.last_lease, 0).is_none();
        demand(is_free && fits, BuildError::Wrong("a key cannot have this lease"))?;
        self.store.leases.attach(key, self.last_lease);
        Ok(())
    }

    fn end(&mut self, check: u64) -> Result<(), BuildError> {
        let expected = matches!(self.part, Part::Pairs | Part::Sessions | Part::Leases);
        demand(expected, BuildError::OutOfPlace("an end"))?;
        let all = self.store.map.keys() == self.keys
            && self.store.sessions.len() == self.sessions
            && self.store.leases.len() == self.leases;
        demand(all, BuildError::Wrong("not as many keys, sessions or leases as its head says"))?;
        demand(check == self.check, BuildError::Damaged)?;
        self.part = Part::End;
        if let Some((id, revision, check)) = self.restoring {
            let check = PairCheck::resume(self.keys, check, &self.last_key);
            let base = self.store.restores.base();
            self.store.restores = Restores::resume(base, Some(Restoring { id, revision, check }));
        }
        let next = self.store.revision().checked_add(1);
        let next = next.ok_or(BuildError::Wrong("a revision beyond the last one"))?;
        self.store.map.history.restart(next);
        Ok(())
    }
}

fn read_session(reader: &mut Reader<'_>, id: u64, last_used: u64) -> Result<Session, BuildError> {
    let first_pending = reader.u64("first pending")?;
    let mut session = Session::new(first_pending);
    let mut next = 0;
    for _ in 0..reader.u16("results")? {
        let distance = u64::from(reader.u16("result")?);
        demand((next..PENDING_WRITES_MAX).contains(&distance), BuildError::OutOfPlace("a result"))?;
        next = distance + 1;
        let sequence = first_pending.checked_add(distance);
        let sequence = sequence.ok_or(BuildError::Wrong("a sequence out of range"))?;
        let applied = Applied::read(reader)?;
        let possible = applied.index > id && applied.index <= last_used;
        demand(possible, BuildError::Wrong("a result from the future"))?;
        session.record(sequence, applied);
    }
    Ok(session)
}

fn demand(holds: bool, error: BuildError) -> Result<(), BuildError> {
    if holds { Ok(()) } else { Err(error) }
}
