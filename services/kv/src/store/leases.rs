//! Leases: keys that go when their lease ends.
//!
//! A store has no clock. The *lease clock* is a number that commands of the leader advance
//! ([`Command::Advance`](crate::command::Command::Advance)), and all replicas therefore agree which leases have ended.
//! The time of a lease begins with the first advance after its grant or keep-alive: counted from the clock's former
//! value, the time would have begun before the keep-alive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use petrel_planted::planted;

use super::history::Keys;
use crate::api::LeaseOutcome;
use crate::command::LeaseOp;
use crate::limits::{LEASE_ENDS_MAX, LEASE_KEYS_MAX, LEASES_MAX};

/// Memory of a lease, and of a key of a lease beside the key's bytes, about, in bytes.
const LEASE_BYTES: u64 = 200;
const LEASED_KEY_BYTES: u64 = 120;

/// All leases, and the lease clock.
#[derive(Debug, Default)]
pub(super) struct Leases {
    clock_ms: u64,
    by_id: BTreeMap<u64, Arc<Lease>>,
    /// Leases whose time has begun, by their ends.
    ends: BTreeSet<(u64, u64)>,
    /// Leases that were granted or kept alive since the last advance.
    fresh: BTreeSet<u64>,
    /// The lease of each leased key.
    holders: HashMap<Arc<[u8]>, u64>,
    /// Bytes of the leased keys.
    key_bytes: u64,
}

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) ttl_ms: u64,
    /// The value of the lease clock after which the lease ends. None while its time has not begun.
    pub(crate) end_ms: Option<u64>,
    pub(crate) keys: BTreeSet<Arc<[u8]>>,
}

impl Lease {
    /// The time left at a value of the lease clock, in milliseconds.
    pub(crate) fn left_ms(&self, clock_ms: u64) -> u64 {
        self.end_ms.map_or(self.ttl_ms, |end_ms| end_ms.saturating_sub(clock_ms))
    }

    /// The keys from a bound on, in order.
    pub(crate) fn keys_from(&self, from: Bound<&[u8]>) -> impl Iterator<Item = &Arc<[u8]>> {
        self.keys.range::<[u8], _>((from, Bound::Unbounded))
    }
}

impl Leases {
    pub(super) fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The number of leased keys.
    pub(super) fn keys(&self) -> usize {
        self.holders.len()
    }

    /// The memory of all leases, about, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let (leases, keys) = (self.by_id.len() as u64, self.holders.len() as u64);
        leases * LEASE_BYTES + keys * LEASED_KEY_BYTES + self.key_bytes
    }

    pub(super) fn get(&self, id: u64) -> Option<&Lease> {
        self.by_id.get(&id).map(|lease| &**lease)
    }

    /// The leases from a number on.
    pub(super) fn from(&self, id: u64) -> impl Iterator<Item = (u64, &Lease)> {
        self.by_id.range(id..).map(|(id, lease)| (*id, &**lease))
    }

    /// A copy of all leases.
    pub(super) fn image(&self) -> Vec<(u64, Arc<Lease>)> {
        self.by_id.iter().map(|(id, lease)| (*id, Arc::clone(lease))).collect()
    }

    /// Returns true if the time of a lease waits for an advance of the clock to begin.
    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Returns true if a lease has ended by this value of the clock.
    pub(super) fn has_ended(&self, clock_ms: u64) -> bool {
        self.ends.first().is_some_and(|(end_ms, _)| *end_ms < clock_ms)
    }

    /// Executes an operation at a revision.
    pub(super) fn execute(&mut self, map: &mut Keys, revision: u64, op: &LeaseOp) -> LeaseOutcome {
        match *op {
            LeaseOp::Grant { .. } if self.by_id.len() >= LEASES_MAX => LeaseOutcome::TooMany,
            LeaseOp::Grant { ttl_ms } => {
                self.add(revision, ttl_ms, None);
                LeaseOutcome::Granted
            }
            LeaseOp::KeepAlive { lease } => match self.by_id.get_mut(&lease) {
                Some(kept) => {
                    let kept = Arc::make_mut(kept);
                    let end_ms = kept.end_ms.take();
                    let ended = end_ms.is_none_or(|end_ms| self.ends.remove(&(end_ms, lease)));
                    assert!(ended, "a lease is fresh, or has an end");
                    if planted("kv_lease_from_former_advance") {
                        self.set_end(lease);
                    } else {
                        self.fresh.insert(lease);
                    }
                    LeaseOutcome::Kept
                }
                None => LeaseOutcome::Unknown,
            },
            LeaseOp::Revoke { lease } => match self.end(map, lease) {
                Some(keys) => LeaseOutcome::Revoked { keys: keys as u32 },
                None => LeaseOutcome::Unknown,
            },
        }
    }

    /// Adds a lease.
    pub(super) fn add(&mut self, id: u64, ttl_ms: u64, end_ms: Option<u64>) {
        let lease = Lease { ttl_ms, end_ms, keys: BTreeSet::new() };
        assert!(self.by_id.insert(id, Arc::new(lease)).is_none(), "a lease has its own number");
        match end_ms {
            Some(end_ms) => drop(self.ends.insert((end_ms, id))),
            None => drop(self.fresh.insert(id)),
        }
    }

    /// Returns the reason why a lease does not take a key, beside `others` further keys.
    pub(super) fn refusal(&self, key: &[u8], id: u64, others: usize) -> Option<LeaseOutcome> {
        let Some(lease) = self.by_id.get(&id) else { return Some(LeaseOutcome::Unknown) };
        let is_full = lease.keys.len() + others >= LEASE_KEYS_MAX && !lease.keys.contains(key);
        is_full.then_some(LeaseOutcome::TooManyKeys)
    }

    /// Gives a key to a lease, which must take the key.
    pub(super) fn attach(&mut self, key: &[u8], id: u64) {
        if self.holders.get(key) == Some(&id) {
            return;
        }
        self.detach(key);
        let key: Arc<[u8]> = key.into();
        let lease = self.by_id.get_mut(&id).expect("the lease takes the key");
        Arc::make_mut(lease).keys.insert(Arc::clone(&key));
        self.key_bytes += key.len() as u64;
        self.holders.insert(key, id);
    }

    pub(super) fn is_leased(&self, key: &[u8]) -> bool {
        self.holders.contains_key(key)
    }

    /// Takes a key from its lease, if the key has one.
    #[inline]
    pub(super) fn detach(&mut self, key: &[u8]) {
        if self.holders.is_empty() {
            return;
        }
        if let Some(id) = self.holders.remove(key) {
            self.key_bytes -= key.len() as u64;
            let lease = self.by_id.get_mut(&id).expect("a key's lease exists");
            assert!(Arc::make_mut(lease).keys.remove(key), "a lease knows its keys");
        }
    }

    /// Advances the clock, begins the time of fresh leases, and ends leases whose time is over.
    pub(super) fn advance(&mut self, map: &mut Keys, clock_ms: u64) {
        self.clock_ms = self.clock_ms.max(clock_ms);
        for id in std::mem::take(&mut self.fresh) {
            self.set_end(id);
        }
        let mut ended = 0;
        while let Some((end_ms, id)) = self.ends.first().copied()
            && end_ms < self.clock_ms
            && ended < LEASE_ENDS_MAX
        {
            ended += 1 + self.end(map, id).expect("a lease with an end exists");
        }
    }

    /// Begins to count the time of a lease.
    fn set_end(&mut self, id: u64) {
        let lease = Arc::make_mut(self.by_id.get_mut(&id).expect("a fresh lease exists"));
        let end_ms = self.clock_ms + lease.ttl_ms;
        lease.end_ms = Some(end_ms);
        self.ends.insert((end_ms, id));
    }

    /// Ends a lease, and removes its keys. Returns their number.
    fn end(&mut self, map: &mut Keys, id: u64) -> Option<usize> {
        let lease = self.by_id.remove(&id)?;
        match lease.end_ms {
            Some(end_ms) => self.ends.remove(&(end_ms, id)),
            None => self.fresh.remove(&id),
        };
        for key in &lease.keys {
            self.key_bytes -= key.len() as u64;
            assert_eq!(self.holders.remove(key), Some(id), "a leased key has one lease");
            map.remove_leased(key);
        }
        Some(lease.keys.len())
    }

    /// Sets the clock of an image.
    pub(super) fn resume_clock(&mut self, clock_ms: u64) {
        self.clock_ms = clock_ms;
    }
}
