//! Where a replica's log survives: what a store for it has to do, and the one that keeps nothing.

use std::task::Waker;

use raft::eraftpb::{ConfState, Entry, HardState};

use crate::store::{Image, Store};

/// Who a replica is, in which cluster.
///
/// A replica that has lost its log must never come back under its old name: it has forgotten what it voted for,
/// and what it said it had. So the name has two parts: the node, which an operator gives, and a number that is
/// new with each empty beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster, by a random number.
    pub cluster: u64,
    /// The replica: node in the upper 16 bits, below it a random number.
    pub replica: u64,
}

/// The whole state up to an index: a snapshot that can be read while the replica goes on.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The last entry that it contains.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// The configuration there.
    pub conf_state: ConfState,
    /// The members' addresses, as bytes for the replica.
    pub book: Vec<u8>,
    /// The keys.
    pub image: Image,
}

/// What is to become durable as a whole, and after all that was given before.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// 0 for the one with which an empty log begins; the others count up from 1 each time the log is opened.
    pub number: u64,
    /// Who the replica is: with the first batch.
    pub identity: Option<Identity>,
    /// Takes the place of everything before: log and state.
    pub checkpoint: Option<Checkpoint>,
    /// Follow what is there, or take the place of what is there from the first one's index on.
    pub entries: Vec<Entry>,
    /// Term, vote and commit index.
    pub hard_state: Option<HardState>,
}

/// What a store found when it was opened.
#[derive(Debug)]
pub struct Recovered {
    /// Who the replica is.
    pub identity: Identity,
    /// The last term, vote and commit index.
    pub hard_state: HardState,
    /// What the last checkpoint says of itself. Its image is that of `store`.
    pub checkpoint: Checkpoint,
    /// The state at the checkpoint.
    pub store: Store,
    /// The entries that follow it, without a gap.
    pub entries: Vec<Entry>,
}

/// The log cannot be kept any more: the replica has to stop, since what it would say might not last.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the log cannot be written: {0}")]
pub struct LogFailure(pub String);

/// Keeps a replica's log. Nothing waits here: what is given becomes durable some time later, in order.
pub trait LogStore {
    /// Whether nothing is kept: then what is said need not wait for it, because all is lost together.
    fn is_volatile(&self) -> bool;

    /// Begins to write a batch. One without content counts, too: it is durable when those before it are. So is one
    /// that brings a commit index only, and that may be lost: Raft learns it again.
    fn write(&mut self, batch: Batch);

    /// A checkpoint of the replica's own: entries up to its index need not be kept once it is durable. Batches do
    /// not wait for it; when several come, the last one is enough.
    fn checkpoint(&mut self, checkpoint: Checkpoint);

    /// The number of the last batch that is durable; 0 as long as there is none.
    ///
    /// # Errors
    /// [`LogFailure`] when there will be no more.
    fn durable(&mut self) -> Result<u64, LogFailure>;

    /// Whom to wake when more has become durable, or never will.
    fn set_waker(&mut self, waker: Waker);
}

/// Keeps nothing: for replicas whose log and state are in memory only. The cluster survives as long as a
/// majority of its processes does.
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
