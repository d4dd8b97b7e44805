//! The owner of a partition.

use super::batch::{Batch, Work};
use super::pool::Pool;
use super::report::Snapshot;
use crate::key::Key;
use crate::limits::{REPLIES_BYTES_MAX, SAFE_BYTES, VALUE_BYTES_MAX};
use crate::memcached::{Clock, Everywhere, execute};
use crate::partition::Partition;

/// A partition, and the clock of its owner.
pub(crate) struct Owner {
    pub(crate) partition: Partition,
    pub(crate) clock: Clock,
}

impl Owner {
    /// Runs a batch, until the replies are large. Returns false if the pool has no memory for the first reply: the batch
    /// must wait.
    pub(crate) fn serve(&mut self, batch: &mut Batch, pool: &Pool) -> bool {
        let Self { partition, clock } = self;
        batch.run(REPLIES_BYTES_MAX, |work, out| {
            match work {
                Work::Operation(key, operation) => {
                    let free_bytes = pool.free_bytes();
                    if free_bytes < VALUE_BYTES_MAX
                        && operation.value.is_empty()
                        && reply_bytes(partition, key) > free_bytes.max(SAFE_BYTES)
                    {
                        return false;
                    }
                    execute(partition, clock, key, &operation, out);
                }
                Work::Everywhere(everywhere) => {
                    run_everywhere(partition, clock, everywhere).encode(out);
                }
            }
            true
        });
        batch.borrow(pool);
        batch.has_replies()
    }

    /// Runs this partition's part of an operation on all partitions.
    pub(crate) fn run_everywhere(&mut self, everywhere: Everywhere) -> Snapshot {
        run_everywhere(&mut self.partition, &self.clock, everywhere)
    }
}

/// The bytes of the reply with the value, about.
fn reply_bytes(partition: &Partition, key: Key<'_>) -> usize {
    partition.peek(key).map_or(0, |found| found.bytes as usize)
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
