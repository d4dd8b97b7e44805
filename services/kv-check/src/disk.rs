//! A disk in virtual time: data becomes durable by a sync, some time after the write. A crash before the sync may lose
//! the data or keep it, because a disk may write data before it reports the end of the sync.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use petrel_kv::persist::{Batch, Checkpoint, Identity, LogFailure, LogStore, Recovered};
use petrel_kv::store::Builder;
use petrel_sim::fabric::FabricHandle;
use petrel_sim::{Probability, Rng};
use raft::eraftpb::{Entry, HardState};

#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskConfig {
    /// Shortest sync; the longest usual sync is eight times as long.
    sync_ns: u64,
    /// Factor by which syncs of this disk take longer.
    slow_factor: u64,
    /// Probability of a stalled sync.
    stall: Probability,
    /// Longest stall of a sync.
    stall_ns_max: u64,
}

/// A disk. A host keeps its disk over all lives, until the disk is replaced.
#[derive(Clone)]
pub(crate) struct SimDisk(Rc<RefCell<Disk>>);

struct Disk {
    fabric: FabricHandle,
    config: DiskConfig,
    rng: Rng,
    kept: Kept,
    /// Unsynced writes, and the times of their syncs.
    pending: VecDeque<(u64, Work)>,
    durable: u64,
    waker: Option<Waker>,
}

enum Work {
    Batch(Batch),
    Checkpoint(Checkpoint),
}

/// The durable content.
#[derive(Default)]
struct Kept {
    identity: Option<Identity>,
    hard_state: HardState,
    checkpoint: Option<Checkpoint>,
    entries: Vec<Entry>,
}

impl DiskConfig {
    /// A sync is usually short compared with an election timeout; otherwise no replica would be elected.
    pub(crate) fn draw(rng: &mut Rng, election_ns: u64) -> Self {
        Self {
            sync_ns: (1_000 << rng.below(12)).min(election_ns / 128),
            slow_factor: 1,
            stall: Probability::per_million([0, 3_000, 30_000][rng.below(3) as usize]),
            stall_ns_max: 1_000_000 << rng.below(9),
        }
    }

    /// The same disk with a sync of about an election timeout or less.
    pub(crate) fn slowed(self) -> Self {
        Self { slow_factor: 16, ..self }
    }

    fn draw_ns(&self, rng: &mut Rng) -> u64 {
        let usual_ns = self.slow_factor * rng.between(self.sync_ns, 8 * self.sync_ns);
        if rng.chance(self.stall) { usual_ns + rng.below(self.stall_ns_max) } else { usual_ns }
    }
}

impl SimDisk {
    pub(crate) fn new(fabric: FabricHandle, config: DiskConfig, rng: Rng) -> Self {
        Self(Rc::new(RefCell::new(Disk {
            fabric,
            config,
            rng,
            kept: Kept::default(),
            pending: VecDeque::new(),
            durable: 0,
            waker: None,
        })))
    }

    /// Ends stalls and slowness: from now on every sync takes the usual time.
    pub(crate) fn end_stalls(&self) {
        let config = &mut self.0.borrow_mut().config;
        (config.stall, config.slow_factor) = (Probability::NEVER, 1);
    }

    /// The end of the next sync.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.0.borrow().pending.front().map(|(at_ns, _)| *at_ns)
    }

    /// Wakes the replica if a sync has ended.
    pub(crate) fn run(&self) {
        let disk = &mut *self.0.borrow_mut();
        if disk.sync()
            && let Some(waker) = &disk.waker
        {
            waker.wake_by_ref();
        }
    }

    /// Returns true if the replica keeps its name after a crash.
    pub(crate) fn has_name(&self) -> bool {
        let disk = &mut *self.0.borrow_mut();
        disk.sync();
        disk.kept.identity.is_some()
    }

    /// Crashes the host: a random prefix of the unsynced writes survives.
    pub(crate) fn crash(&self) {
        let disk = &mut *self.0.borrow_mut();
        disk.sync();
        let lucky = disk.rng.below(disk.pending.len() as u64 + 1) as usize;
        let written: Vec<Work> = disk.pending.drain(..lucky).map(|(_, work)| work).collect();
        written.into_iter().for_each(|work| disk.keep(work));
        disk.pending.clear();
        disk.waker = None;
        // Batches count from 1 again.
        disk.durable = 0;
    }

    /// The content for the host's next life.
    pub(crate) fn recover(&self) -> Option<Recovered> {
        let disk = self.0.borrow();
        let kept = &disk.kept;
        let checkpoint = kept.checkpoint.clone()?;
        Some(Recovered {
            identity: kept.identity?,
            hard_state: kept.hard_state.clone(),
            store: Builder::build(checkpoint.image.chunks(1 << 20)).expect("an image is whole"),
            checkpoint,
            entries: kept.entries.clone(),
        })
    }
}

impl Disk {
    /// Makes due writes durable. Returns true if there were any.
    fn sync(&mut self) -> bool {
        let now_ns = self.fabric.now_ns();
        let mut has_synced = false;
        while self.pending.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns) {
            let (_, work) = self.pending.pop_front().expect("there is a front");
            self.keep(work);
            has_synced = true;
        }
        has_synced
    }

    fn keep(&mut self, work: Work) {
        match work {
            Work::Batch(batch) => {
                self.durable = batch.number;
                self.kept.write(batch);
            }
            Work::Checkpoint(checkpoint) => self.kept.apply_checkpoint(checkpoint),
        }
    }

    /// Queues a write for a sync. A single sync runs at a time; later writes share the next sync.
    fn push(&mut self, work: Work) {
        let ends = self.pending.front().zip(self.pending.back());
        let at_ns = match ends.map(|(front, back)| (front.0, back.0)) {
            Some((front_ns, back_ns)) if back_ns > front_ns => back_ns,
            Some((front_ns, _)) => front_ns + self.config.draw_ns(&mut self.rng),
            None => self.fabric.now_ns() + self.config.draw_ns(&mut self.rng),
        };
        self.pending.push_back((at_ns, work));
    }
}

impl Kept {
    fn write(&mut self, batch: Batch) {
        self.identity = batch.identity.or(self.identity);
        if let Some(checkpoint) = batch.checkpoint {
            self.entries.clear();
            self.checkpoint = Some(checkpoint);
        }
        if let Some(hard_state) = batch.hard_state {
            self.hard_state = hard_state;
        }
        if let Some(first) = batch.entries.first() {
            self.entries.retain(|entry| entry.index < first.index);
            self.entries.extend(batch.entries);
        }
    }

    fn apply_checkpoint(&mut self, checkpoint: Checkpoint) {
        self.entries.retain(|entry| entry.index > checkpoint.index);
        self.checkpoint = Some(checkpoint);
    }
}

impl LogStore for SimDisk {
    fn is_volatile(&self) -> bool {
        false
    }

    fn write(&mut self, batch: Batch) {
        self.0.borrow_mut().push(Work::Batch(batch));
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint) {
        self.0.borrow_mut().push(Work::Checkpoint(checkpoint));
    }

    fn durable(&mut self) -> Result<u64, LogFailure> {
        let disk = &mut *self.0.borrow_mut();
        disk.sync();
        Ok(disk.durable)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.0.borrow_mut().waker = Some(waker);
    }
}
