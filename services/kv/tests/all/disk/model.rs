//! A log, and a model of the expected content.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;

use petrel_kv::command::{Command, Op};
use petrel_kv::disk::{DiskLog, DiskOptions};
use petrel_kv::persist::{Batch, Checkpoint, Identity, LogFailure, LogStore, Recovered};
use petrel_kv::store::Store;
use raft::eraftpb::{ConfState, Entry, HardState};
use tempfile::TempDir;

pub(crate) const NODE: u16 = 7;
pub(crate) const IDENTITY: Identity = Identity { cluster: 0xC1, replica: 0x0007_0000_0000_00AA };

/// A directory on the disk of the build's files, for real syncs.
pub(crate) fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A directory in memory if possible, for tests that sync a thousand times.
pub(crate) fn quick_directory() -> TempDir {
    TempDir::new_in("/dev/shm").unwrap_or_else(|_| directory())
}

pub(crate) fn open(path: &Path) -> (DiskLog, Option<Recovered>) {
    open_with_segments(path, 1 << 20)
}

pub(crate) fn open_with_segments(
    path: &Path,
    segment_bytes: usize,
) -> (DiskLog, Option<Recovered>) {
    let mut options = DiskOptions::of_node(NODE);
    options.segment_bytes = segment_bytes;
    let (mut log, recovered) = DiskLog::open(path, &options).unwrap();
    log.set_waker(Waker::from(Arc::new(Unpark(std::thread::current()))));
    (log, recovered)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits until the log reports a batch as durable, or fails.
pub(crate) fn wait(log: &mut DiskLog, number: u64) -> Result<(), LogFailure> {
    while log.durable()? < number {
        std::thread::park();
    }
    Ok(())
}

/// The state that a restarted replica recovers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Content {
    pub(crate) identity: Identity,
    /// Term and vote.
    pub(crate) voted: (u64, u64),
    pub(crate) commit: u64,
    pub(crate) base: (u64, u64),
    pub(crate) membership: Vec<u8>,
    pub(crate) conf_state: ConfState,
    pub(crate) digest: u64,
    pub(crate) entries: Vec<Entry>,
}

impl Content {
    pub(crate) fn of(recovered: &Recovered) -> Self {
        let Recovered { identity, hard_state, checkpoint, store, entries } = recovered;
        assert_eq!(checkpoint.image.digest(), store.digest());
        Self {
            identity: *identity,
            voted: (hard_state.term, hard_state.vote),
            commit: hard_state.commit,
            base: (checkpoint.index, checkpoint.term),
            membership: checkpoint.membership.clone(),
            conf_state: checkpoint.conf_state.clone(),
            digest: store.digest(),
            entries: entries.clone(),
        }
    }

    pub(crate) fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }
}

/// A write of a replica to its log.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Entries, some of which may replace others.
    Append {
        back: u64,
        count: u64,
        bytes: usize,
    },
    Vote,
    /// Only the commit index.
    Commit(u64),
    Empty,
    /// A checkpoint from the leader, with or without a following entry.
    Reset {
        ahead: u64,
        has_entry: bool,
    },
    /// The replica's own checkpoint.
    Checkpoint,
}

pub(crate) struct LogModel {
    pub(crate) log: DiskLog,
    pub(crate) content: Content,
    pub(crate) number: u64,
    checkpoints: u64,
}

impl LogModel {
    /// Starts with an empty log.
    pub(crate) fn begin(path: &Path, segment_bytes: usize) -> Self {
        let (mut log, recovered) = open_with_segments(path, segment_bytes);
        assert!(recovered.is_none());
        let checkpoint = checkpoint(1, 1);
        let content = Content {
            identity: IDENTITY,
            voted: (1, 0),
            commit: 1,
            base: (1, 1),
            membership: checkpoint.membership.clone(),
            conf_state: checkpoint.conf_state.clone(),
            digest: checkpoint.image.digest(),
            entries: vec![],
        };
        let hard_state = Some(HardState { term: 1, commit: 1, ..HardState::default() });
        let (identity, checkpoint) = (Some(IDENTITY), Some(checkpoint));
        log.write(Batch { identity, checkpoint, hard_state, ..Batch::default() });
        Self { log, content, number: 0, checkpoints: 0 }
    }

    /// Continues with an existing log.
    pub(crate) fn resume(path: &Path, segment_bytes: usize) -> Self {
        let (log, recovered) = open_with_segments(path, segment_bytes);
        let content = Content::of(&recovered.expect("something was written"));
        Self { log, content, number: 0, checkpoints: 0 }
    }

    pub(crate) fn take(&mut self, step: &Step) {
        match *step {
            Step::Append { back, count, bytes } => self.append(back, count, bytes),
            Step::Vote => self.vote(),
            Step::Commit(count) => self.commit(count),
            Step::Empty => self.write(Batch::default()),
            Step::Reset { ahead, has_entry } => self.reset(ahead, has_entry),
            Step::Checkpoint => self.checkpoint(),
        }
    }

    pub(crate) fn wait(&mut self) {
        wait(&mut self.log, self.number).unwrap();
    }

    fn append(&mut self, back: u64, count: u64, bytes: usize) {
        let first =
            (self.content.last() + 1 - back.min(self.content.last())).max(self.content.commit + 1);
        let entries: Vec<Entry> =
            (first..first + count).map(|index| entry(index, self.content.voted.0, bytes)).collect();
        self.content.entries.truncate((first - 1 - self.content.base.0) as usize);
        self.content.entries.extend_from_slice(&entries);
        self.write(Batch { entries, ..Batch::default() });
    }

    fn vote(&mut self) {
        self.content.voted = (self.content.voted.0 + 1, self.content.voted.0 % 3);
        let hard_state = Some(self.hard_state());
        self.write(Batch { hard_state, ..Batch::default() });
    }

    fn commit(&mut self, count: u64) {
        self.content.commit = (self.content.commit + count).min(self.content.last());
        let hard_state = Some(self.hard_state());
        self.write(Batch { hard_state, ..Batch::default() });
    }

    fn reset(&mut self, ahead: u64, has_entry: bool) {
        let index = self.content.commit + ahead;
        let checkpoint = checkpoint(index, self.content.voted.0);
        self.content.commit = index;
        self.note(&checkpoint);
        let entry = has_entry.then(|| entry(index + 1, self.content.voted.0, 10));
        self.content.entries = Vec::from_iter(entry);
        let (entries, hard_state) = (self.content.entries.clone(), Some(self.hard_state()));
        let checkpoint = Some(checkpoint);
        self.write(Batch { checkpoint, entries, hard_state, ..Batch::default() });
    }

    /// Waits for the checkpoint, to know its order among the batches.
    fn checkpoint(&mut self) {
        let Content { commit, base, .. } = self.content;
        if commit == base.0 {
            return;
        }
        let term = self.content.entries[(commit - base.0 - 1) as usize].term;
        let checkpoint = checkpoint(commit, term);
        self.wait();
        self.note(&checkpoint);
        self.content.entries.drain(..(commit - base.0) as usize);
        self.log.checkpoint(checkpoint);
        self.checkpoints += 1;
        while self.log.stats().checkpoints < self.checkpoints {
            self.log.durable().unwrap();
            std::thread::park();
        }
    }

    fn note(&mut self, checkpoint: &Checkpoint) {
        self.content.base = (checkpoint.index, checkpoint.term);
        self.content.membership = checkpoint.membership.clone();
        self.content.conf_state = checkpoint.conf_state.clone();
        self.content.digest = checkpoint.image.digest();
    }

    fn hard_state(&self) -> HardState {
        let Content { voted: (term, vote), commit, .. } = self.content;
        HardState { term, vote, commit, ..HardState::default() }
    }

    pub(crate) fn write(&mut self, batch: Batch) {
        self.number += 1;
        self.log.write(Batch { number: self.number, ..batch });
    }
}

pub(crate) fn entry(index: u64, term: u64, bytes: usize) -> Entry {
    let data: Vec<u8> = (0..bytes).map(|at| (index as usize * 31 + at) as u8).collect();
    Entry { index, term, data: data.into(), ..Entry::default() }
}

/// A checkpoint with a few keys, different for each index.
pub(crate) fn checkpoint(index: u64, term: u64) -> Checkpoint {
    let image = store(index, 3).image();
    let conf_state = ConfState::from((vec![1, 2, index], vec![]));
    Checkpoint { index, term, conf_state, membership: index.to_le_bytes().to_vec(), image }
}

pub(crate) fn store(index: u64, keys: u64) -> Store {
    let (mut store, mut reply) = (Store::new(), Vec::new());
    let mut apply = |index, command: Command<'_>| {
        store.apply(index, &command.to_vec(), &mut reply);
    };
    apply(1, Command::OpenSession);
    let first = index.saturating_sub(keys).max(1) + 1;
    for (sequence, index) in (first..=index).enumerate() {
        let sequence = sequence as u64;
        let op = Op::Put { key: &index.to_be_bytes(), value: &[index as u8; 20] };
        apply(index, Command::Write { session: 1, sequence, first_pending: sequence, op });
    }
    store
}

pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = [path.to_owned(), path.join("log")]
        .iter()
        .flat_map(|path| std::fs::read_dir(path).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && !path.ends_with("LOCK"))
        .collect();
    files.sort();
    files
}

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.join("log")).unwrap();
    for file in files(from) {
        std::fs::copy(&file, to.join(file.strip_prefix(from).unwrap())).unwrap();
    }
}
