//! The thread that writes the replica's own checkpoints, while the log continues.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

use super::change::Base;
use super::checkpoint_file;
use super::directory::Directory;
use super::error::DiskError;
use super::handover::{FailOnPanic, Handover, Job};
use crate::persist::{Checkpoint, LogFailure};

pub(super) struct CheckpointWriter {
    pub(super) directory: Arc<Directory>,
    pub(super) handover: Arc<Handover>,
}

impl CheckpointWriter {
    pub(super) fn run(self) {
        let _fail_on_panic = FailOnPanic(&self.handover);
        while let Some(checkpoint) = self.handover.take_checkpoint() {
            match self.write(&checkpoint) {
                Ok(()) => {}
                Err(_) if self.handover.is_closing() => return,
                Err(error) => return self.handover.fail(LogFailure(error.to_string())),
            }
        }
    }

    fn write(&self, checkpoint: &Checkpoint) -> Result<(), DiskError> {
        let file = self.directory.next_file();
        let path = self.directory.checkpoint(file);
        let bytes = checkpoint_file::write(&path, checkpoint, || !self.handover.is_closing())?;
        self.handover.counts.checkpoint_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let base = Base { file, index: checkpoint.index, term: checkpoint.term };
        let (answer, stale) = sync_channel(1);
        self.handover.push(Job::Checkpoint(base, answer));
        // Without an answer the log's thread has ended, and the file may still be needed.
        match stale.recv() {
            Ok(Some(stale)) => self.directory.remove_checkpoint(stale),
            _ => Ok(()),
        }
    }
}
