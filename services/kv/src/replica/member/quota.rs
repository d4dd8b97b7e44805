//! Bounds of memory and disk. The leader refuses writes that store something; deletes go on, and make room.

use super::Member;
use crate::command::Command;
use crate::replica::config::ReplicaConfig;

/// Memory that a key takes beside its bytes and its value's, about: `docs/kv-operations.md` has the measurement.
const KEY_BYTES_BESIDE: u64 = 140;

impl Member {
    /// Returns the reason why this leader must not store more, if the command stores something.
    pub(crate) fn refuses(
        &self,
        command: &Command<'_>,
        config: &ReplicaConfig,
    ) -> Option<&'static str> {
        let Command::Write { op, .. } = command else { return None };
        if self.memory_bytes() >= config.memory_bytes_max && op.stores() {
            return Some("its memory is at the bound: delete keys, or raise --memory at all nodes");
        }
        let is_low = self.disk.free_bytes().is_some_and(|bytes| bytes < config.disk_bytes_min);
        (is_low && op.stores()).then_some("the leader's disk has little space: free some of it")
    }

    /// The memory of keys, values, leases and log, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let log_bytes = self.log.size().1 as u64;
        let lease_bytes = self.store.lease_bytes();
        self.store.bytes() + self.store.keys() * KEY_BYTES_BESIDE + lease_bytes + log_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_leader;
    use super::*;
    use crate::command::{BatchBuffer, Op};

    #[test]
    fn refuses__what_stores_something_at_the_bound() {
        let (mut config, member) = test_leader(1);
        let (put, delete) = (Op::Put { key: b"k", value: b"v" }, Op::Delete { key: b"k" });
        let mut batch = BatchBuffer::default();
        batch.push(&delete).unwrap();
        batch.push(&put).unwrap();
        let mut refuses = |op, most| {
            config.memory_bytes_max = most;
            let command = Command::Write { session: 1, sequence: 0, first_pending: 0, op };
            member.refuses(&command, &config).is_some()
        };
        let bytes = member.memory_bytes();
        assert!(refuses(put, bytes) && refuses(Op::Batch(batch.batch()), bytes));
        assert!(!refuses(put, bytes + 1) && !refuses(delete, 0));
        config.memory_bytes_max = 0;
        assert!(member.refuses(&Command::OpenSession, &config).is_none());
    }
}
