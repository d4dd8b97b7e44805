//! Snapshots for other replicas.
//!
//! Raft carries only a ticket: the snapshot's owner and index. The receiver fetches the content by calls, chunk by
//! chunk, and hands the ticket to the Raft core only when the content is complete.

use bytes::Bytes;

use crate::store::{Cursor, Image, Store};
use crate::wire::{DecodeError, Reader, Write};

/// Bytes of one chunk, about.
pub(super) const CHUNK_BYTES: usize = 512 << 10;

/// Snapshots kept: the last, and the previous snapshot, which a replica may still be fetching.
const SNAPSHOTS_MAX: usize = 2;

/// The snapshots that replicas can fetch.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    held: Vec<Held>,
    /// Chunks requested so far.
    requested: u64,
}

#[derive(Debug)]
struct Held {
    index: u64,
    image: Image,
    /// The known beginnings of chunks, in order.
    begins: Vec<Cursor>,
}

/// The data of a snapshot in Raft, in place of the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) from: u64,
    pub(super) index: u64,
    /// Initial members and membership table: see `Member::pack`.
    pub(super) membership: Vec<u8>,
}

/// A snapshot that this replica receives.
pub(super) enum Incoming {
    Fetching(u64),
    Fetched(u64, Box<Store>),
}

/// A request for a chunk of the snapshot at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkRequest {
    pub(super) index: u64,
    /// From 0; chunks are requested in order.
    pub(super) chunk: u32,
}

/// One chunk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkReply<'a> {
    pub(super) is_last: bool,
    pub(super) chunk: &'a [u8],
}

impl Snapshots {
    pub(super) fn add(&mut self, index: u64, image: Image) {
        if self.held.len() == SNAPSHOTS_MAX {
            self.held.remove(0);
        }
        self.held.push(Held { index, image, begins: vec![Cursor::default()] });
    }

    /// The index of the last snapshot; 0 without one.
    pub(super) fn last_index(&self) -> u64 {
        self.held.last().map_or(0, |held| held.index)
    }

    /// Chunks requested so far; a growing number shows a fetch in progress.
    pub(super) fn requested(&self) -> u64 {
        self.requested
    }

    pub(super) fn answer(&mut self, request: ChunkRequest) -> Result<Vec<u8>, &'static str> {
        self.requested += 1;
        let held = self.held.iter_mut().find(|held| held.index == request.index);
        let held = held.ok_or("that snapshot is not here any more")?;
        let place = request.chunk as usize;
        let begin = held.begins.get(place).ok_or("chunks are asked for in order")?;
        let chunk = held.image.chunk(begin, CHUNK_BYTES);
        let is_last = chunk.next.is_none();
        if let Some(next) = chunk.next.filter(|_| held.begins.len() == place + 1) {
            held.begins.push(next);
        }
        Ok(ChunkReply { is_last, chunk: &chunk.bytes }.encode())
    }
}

impl Incoming {
    pub(super) fn index(&self) -> u64 {
        match self {
            Incoming::Fetching(index) | Incoming::Fetched(index, _) => *index,
        }
    }
}

impl Ticket {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64(self.from);
        out.put_u64(self.index);
        out.extend(&self.membership);
        out.into()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let (from, index) = (input.u64("owner")?, input.u64("index")?);
        Ok(Self { from, index, membership: input.rest().to_vec() })
    }
}

impl ChunkRequest {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(self.index);
        out.put_u32(self.chunk);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let request = Self { index: input.u64("index")?, chunk: input.u32("chunk")? };
        input.end().map(|()| request)
    }
}

impl<'a> ChunkReply<'a> {
    fn encode(&self) -> Vec<u8> {
        [&[u8::from(self.is_last)], self.chunk].concat()
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        Ok(Self { is_last: input.u8("flag")? != 0, chunk: input.rest() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket__round_trips() {
        let ticket = Ticket { from: 1, index: 2, membership: vec![3; 5] };
        assert_eq!(Ticket::decode(&ticket.encode()), Ok(ticket));
        assert!(Ticket::decode(&[0; 15]).is_err());
    }

    #[test]
    fn snapshots__the_last_two_are_kept_and_can_be_had_in_order() {
        let mut snapshots = Snapshots::default();
        for index in [10, 20, 30] {
            snapshots.add(index, Store::new().image());
        }
        assert_eq!(snapshots.last_index(), 30);
        assert!(snapshots.answer(ChunkRequest { index: 10, chunk: 0 }).is_err());
        assert!(snapshots.answer(ChunkRequest { index: 20, chunk: 1 }).is_err());
        let answer = snapshots.answer(ChunkRequest { index: 20, chunk: 0 }).unwrap();
        assert!(ChunkReply::decode(&answer).unwrap().is_last);
        let request = ChunkRequest { index: 7, chunk: 8 };
        assert_eq!(ChunkRequest::decode(&request.encode()), Ok(request));
    }
}
