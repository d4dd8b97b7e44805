//! Images: the state at a moment, and the stream of chunks (`docs/kv-protocol.md` §8).
//!
//! The stream is a list of records: a head, the pairs in order, the sessions from the least recently used one on, the
//! leases with their keys, and an end with a check of all preceding records. A chunk consists of whole consecutive records, and a receiver can use
//! every chunk at once. The check covers records, and therefore does not depend on where the stream was cut.

use std::ops::Bound;
use std::sync::Arc;

use super::leases::Lease;
use super::map::{Map, Position};
use super::restore::{Restores, Restoring};
use super::sessions::Slot;
use crate::api::PairsBuffer;
use crate::hash::{hash, mix};
use crate::pair_check::PairCheck;
use crate::wire::Write;

/// The state of a store after a command. The image shares all unchanged memory with the store.
#[derive(Debug, Clone)]
pub struct Image {
    applied: u64,
    map: Map,
    sessions: Vec<Slot>,
    restores: Restores,
    lease_clock_ms: u64,
    leases: Vec<(u64, Arc<Lease>)>,
}

/// The position of a chunk in an image's stream. The default is the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cursor {
    at: At,
    /// The check of all preceding records.
    check: u64,
}

/// A part of an image's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Input for [`Builder::add`](super::Builder::add).
    pub bytes: Vec<u8>,
    /// The position of the next chunk; none after the last.
    pub next: Option<Cursor>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum At {
    #[default]
    Head,
    Pair(Position),
    Session(usize),
    Lease(usize),
    /// The key after this one of a lease; the first without a key.
    LeasedKey(usize, Option<Arc<[u8]>>),
    End,
    Done,
}

/// The position of a pair in an image.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PairCursor(Position);

/// Version of the stream's format.
pub(super) const VERSION: u16 = 1;

/// The version of an image of a store with a restore.
pub(super) const VERSION_RESTORED: u16 = 2;

/// The version of an image of a store with leases, or with leases before.
pub(super) const VERSION_LEASED: u16 = 3;

// Kinds of records.
pub(super) const HEAD: u8 = 1;
pub(super) const PAIR: u8 = 2;
pub(super) const SESSION: u8 = 3;
pub(super) const END: u8 = 4;
pub(super) const LEASE: u8 = 5;
pub(super) const LEASED_KEY: u8 = 6;

impl Image {
    pub(super) fn new(
        applied: u64,
        map: Map,
        sessions: Vec<Slot>,
        restores: Restores,
        (lease_clock_ms, leases): (u64, Vec<(u64, Arc<Lease>)>),
    ) -> Image {
        Image { applied, map, sessions, restores, lease_clock_ms, leases }
    }

    /// The image without leases and their keys.
    pub(crate) fn without_leases(mut self) -> Image {
        for (_, lease) in self.leases.drain(..) {
            for key in &lease.keys {
                self.map.remove(key);
            }
        }
        self
    }

    /// Index of the last command in the image.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// See [`Store::revision`](super::Store::revision).
    pub fn revision(&self) -> u64 {
        self.restores.revision(self.applied)
    }

    /// The number of keys.
    pub fn keys(&self) -> u64 {
        self.map.keys()
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// The pairs from a position on, of at most `bytes_max` bytes; a larger pair comes alone. Adds the pairs to `check`,
    /// and moves the position; returns none for it after the last pair.
    pub(crate) fn pairs(
        &self,
        cursor: PairCursor,
        bytes_max: usize,
        check: &mut PairCheck,
    ) -> (PairsBuffer, Option<PairCursor>) {
        let (mut buffer, PairCursor(mut at)) = (PairsBuffer::default(), cursor);
        while let Some(pair) = self.map.pair(&mut at) {
            let is_full = buffer.bytes() + pair.encoded_bytes() > bytes_max;
            if is_full && buffer.bytes() > 0 {
                return (buffer, Some(PairCursor(at)));
            }
            check.add(&pair).expect("a map is in order");
            buffer.push(&pair);
            at = at.next();
        }
        (buffer, None)
    }

    /// The part of the stream from `cursor` on, of at most `bytes_max` bytes. A single longer record comes alone: up to
    /// 1 MiB and 5 KiB.
    pub fn chunk(&self, cursor: &Cursor, bytes_max: usize) -> Chunk {
        let mut bytes = Vec::new();
        let mut cursor = cursor.clone();
        loop {
            let start = bytes.len();
            let Some(next) = self.record(&cursor, &mut bytes) else {
                return Chunk { bytes, next: None };
            };
            if bytes.len() > bytes_max && start > 0 {
                bytes.truncate(start);
                return Chunk { bytes, next: Some(cursor) };
            }
            cursor = next;
        }
    }

    /// All chunks of the stream, in order.
    pub fn chunks(&self, bytes_max: usize) -> impl Iterator<Item = Vec<u8>> {
        let mut cursor = Some(Cursor::default());
        std::iter::from_fn(move || {
            let chunk = self.chunk(&cursor.take()?, bytes_max);
            cursor = chunk.next;
            Some(chunk.bytes)
        })
    }

    /// See [`Store::digest`](super::Store::digest).
    pub fn digest(&self) -> u64 {
        let mut cursor = Cursor::default();
        let mut record = Vec::new();
        while let Some(next) = self.record(&cursor, &mut record) {
            cursor = next;
            record.clear();
        }
        cursor.check
    }

    /// Appends the record at the cursor, and returns the position of the next record; none if there is no record.
    fn record(&self, cursor: &Cursor, out: &mut Vec<u8>) -> Option<Cursor> {
        let start = out.len();
        let at = match &cursor.at {
            At::Head => self.write_head(out),
            At::Pair(at) => self.write_pair(*at, out),
            At::Session(at) => self.write_session(*at, out),
            At::Lease(at) => self.write_lease(*at, out),
            At::LeasedKey(at, last) => self.write_leased_key(*at, last.as_ref(), out),
            At::End => Some(write_end(cursor.check, out)),
            At::Done => return None,
        };
        match at {
            Some(at) => Some(Cursor { at, check: mix(cursor.check, hash(&out[start..])) }),
            None => self.record(&Cursor { at: cursor.at.next_kind(), check: cursor.check }, out),
        }
    }

    fn write_head(&self, out: &mut Vec<u8>) -> Option<At> {
        let (base, current) = (self.restores.base(), self.restores.current());
        let has_leases = self.lease_clock_ms > 0 || !self.leases.is_empty();
        let has_restores = base > 0 || current.is_some() || has_leases;
        out.put_u8(HEAD);
        out.put_u16(match (has_leases, has_restores) {
            (true, _) => VERSION_LEASED,
            (false, true) => VERSION_RESTORED,
            (false, false) => VERSION,
        });
        out.put_u64(self.applied);
        out.put_u64(self.map.keys());
        out.put_u32(self.sessions.len() as u32);
        if has_restores {
            out.put_u64(base);
            out.put_bool(current.is_some());
        }
        if let Some(Restoring { id, revision, check }) = current {
            [*id, *revision, check.value()].into_iter().for_each(|it| out.put_u64(it));
        }
        if has_leases {
            out.put_u64(self.lease_clock_ms);
            out.put_u32(self.leases.len() as u32);
        }
        Some(At::Pair(Position::default()))
    }

    fn write_pair(&self, mut at: Position, out: &mut Vec<u8>) -> Option<At> {
        let pair = self.map.pair(&mut at)?;
        out.put_u8(PAIR);
        pair.write(out);
        Some(At::Pair(at.next()))
    }

    fn write_session(&self, at: usize, out: &mut Vec<u8>) -> Option<At> {
        let Slot { id, last_used, session } = self.sessions.get(at)?;
        out.put_u8(SESSION);
        out.put_u64(*id);
        out.put_u64(*last_used);
        out.put_u64(session.first_pending());
        out.put_u16(session.results().count() as u16);
        for (distance, applied) in session.results() {
            out.put_u16(distance);
            applied.write(out);
        }
        Some(At::Session(at + 1))
    }

    fn write_lease(&self, at: usize, out: &mut Vec<u8>) -> Option<At> {
        let (id, lease) = self.leases.get(at)?;
        out.put_u8(LEASE);
        out.put_u64(*id);
        out.put_u64(lease.ttl_ms);
        out.put_bool(lease.end_ms.is_some());
        lease.end_ms.iter().for_each(|end_ms| out.put_u64(*end_ms));
        Some(At::LeasedKey(at, None))
    }

    fn write_leased_key(
        &self,
        at: usize,
        last: Option<&Arc<[u8]>>,
        out: &mut Vec<u8>,
    ) -> Option<At> {
        let from = last.map_or(Bound::Unbounded, |last| Bound::Excluded(&last[..]));
        let key = self.leases[at].1.keys_from(from).next()?;
        out.put_u8(LEASED_KEY);
        out.put_key(key);
        Some(At::LeasedKey(at, Some(Arc::clone(key))))
    }
}

impl At {
    /// The position after the last record of a kind.
    fn next_kind(&self) -> At {
        match self {
            At::Head => At::Pair(Position::default()),
            At::Pair(_) => At::Session(0),
            At::Session(_) => At::Lease(0),
            At::LeasedKey(at, _) => At::Lease(at + 1),
            At::Lease(_) => At::End,
            At::End | At::Done => At::Done,
        }
    }
}

fn write_end(check: u64, out: &mut Vec<u8>) -> At {
    out.put_u8(END);
    out.put_u64(check);
    At::Done
}
