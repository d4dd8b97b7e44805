//! The owner of a partition.

use petrel::service::{Encode, Postcard};

use super::batch::{Batch, Work};
use super::report::Snapshot;
use crate::limits::REPLIES_BYTES_MAX;
use crate::memcached::{Clock, Everywhere, execute};
use crate::partition::Partition;

/// A partition, and the clock of its owner.
pub(crate) struct Owner {
    pub(crate) partition: Partition,
    pub(crate) clock: Clock,
}

impl Owner {
    /// Runs a batch, until the replies are large.
    pub(crate) fn serve(&mut self, batch: &mut Batch) {
        let Self { partition, clock } = self;
        batch.run(REPLIES_BYTES_MAX, |work, out| match work {
            Work::Operation(key, operation) => execute(partition, clock, key, &operation, out),
            Work::Everywhere(everywhere) => {
                Postcard::append(&run_everywhere(partition, clock, everywhere), out);
            }
        });
    }

    /// Runs this partition's part of an operation on all partitions.
    pub(crate) fn run_everywhere(&mut self, everywhere: Everywhere) -> Snapshot {
        run_everywhere(&mut self.partition, &self.clock, everywhere)
    }
}

fn run_everywhere(partition: &mut Partition, clock: &Clock, everywhere: Everywhere) -> Snapshot {
    match everywhere {
        Everywhere::Flush { exptime, .. } => {
            let second = clock.expiry(exptime, partition.time());
            partition.flush_at(second);
        }
        Everywhere::ResetStats => partition.reset_counters(),
        Everywhere::Limit { memory_bytes, .. } => partition.leave_unused(memory_bytes),
        Everywhere::Dump { items } => {
            return Snapshot::of(partition).with_items(partition, clock, items);
        }
        Everywhere::Stats
        | Everywhere::Settings
        | Everywhere::Items
        | Everywhere::Slabs
        | Everywhere::Connections => {}
    }
    Snapshot::of(partition)
}
