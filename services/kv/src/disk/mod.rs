//! A replica's log on disk: nothing is acknowledged before it has been synced.
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
//! | name | what it has |
//! | --- | --- |
//! | `petrel-kv` | the format's number, the node whose log it is, and how far the log is known to go |
//! | `log/LOCK` | locked as long as a process has the log open |
//! | `log/r-*.wal` | segments of the log, by their place in it |
//! | `checkpoint-*` | the state up to an entry; the log says which one counts |
//! | `*.new` | a file that is not finished: removed when the log is opened |
//!
//! A record of the log is what one [`Batch`] says, with a checkpoint by its file; a batch is there as a whole or not
//! at all. Each segment begins with the state so far, but for the entries, so that earlier ones can go.
//!
//! # Threads
//!
//! The replica's thread hands batches over and never waits. One thread writes what has come meanwhile with one
//! sync. Another one writes the replica's own checkpoints, in pieces that are synced, and the log does not wait for
//! it; what the checkpoint has made superfluous is removed when the log says, on disk, that it counts. A checkpoint
//! that came from the leader is a part of a batch, and later batches wait for it.
//!
//! # What a crash does
//!
//! What was not synced may be missing from some record on; an incomplete one is dropped. A damaged one, a segment or
//! a checkpoint that is missing or does not fit are errors: such a replica has to begin anew under another name,
//! since it may have forgotten what it promised. So is a log that ends before the place to which the mark says that
//! it goes, or that is missing altogether. The mark is written with the first batch, after each start, at each new
//! segment and at an orderly end: the loss of what was synced since cannot be told from a write that was cut off.
//! A power failure on a file system that writes the end of a file
//! before its middle may look like damage; ext4 (with `data=ordered`, its default) and tmpfs do not.
//! Before anything is told of what was found, it is synced: it may have been in the page cache only.
//!
//! # Why this log
//!
//! The log is `chunked-wal` 0.2.3 (MIT or Apache-2.0), which was cut out of the Raft log of Databend's metadata
//! service: segments, a thread that syncs them, a lock, and a state that begins each segment. It has no unsafe code,
//! brings nothing that needs a C compiler, and takes the end of a file that was cut off for what it is, while it
//! refuses one that is damaged. The others that were read and measured, all of permissive licences:
//!
//! | store | packages | 1 entry, disk | 64 entries, disk | 1, tmpfs | 64, tmpfs | what speaks against it |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | append, fdatasync | | 34 | 46–62 | 0.3 | 2.0 | |
//! | `chunked-wal` 0.2.3 | 25 | 44–49 | 58–71 | 4.0 | 6.6 | young; the bodies' checks are its user's |
//! | `redb` 4.5.0 | 2 | 71 | 131–162 | 28 | 84 | a B-tree: twice the time, and pages of 4 KiB for 120 B |
//! | `fjall` 3.1.13 | 46 | 24 | 78–83 | 1.2 | 35 | a journal cut at a damaged mark; a tree behind it that nobody reads |
//! | `okaywal` 0.3.1 | 17 | 23 | 32–33 | 0.9 | 5.5 | its user compares the checks after it has replayed |
//! | `raft-engine` 0.4.2 | 69 | 25 | 62–63 | 1.2 | 10 | cuts the last file at a damaged record; LZ4 in C |
//!
//! Microseconds until entries of 120 B are durable, medians of 400 batches one after another in each of three rounds
//! (20,000 in one round on tmpfs), with two cores, ext4, a virtual disk and Linux 6.18. The program is not kept: it
//! needs all of them. Those that are faster than a bare append give their files their length beforehand, so that a
//! sync has no new length to write; this log does not. For a log that says what has been acknowledged, to drop a
//! damaged record and what follows it without a word is the worst that can happen; so that decided.
//!
//! What `chunked-wal` leaves to its user is in `record`: checks of the length and the body. Before it opens the
//! segments, [`DiskLog::open`] looks whether one is missing or cut, where it would panic or change files first.
//!
//! # What it costs
//!
//! On the machine above, `cargo bench --locked -p petrel-kv --bench disk_log`, the lowest and the highest of three
//! rounds; on tmpfs with `-- /dev/shm 20000`, of two:
//!
//! | batches | disk, p50 | disk, p99 | disk, entries/s | tmpfs, p50 |
//! | --- | --- | --- | --- | --- |
//! | 1 entry, append and fdatasync | 38–46 µs | 55–74 µs | 20,500–26,400 | 0.3–0.4 µs |
//! | 1 entry, one on its way | 45–55 µs | 61–80 µs | 17,600–21,700 | 6.3–6.5 µs |
//! | 1 entry, 64 on their way | 94–103 µs | 175–275 µs | 501,000–527,000 | 34 µs |
//! | 64 entries, append and fdatasync | 57–64 µs | 78–399 µs | 676,000–1,086,000 | 1.9 µs |
//! | 64 entries, one on its way | 86–89 µs | 113–289 µs | 555,000–721,000 | 14 µs |
//! | 64 entries, 64 on their way | 700–998 µs | 2.1–5.2 ms | 3.1–4.8 million | 422–433 µs |
//!
//! Two threads between the replica's and the disk cost some 7 µs; gathering what waits makes up for it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread::JoinHandle;

use chunked_wal::{ChunkedWal, Config};
use raft::eraftpb::HardState;

mod change;
mod directory;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod handover;
mod head;
mod image_file;
mod imager;
mod mark;
mod record;
mod replay;
mod writer;

pub use error::DiskError;

use crate::persist::{Batch, Checkpoint, LogFailure, LogStore, Recovered};
use directory::Directory;
use error::During;
use handover::{Handover, Job};
use imager::Imager;
use replay::{Replay, Wal};
use writer::Writer;

/// Bytes after which a segment ends by default: at 150 B for an entry it has 200,000 of them, and beginning one
/// costs two syncs.
const SEGMENT_BYTES: usize = 32 << 20;

/// Bytes that are read at once when the log is opened.
const READ_BYTES: usize = 1 << 20;

/// How a log is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskOptions {
    /// The node whose log it is; the log of another one is refused.
    pub node: u16,
    /// Bytes after which a segment ends; segments are removed as a whole.
    pub segment_bytes: usize,
}

impl DiskOptions {
    /// The usual ones.
    pub fn of_node(node: u16) -> Self {
        Self { node, segment_bytes: SEGMENT_BYTES }
    }
}

/// What a log has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskStats {
    /// Syncs of the log; each made one batch durable or more.
    pub syncs: u64,
    /// Bytes of records.
    pub bytes: u64,
    /// The replica's own checkpoints that count.
    pub checkpoints: u64,
    /// Bytes of the replica's own checkpoints.
    pub checkpoint_bytes: u64,
}

/// Reads a log's counters, from any thread.
#[derive(Clone, Debug)]
pub struct DiskMeter(Arc<Handover>);

impl DiskMeter {
    /// The counters now.
    pub fn read(&self) -> DiskStats {
        let counts = &self.0.counts;
        DiskStats {
            syncs: counts.syncs.load(Ordering::Relaxed),
            bytes: counts.bytes.load(Ordering::Relaxed),
            checkpoints: counts.checkpoints.load(Ordering::Relaxed),
            checkpoint_bytes: counts.checkpoint_bytes.load(Ordering::Relaxed),
        }
    }
}

/// A log on disk. When it is dropped, what was handed over is written first.
pub struct DiskLog {
    handover: Arc<Handover>,
    /// Number of the last batch that was handed over.
    last: u64,
    /// Term and vote of the last one.
    voted: (u64, u64),
    writer: Option<JoinHandle<()>>,
    imager: Option<JoinHandle<()>>,
}

impl DiskLog {
    /// Opens the log in a directory, which is made if it is not there. Tells what is in it; none if it is new.
    ///
    /// # Errors
    ///
    /// See [`DiskError`]. A log that is damaged is not changed, and neither is a directory of something else.
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
        // Zeros at its end are no part of it, and have been removed.
        directory.check_end(known_end)?;
        let recovered = replay.finish(&directory)?;
        directory.tidy(head.base.map(|base| base.file))?;
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
        let imager = Imager { directory, handover: handover.clone() };
        let log = Self {
            writer: Some(spawn("kv-log", path, || writer.run())?),
            imager: Some(spawn("kv-checkpoint", path, || imager.run())?),
            handover,
            last: 0,
            voted,
        };
        Ok((log, recovered))
    }

    /// Reads the log's counters.
    pub fn meter(&self) -> DiskMeter {
        DiskMeter(self.handover.clone())
    }

    /// Whether a batch is as durable as those before it without any writing: the last commit index may be lost.
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

    fn set_waker(&mut self, waker: Waker) {
        self.handover.set_waker(waker);
    }
}

impl Drop for DiskLog {
    fn drop(&mut self) {
        self.handover.leave();
        join(self.imager.take());
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
        // What waits has been gathered already.
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
        // If it has panicked, there is a failure, and whoever could be told has gone.
        let _ = thread.join();
    }
}
