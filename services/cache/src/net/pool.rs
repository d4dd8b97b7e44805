//! The memory for buffers of connections and batches, which all threads share.
//!
//! Each thread has a little of its own, with which small requests always run. A thread borrows the rest for large values
//! and long pipelines, and gives memory back when its connections do. So the pool need not grow with the number of
//! threads. Replies on their way from an owner are outside of the pool: a batch of each pair of threads at most.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::limits::{BORROWED_UNIT_BYTES, HELD_MS, OWN_BUFFER_BYTES_MAX};

/// The shared part, and the size of the threads' own parts.
#[derive(Debug)]
pub(crate) struct Pool {
    own_bytes: usize,
    /// The thread's own part, and an equal share of the rest.
    fair_bytes: usize,
    lendable_bytes: usize,
    lent_bytes: AtomicUsize,
    /// The last millisecond in which a thread waited for memory.
    wanted_ms: AtomicU64,
}

impl Pool {
    pub(crate) fn new(bytes: usize, threads: usize) -> Self {
        let threads = threads.max(1);
        let own_bytes = (bytes / 4 / threads).min(OWN_BUFFER_BYTES_MAX);
        let lendable_bytes = bytes - own_bytes * threads;
        Self {
            own_bytes,
            fair_bytes: own_bytes + lendable_bytes / threads,
            lendable_bytes,
            lent_bytes: AtomicUsize::new(0),
            wanted_ms: AtomicU64::new(0),
        }
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.lendable_bytes.saturating_sub(self.lent_bytes.load(Ordering::Relaxed))
    }

    /// Replaces a loan by another. No loan is refused. Threads look at the free bytes before they borrow, and after an
    /// overdraft the threads with more than a fair share give memory back.
    pub(crate) fn lend(&self, before: usize, after: usize) {
        if after >= before {
            self.lent_bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            let lent = self.lent_bytes.fetch_sub(before - after, Ordering::Relaxed);
            assert!(lent >= before - after, "{} of {lent} bytes come back", before - after);
        }
    }

    /// Notes that a thread waits for memory.
    pub(crate) fn note_wanted(&self, now_ms: u64) {
        self.wanted_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Returns true if a thread waited for memory a moment ago.
    pub(crate) fn is_wanted(&self, now_ms: u64) -> bool {
        let wanted_ms = self.wanted_ms.load(Ordering::Relaxed);
        wanted_ms > 0 && now_ms < wanted_ms + HELD_MS
    }
}

/// The memory that one thread holds.
#[derive(Debug, Default)]
pub(super) struct Account {
    held_bytes: usize,
    borrowed_bytes: usize,
}

impl Account {
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Notes that a connection or a batch that held `before` bytes holds `after`.
    pub(super) fn change(&mut self, pool: &Pool, before: usize, after: usize) {
        assert!(before <= self.held_bytes, "{before} of {} bytes go", self.held_bytes);
        self.held_bytes = self.held_bytes - before + after;
        let beyond = self.held_bytes.saturating_sub(pool.own_bytes);
        let wanted = beyond.next_multiple_of(BORROWED_UNIT_BYTES);
        // A unit more stays, so that small changes take no access to the pool.
        if wanted > self.borrowed_bytes || wanted + BORROWED_UNIT_BYTES < self.borrowed_bytes {
            pool.lend(self.borrowed_bytes, wanted);
            self.borrowed_bytes = wanted;
        }
    }

    /// Returns true if the thread holds half of its share: the other half, and the memory that other threads leave, are for
    /// large values and for replies.
    pub(super) fn is_short(&self, pool: &Pool) -> bool {
        self.held_bytes > pool.fair_bytes / 2
    }

    /// Returns true if half of the memory that the thread could hold has room for `bytes` beside `others`.
    pub(super) fn has_memory(&self, pool: &Pool, others: usize, bytes: usize) -> bool {
        let most = pool.own_bytes + self.borrowed_bytes + pool.free_bytes();
        others + bytes <= most / 2
    }

    /// Returns true if more is lent than there is, and this thread has more than its share.
    pub(super) fn is_exceeded(&self, pool: &Pool) -> bool {
        let is_overdrawn = pool.lent_bytes.load(Ordering::Relaxed) > pool.lendable_bytes;
        is_overdrawn && self.has_more_than_its_share(pool)
    }

    pub(super) fn has_more_than_its_share(&self, pool: &Pool) -> bool {
        self.held_bytes > pool.fair_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn change__borrows_and_gives_back() {
        let (pool, mut account) = (Pool::new(4 * MIB, 4), Account::default());
        account.change(&pool, 0, pool.own_bytes);
        assert_eq!(pool.free_bytes(), pool.lendable_bytes);
        account.change(&pool, 0, MIB);
        assert_eq!(pool.free_bytes(), pool.lendable_bytes - MIB);
        account.change(&pool, MIB, 0);
        assert_eq!(pool.free_bytes(), pool.lendable_bytes);
    }

    #[test]
    fn has_memory__small_requests_run_whoever_borrows() {
        let (pool, mut greedy) = (Pool::new(4 * MIB, 4), Account::default());
        greedy.change(&pool, 0, 4 * MIB);
        assert!(greedy.is_exceeded(&pool) && !greedy.has_memory(&pool, 4 * MIB, 0));
        let modest = Account::default();
        assert!(modest.has_memory(&pool, 0, pool.own_bytes / 2) && !modest.is_exceeded(&pool));
        assert!(!modest.has_memory(&pool, 0, MIB));
        greedy.change(&pool, 4 * MIB, 0);
        assert!(modest.has_memory(&pool, 0, MIB));
    }
}
