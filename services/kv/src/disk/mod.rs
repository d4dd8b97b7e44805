//! A replica's log on disk: the log acknowledges nothing before a sync.
//!
//! ```no_run
//! use petrel_kv::disk::{DiskLog, DiskOptions};
//!
//! let (log, recovered) = DiskLog::open("/var/lib/petrel-kv".as_ref(), &DiskOptions::of_node(1))?;
//! match recovered {
//!     Some(recovered) => println!("replica {:x} goes on", recovered.identity.replica),
//!     None => println!("a new replica begins"),
//! }
//! # Ok::<(), petrel_kv::disk::DiskError>(())
//! ```
//!
//! # Files
//!
//! | name | contents |
//! | --- | --- |
//! | `petrel-kv` | the format's number, the node that owns the log, and the known end of the log |
//! | `log/LOCK` | locked as long as a process has the log open |
//! | `log/r-*.wal` | segments of the log, by their offset |
//! | `checkpoint-*` | the state up to an entry; the log names the valid one |
//! | `*.new` | an unfinished file: removed when the log is opened |
//!
//! A log record holds the content of a [`Batch`], with the name of a checkpoint's file. After a crash, a batch is
//! present as a whole or not at all. Every segment begins with the state at its offset, except the entries; earlier
//! segments can therefore be removed.
//!
//! # Threads
//!
//! The replica's thread hands batches over and never waits. The log's thread writes all waiting batches with one sync.
//! Another thread writes the replica's own checkpoints, in pieces with a sync each, and the log does not wait for it.
//! Files that a checkpoint makes superfluous are removed once the log on disk names the checkpoint. A checkpoint from
//! the leader is part of a batch, and later batches wait for it.
//!
//! # Effects of a crash
//!
//! Records without a sync may be missing, from some record on; an incomplete record is dropped. A damaged record is an
//! error, and so is a missing or unsuitable segment or checkpoint. The replica then has to start anew under another
//! name, because promises may be forgotten. A missing log is an error, too, and so is a log that ends before the mark's
//! end. The log updates the mark with the first batch, after each start, at each new segment and at an orderly end. The
//! loss of records synced since then cannot be distinguished from a write that a crash cut off. A power failure may
//! look like damage on a file system that writes the end of a file before its middle; ext4 (with `data=ordered`, its
//! default) and tmpfs do not. The log syncs recovered state before reporting anything, because the state may have been
//! only in the page cache.
//!
//! # Why this log
//!
//! The log is `chunked-wal` 0.2.3, extracted from the Raft log of Databend's metadata service: segments, a thread that
//! syncs them, a lock, and a state at the beginning of each segment. It recognizes a truncated end of a file, and refuses
//! a damaged file. `redb` takes 1.5 to 2 times as long for a batch, `fjall` and `raft-engine` cut their files at a damaged
//! record, and `okaywal` is faster, since it allocates the length of its files beforehand, but leaves the checks after a
//! replay to its user. A log of acknowledged writes must never silently drop a damaged record and its successors; the
//! choice follows from this criterion.
//!
//! `record` adds checks of length and body, which `chunked-wal` leaves to the user. Before opening the segments,
//! [`DiskLog::open`] checks that none is missing or cut, because `chunked-wal` would panic or change files first.
//!
//! # Costs
//!
//! With two cores, ext4, a virtual disk and Linux 6.18, `cargo bench --locked -p petrel-kv --bench disk_log`, the lowest
//! and the highest of three rounds; on tmpfs with `-- /dev/shm 20000`, of two:
//!
//! | batches | disk, p50 | disk, p99 | disk, entries/s | tmpfs, p50 |
//! | --- | --- | --- | --- | --- |
//! | 1 entry, append and fdatasync | 38–46 µs | 55–74 µs | 20,500–26,400 | 0.3–0.4 µs |
//! | 1 entry, one outstanding | 45–55 µs | 61–80 µs | 17,600–21,700 | 6.3–6.5 µs |
//! | 1 entry, 64 outstanding | 94–103 µs | 175–275 µs | 501,000–527,000 | 34 µs |
//! | 64 entries, append and fdatasync | 57–64 µs | 78–399 µs | 676,000–1,086,000 | 1.9 µs |
//! | 64 entries, one outstanding | 86–89 µs | 113–289 µs | 555,000–721,000 | 14 µs |
//! | 64 entries, 64 outstanding | 700–998 µs | 2.1–5.2 ms | 3.1–4.8 million | 422–433 µs |
//!
//! Two threads between the replica's and the disk cost some 7 µs; writing all waiting batches together makes up for
//! them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread::JoinHandle;

use chunked_wal::{ChunkedWal, Config};
use raft::eraftpb::HardState;

mod change;
mod checkpoint_file;
mod checkpoint_writer;
mod directory;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod handover;
mod head;
mod mark;
mod record;
mod replay;
mod writer;

pub use error::DiskError;

use crate::persist::{Batch, Checkpoint, LogFailure, LogStore, Recovered};
use checkpoint_writer::CheckpointWriter;
use directory::Directory;
use error::During;
use handover::{Handover, Job};
use replay::{Replay, Wal};
use writer::Writer;

/// Default size after which a segment ends. At 150 B per entry a segment has 200,000 entries, and beginning a segment
/// costs two syncs.
const SEGMENT_BYTES: usize = 32 << 20;

/// Bytes read at once when the log is opened.
const READ_BYTES: usize = 1 << 20;

/// Options of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskOptions {
    /// The node that owns the log; the log of another node is refused.
    pub node: u16,
    /// Size after which a segment ends, in bytes; segments are removed as a whole.
    pub segment_bytes: usize,
}

impl DiskOptions {
    /// The default options.
    pub fn of_node(node: u16) -> Self {
        Self { node, segment_bytes: SEGMENT_BYTES }
    }
}

/// Counters since the log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskStats {
    /// Syncs of the log; each made at least one batch durable.
    pub syncs: u64,
    /// The replica's own checkpoints named by the log.
    pub checkpoints: u64,
    /// Bytes of the replica's own checkpoints.
    pub checkpoint_bytes: u64,
}

/// A log on disk. Dropping the log first writes all queued batches.
pub struct DiskLog {
    handover: Arc<Handover>,
    /// Number of the last batch handed over.
    last: u64,
    /// Term and vote of the last batch.
    voted: (u64, u64),
    writer: Option<JoinHandle<()>>,
    checkpoint_writer: Option<JoinHandle<()>>,
}

impl DiskLog {
    /// Opens the log in a directory, which is created if necessary. Returns the recovered state; none if the log is
    /// new.
    ///
    /// # Errors
    ///
    /// See [`DiskError`]. A damaged log and a foreign directory stay unchanged.
    pub fn open(
        path: &Path,
        options: &DiskOptions,
    ) -> Result<(Self, Option<Recovered>), DiskError> {
        let directory = Directory::prepare(path)?;
        let segments = directory.segments();
        let config = config(&directory, options);
        let lock =
            ChunkedWal::<Wal>::acquire_lock(&config).map_err(|error| match error.kind() {
                std::io::ErrorKind::WouldBlock => DiskError::Locked { dir: path.to_owned() },
                _ => DiskError::Io { path: segments.clone(), what: "lock", source: error },
            })?;
        let known_end = directory.claim(options.node)?;
        directory.check_segments()?;
        directory.check_end(known_end)?;
        let mut replay = Replay::default();
        let ignore = Arc::new(|_, _| {});
        let wal = ChunkedWal::open_locked(Arc::new(config), &mut replay, ignore, lock)
            .during("read", &segments)?;
        let head = replay.head.clone();
        // Zeros at the end do not belong to the log, and have been removed.
        directory.check_end(known_end)?;
        let recovered = replay.finish(&directory)?;
        directory.remove_leftovers(head.base.map(|base| base.file))?;
        let (directory, handover) = (Arc::new(directory), Arc::new(Handover::default()));
        let voted = (head.term, head.vote);
        let mut writer = Writer {
            wal,
            head,
            directory: directory.clone(),
            handover: handover.clone(),
            node: options.node,
            is_mark_due: false,
        };
        writer.sync().during("sync", &segments)?;
        writer.note_end()?;
        let checkpoint_writer = CheckpointWriter { directory, handover: handover.clone() };
        let log = Self {
            writer: Some(spawn("kv-log", path, || writer.run())?),
            checkpoint_writer: Some(spawn("kv-checkpoint", path, || checkpoint_writer.run())?),
            handover,
            last: 0,
            voted,
        };
        Ok((log, recovered))
    }

    /// Returns the log's counters.
    pub fn stats(&self) -> DiskStats {
        let counts = &self.handover.counts;
        DiskStats {
            syncs: counts.syncs.load(Ordering::Relaxed),
            checkpoints: counts.checkpoints.load(Ordering::Relaxed),
            checkpoint_bytes: counts.checkpoint_bytes.load(Ordering::Relaxed),
        }
    }

    /// Returns true if a batch needs no write to be as durable as its predecessors: the last commit index may be lost.
    fn is_durable_at_once(&self, batch: &Batch) -> bool {
        let has_voted = |state: &HardState| (state.term, state.vote) != self.voted;
        let has_content = batch.identity.is_some()
            || batch.checkpoint.is_some()
            || !batch.entries.is_empty()
            || batch.hard_state.as_ref().is_some_and(has_voted);
        !has_content && self.handover.durable().is_ok_and(|durable| durable == self.last)
    }
}

impl LogStore for DiskLog {
    fn is_volatile(&self) -> bool {
        false
    }

    fn write(&mut self, batch: Batch) {
        let number = batch.number;
        if self.is_durable_at_once(&batch) {
            self.handover.note_durable(number);
        }
        self.last = number;
        if let Some(state) = &batch.hard_state {
            self.voted = (state.term, state.vote);
        }
        self.handover.push(Job::Batch(Box::new(batch)));
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint) {
        self.handover.push_checkpoint(checkpoint);
    }

    fn durable(&mut self) -> Result<u64, LogFailure> {
        self.handover.durable()
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.handover.counts.free_bytes.load(Ordering::Relaxed))
    }

    fn set_waker(&mut self, waker: Waker) {
        self.handover.set_waker(waker);
    }
}

impl Drop for DiskLog {
    fn drop(&mut self) {
        self.handover.close_checkpoints();
        join(self.checkpoint_writer.take());
        self.handover.close();
        join(self.writer.take());
    }
}

impl fmt::Debug for DiskLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskLog").field("last", &self.last).finish_non_exhaustive()
    }
}

fn config(directory: &Directory, options: &DiskOptions) -> Config {
    Config {
        dir: directory.segments().to_string_lossy().into_owned(),
        read_buffer_size: Some(READ_BYTES),
        chunk_max_size: Some(options.segment_bytes.max(1)),
        // Waiting batches have already been gathered.
        flush_batch_wait: Some(std::time::Duration::ZERO),
        ..Config::default()
    }
}

fn spawn(
    name: &str,
    path: &Path,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, DiskError> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).during("start a thread for", path)
}

fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        // A panic has already been recorded as a failure, and no recipient is left to report it to.
        let _ = thread.join();
    }
}
