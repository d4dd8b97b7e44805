//! From the log's records back to the state from which a replica starts.

use std::io;
use std::sync::mpsc::SyncSender;

use chunked_wal::{Callback, ChunkId, Segment, StateMachine, WALRecord, WalTypes};
use raft::eraftpb::{Entry, HardState};

use super::change::Change;
use super::checkpoint_file;
use super::directory::Directory;
use super::error::DiskError;
use super::head::Head;
use super::record::Record;
use crate::persist::{Checkpoint, Recovered};

/// The types of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wal;

impl WalTypes for Wal {
    type Action = Record;
    type Checkpoint = Head;
    type Callback = Done;
}

/// Reports the end of a sync to the log's thread.
#[derive(Debug)]
pub(super) struct Done(pub(super) SyncSender<io::Result<()>>);

impl Callback for Done {
    fn send(self, outcome: io::Result<()>) {
        let _ = SyncSender::send(&self.0, outcome);
    }
}

/// Applies the records, in their order.
#[derive(Debug, Default)]
pub(super) struct Replay {
    pub(super) head: Head,
    has_begun: bool,
    /// The last entries, without a gap. Some may precede the base's index. Once all records are applied, no entry after
    /// the base's index is missing.
    entries: Vec<Entry>,
}

impl StateMachine<Wal> for Replay {
    type Error = io::Error;

    fn apply(&mut self, record: &WALRecord<Wal>, _: ChunkId, _: Segment) -> io::Result<()> {
        match record {
            WALRecord::Action(Record(body)) => {
                let change = Change::decode(body).map_err(|error| damaged(&error.to_string()))?;
                self.note(change)
            }
            WALRecord::Checkpoint(head) => self.begin_segment(head),
        }
    }

    fn checkpoint(&self) -> Head {
        self.head.clone()
    }
}

impl Replay {
    /// The recovered state of a replica; none if the log is new.
    pub(super) fn finish(self, directory: &Directory) -> Result<Option<Recovered>, DiskError> {
        let damaged = |what| DiskError::damaged(&directory.segments(), what);
        let Self { head, mut entries, .. } = self;
        let (Some(identity), Some(base)) = (head.identity, head.base) else {
            let is_empty = head == Head::default();
            return is_empty.then_some(None).ok_or_else(|| damaged("it has no beginning"));
        };
        entries.retain(|entry| entry.index > base.index);
        let first = entries.first().map_or(head.last + 1, |entry| entry.index);
        let has_all = first == base.index + 1 && head.last == base.index + entries.len() as u64;
        if !has_all || head.commit > head.last {
            return Err(damaged("entries are missing"));
        }
        let (checkpoint, store) = checkpoint_file::read(&directory.checkpoint(base.file))?;
        if (checkpoint.index, checkpoint.term) != (base.index, base.term) {
            return Err(damaged("its checkpoint is another"));
        }
        let hard_state = hard_state(&head, &checkpoint);
        Ok(Some(Recovered { identity, hard_state, checkpoint, store, entries }))
    }

    fn begin_segment(&mut self, head: &Head) -> io::Result<()> {
        if !self.has_begun {
            (self.head, self.has_begun) = (head.clone(), true);
        }
        if self.head == *head {
            Ok(())
        } else {
            Err(damaged("a segment does not begin where the one before it ends"))
        }
    }

    fn note(&mut self, change: Change) -> io::Result<()> {
        self.head.note(&change).map_err(|what| damaged(&what))?;
        if change.reset.is_some() {
            self.entries.clear();
        }
        if let Some(first) = change.entries.first().map(|entry| entry.index) {
            let kept = self.entries.partition_point(|entry| entry.index < first);
            self.entries.truncate(kept);
        }
        self.entries.extend(change.entries);
        Ok(())
    }
}

/// The commit index alone is never synced, but everything in a checkpoint was committed.
fn hard_state(head: &Head, checkpoint: &Checkpoint) -> HardState {
    HardState {
        term: head.term,
        vote: head.vote,
        commit: head.commit.max(checkpoint.index),
        ..HardState::default()
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
