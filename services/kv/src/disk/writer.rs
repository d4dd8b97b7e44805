//! The log's thread: writes all waiting batches together and syncs once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

use chunked_wal::{ChunkId, ChunkedWal, Segment, StateMachine, WAL, WALRecord};

use super::change::{Base, Change};
use super::checkpoint_file;
use super::directory::Directory;
use super::error::{DiskError, During};
use super::handover::{FailOnPanic, Handover, Job};
use super::head::Head;
use super::mark::Mark;
use super::record::Record;
use super::replay::{Done, Wal};
use crate::persist::{Batch, LogFailure};

pub(super) struct Writer {
    pub(super) wal: ChunkedWal<Wal>,
    pub(super) head: Head,
    pub(super) directory: Arc<Directory>,
    pub(super) handover: Arc<Handover>,
    pub(super) node: u16,
    /// Whether the mark must be updated with the log's end after the next sync.
    pub(super) is_mark_due: bool,
}

/// Batches that were written but not synced.
#[derive(Default)]
struct Group {
    /// Number of the last batch.
    last: Option<u64>,
    must_sync: bool,
}

impl Writer {
    pub(super) fn run(mut self) {
        let handover = self.handover.clone();
        let _fail_on_panic = FailOnPanic(&handover);
        while let Some(jobs) = handover.take() {
            if let Err(error) = self.handle(jobs) {
                return handover.fail(LogFailure(error.to_string()));
            }
        }
        let ended = self.sync().during("sync", &self.directory.segments());
        if let Err(error) = ended.and_then(|()| self.note_end()) {
            return handover.fail(LogFailure(error.to_string()));
        }
        if let Err(error) = self.wal.shutdown().during("write", &self.directory.segments()) {
            handover.fail(LogFailure(error.to_string()));
        }
    }

    fn handle(&mut self, jobs: Vec<Job>) -> Result<(), DiskError> {
        let mut group = Group::default();
        for job in jobs {
            match job {
                Job::Batch(batch) if batch.checkpoint.is_some() => {
                    self.commit(&mut group)?;
                    self.reset(*batch, &mut group)?;
                }
                Job::Batch(batch) => self.append(*batch, &mut group)?,
                Job::Checkpoint(base, answer) => {
                    self.commit(&mut group)?;
                    let stale = self.note_checkpoint(base, &mut group)?;
                    let _ = answer.send(stale);
                    self.handover.wake();
                }
            }
        }
        self.commit(&mut group)?;
        self.close_full_segment()
    }

    fn append(&mut self, batch: Batch, group: &mut Group) -> Result<(), DiskError> {
        let Batch { number, identity, entries, hard_state, .. } = batch;
        let change = Change { identity, entries, hard_state, ..Change::default() };
        group.last = Some(number);
        self.record(change, group)
    }

    /// Writes a checkpoint that replaces all earlier state: first the file, then the record.
    fn reset(&mut self, batch: Batch, group: &mut Group) -> Result<(), DiskError> {
        let Batch { number, identity, checkpoint, entries, hard_state } = batch;
        let checkpoint = checkpoint.expect("it was looked at");
        let file = self.directory.next_file();
        checkpoint_file::write(&self.directory.checkpoint(file), &checkpoint, || true)?;
        let base = Base { file, index: checkpoint.index, term: checkpoint.term };
        let before = self.head.base;
        let reset = Some(base);
        group.last = Some(number);
        self.record(Change { identity, reset, entries, hard_state, ..Change::default() }, group)?;
        self.commit(group)?;
        self.remove_old_segments()?;
        match before {
            Some(before) => self.directory.remove_checkpoint(before.file),
            None => Ok(()),
        }
    }

    /// Records a checkpoint. Returns the file of a checkpoint that is no longer needed.
    fn note_checkpoint(&mut self, base: Base, group: &mut Group) -> Result<Option<u64>, DiskError> {
        let before = self.head.base;
        if before.is_some_and(|before| before.index >= base.index) {
            return Ok(Some(base.file));
        }
        self.record(Change { checkpoint: Some(base), ..Change::default() }, group)?;
        self.commit(group)?;
        self.remove_old_segments()?;
        self.handover.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(before.map(|before| before.file))
    }

    /// Appends a change to the pending writes.
    fn record(&mut self, change: Change, group: &mut Group) -> Result<(), DiskError> {
        if change.is_empty() {
            return Ok(());
        }
        group.must_sync |= self.head.must_sync(&change);
        // Once the first batch is durable, an empty log must no longer pass for a new log.
        self.is_mark_due |= self.head == Head::default();
        self.head.note(&change).map_err(|what| self.wrong(io::Error::other(what)))?;
        let body = change.encode();
        let record = WALRecord::Action(Record(body));
        self.wal.append(&record).map_err(|error| self.wrong(error))
    }

    /// Syncs the pending writes if necessary, and reports them as durable.
    fn commit(&mut self, group: &mut Group) -> Result<(), DiskError> {
        let Group { last, must_sync } = std::mem::take(group);
        if must_sync {
            self.sync().map_err(|error| self.wrong(error))?;
            if std::mem::take(&mut self.is_mark_due) {
                self.note_end()?;
            }
            self.handover.counts.syncs.fetch_add(1, Ordering::Relaxed);
        }
        if last.is_some_and(|number| self.handover.note_durable(number)) || must_sync {
            self.handover.wake();
        }
        Ok(())
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        let (done, outcome) = sync_channel(1);
        let sent = self.wal.send_pending(true, Some(Done(done)));
        match outcome.recv() {
            Ok(outcome) => outcome.and_then(|()| self.note_free_bytes()),
            // The syncing thread has ended, and has the error.
            Err(_) => {
                self.wal.wait_worker_idle().and(sent).and(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    fn note_free_bytes(&self) -> io::Result<()> {
        let disk = rustix::fs::statvfs(self.directory.segments())?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        self.handover.counts.free_bytes.store(free_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Updates the mark with the log's end, after a sync of the whole log. An empty log may be lost and is not noted.
    pub(super) fn note_end(&self) -> Result<(), DiskError> {
        if self.head == Head::default() {
            return Ok(());
        }
        let log_end = self.directory.log_end()?;
        self.directory.mark(Mark { node: self.node, log_end })
    }

    fn close_full_segment(&mut self) -> Result<(), DiskError> {
        let closed = self.wal.try_close_full_chunk(&Fixed(&self.head));
        self.is_mark_due |= closed.map_err(|error| self.wrong(error))?.is_some();
        Ok(())
    }

    /// Removes segments whose whole content is in the last checkpoint.
    fn remove_old_segments(&mut self) -> Result<(), DiskError> {
        let Head { reset, base, .. } = self.head;
        let index = base.map_or(0, |base| base.index);
        let is_old = |head: &Head| head.reset < reset || head.last <= index;
        let old = self.wal.drain_closed_chunks_while(is_old);
        if old.is_empty() {
            return Ok(());
        }
        self.wal.send_remove_chunks(old).map_err(|error| self.wrong(error))
    }

    fn wrong(&self, source: io::Error) -> DiskError {
        DiskError::Io { path: self.directory.segments(), what: "write", source }
    }
}

/// The state at the beginning of a new segment.
struct Fixed<'a>(&'a Head);

impl StateMachine<Wal> for Fixed<'_> {
    type Error = io::Error;

    fn apply(&mut self, _: &WALRecord<Wal>, _: ChunkId, _: Segment) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn checkpoint(&self) -> Head {
        self.0.clone()
    }
}
