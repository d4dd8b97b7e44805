//! Storage of a replica's log: the interface, and an implementation that keeps nothing.

use std::task::Waker;

use raft::eraftpb::{ConfState, Entry, HardState};

use crate::store::{Image, Store};

/// The identity of a replica: cluster and name.
///
/// A replica without its log must never return under the old name, because all votes and acknowledgements are
/// forgotten. The name therefore has two parts: the node, chosen by an operator, and a random number, new each time the
/// replica starts with an empty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster, by a random number.
    pub cluster: u64,
    /// The replica: the node in the upper 16 bits, a random number in the rest.
    pub replica: u64,
}

/// The whole state up to an index: a snapshot that can be read while the replica continues.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The index of the last included entry.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// The configuration at this index.
    pub conf_state: ConfState,
    /// The encoded membership table: the members' addresses.
    pub membership: Vec<u8>,
    /// The keys.
    pub image: Image,
}

/// State that becomes durable as a whole, after all earlier batches.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// 0 for the batch that begins an empty log. Later batches count up from 1 each time the log is opened.
    pub number: u64,
    /// The replica's identity: only in the first batch.
    pub identity: Option<Identity>,
    /// Replaces the whole log and state.
    pub checkpoint: Option<Checkpoint>,
    /// Entries to append. If the log already has the first entry's index, the batch replaces the log from there on.
    pub entries: Vec<Entry>,
    /// Term, vote and commit index.
    pub hard_state: Option<HardState>,
}

/// The state that a log store recovers at the start.
#[derive(Debug)]
pub struct Recovered {
    /// The replica's identity.
    pub identity: Identity,
    /// The last term, vote and commit index.
    pub hard_state: HardState,
    /// The last checkpoint's metadata. Its image is that of `store`.
    pub checkpoint: Checkpoint,
    /// The state at the checkpoint.
    pub store: Store,
    /// The entries after the checkpoint, without a gap.
    pub entries: Vec<Entry>,
}

/// The log can no longer be written. The replica has to stop, because its acknowledgements might not last.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the log cannot be written: {0}")]
pub struct LogFailure(pub String);

/// Storage of a replica's log. No function blocks: a batch becomes durable some time later, and batches do so in order.
pub trait LogStore {
    /// Returns true if nothing is kept. Messages then need not wait for the log, because a crash loses everything
    /// together.
    fn is_volatile(&self) -> bool;

    /// Begins to write a batch. A batch without content counts too: it is durable when all earlier batches are. So does
    /// a batch with only a commit index, whose loss is harmless because Raft learns the index again.
    fn write(&mut self, batch: Batch);

    /// Begins to write a checkpoint of the replica's own state. Once the checkpoint is durable, entries up to its index
    /// need not be kept. Batches do not wait for checkpoints; of several, only the last is needed.
    fn checkpoint(&mut self, checkpoint: Checkpoint);

    /// The number of the last durable batch; 0 without a durable batch.
    ///
    /// # Errors
    /// [`LogFailure`] if no further batch will become durable.
    fn durable(&mut self) -> Result<u64, LogFailure>;

    /// The free bytes of the disk at the last sync, if the log has a disk.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Sets the waker to wake when more batches have become durable, or when the log has failed.
    fn set_waker(&mut self, waker: Waker);
}

/// Keeps nothing, for replicas whose log and state are only in memory. The cluster survives as long as a majority of
/// its processes does.
#[derive(Debug, Default)]
pub struct Volatile {
    last: u64,
}

impl LogStore for Volatile {
    fn is_volatile(&self) -> bool {
        true
    }

    fn write(&mut self, batch: Batch) {
        self.last = batch.number;
    }

    fn checkpoint(&mut self, _: Checkpoint) {}

    fn durable(&mut self) -> Result<u64, LogFailure> {
        Ok(self.last)
    }

    fn set_waker(&mut self, _: Waker) {}
}
