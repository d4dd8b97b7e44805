//! The wakers of all endpoints of a fabric.
//!
//! A waker is used while an actor runs, or between two runs. After each turn the simulation collects the
//! used wakers. An `epoll` finds them in a single system call for all endpoints, and no system call happens
//! while the wakers' common counter is unchanged.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use petrel_transport::wake::Waker;
use rustix::event::{Timespec, epoll};

use super::packet::SimAddr;

/// Wakers collected by one system call.
const BATCH: usize = 64;

#[derive(Debug)]
pub(super) struct Wakers {
    epoll: OwnedFd,
    by_key: RefCell<BTreeMap<u64, (Waker, SimAddr)>>,
    next_key: Cell<u64>,
    /// The number of uses of all wakers.
    used: Arc<AtomicU64>,
    /// The value of `used` at the last query of the kernel.
    used_before: Cell<u64>,
}

impl Wakers {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            by_key: RefCell::new(BTreeMap::new()),
            next_key: Cell::new(0),
            used: Arc::default(),
            used_before: Cell::new(0),
        })
    }

    /// Makes a waker for the owner of the port `at`. Returns its key.
    pub(super) fn add(&self, at: SimAddr) -> io::Result<u64> {
        let used = Arc::clone(&self.used);
        let count = move || {
            used.fetch_add(1, Ordering::Release);
        };
        let waker = Waker::with_bell(count)?;
        let key = self.next_key.get();
        let data = epoll::EventData::new_u64(key);
        epoll::add(&self.epoll, &waker, data, epoll::EventFlags::IN)?;
        self.by_key.borrow_mut().insert(key, (waker, at));
        self.next_key.set(key + 1);
        Ok(key)
    }

    /// Removes a waker; using it has no effect from then on.
    pub(super) fn remove(&self, key: u64) {
        if let Some((waker, _)) = self.by_key.borrow_mut().remove(&key) {
            // Clones may keep the descriptor open: closing ours would not remove the entry.
            let _ = epoll::delete(&self.epoll, &waker);
        }
    }

    pub(super) fn give(&self, key: u64) -> Waker {
        let by_key = self.by_key.borrow();
        let (waker, _) = by_key.get(&key).expect("a transport keeps its waker until it is dropped");
        waker.clone()
    }

    /// Returns the ports of wakers used since the last call, in order of the wakers' creation.
    pub(super) fn take_woken(&self) -> Vec<SimAddr> {
        // Pairs with the increment, which follows the write to the descriptor: the descriptor is readable.
        let used = self.used.load(Ordering::Acquire);
        if self.used_before.replace(used) == used {
            return Vec::new();
        }
        let mut keys = Vec::new();
        loop {
            let before = keys.len();
            self.take_batch(&mut keys);
            if keys.len() - before < BATCH {
                break;
            }
        }
        keys.sort_unstable();
        let by_key = self.by_key.borrow();
        keys.iter().filter_map(|key| Some(by_key.get(key)?.1)).collect()
    }

    /// Adds the keys of some used wakers, and resets these wakers.
    fn take_batch(&self, keys: &mut Vec<u64>) {
        let mut events = [const { MaybeUninit::uninit() }; BATCH];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The call cannot fail: without a wait, no signal interrupts it, and the descriptor is ours.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&at_once)) else {
            unreachable!("an epoll without a wait");
        };
        let by_key = self.by_key.borrow();
        for event in ready {
            let key = event.data.u64();
            if let Some((waker, _)) = by_key.get(&key) {
                waker.drain();
            }
            keys.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::topology::HostId;

    #[test]
    fn take_woken__names_each_once_in_order() {
        let wakers = Wakers::new().unwrap();
        let at = |port| SimAddr::new(HostId(0), port);
        let keys: Vec<u64> = (0..200).map(|port| wakers.add(at(port)).unwrap()).collect();
        assert!(wakers.take_woken().is_empty());
        let given: Vec<Waker> = keys.iter().map(|&key| wakers.give(key)).collect();
        given.iter().rev().for_each(Waker::wake);
        given[3].wake();
        assert_eq!(wakers.take_woken(), (0..200).map(at).collect::<Vec<_>>());
        assert!(wakers.take_woken().is_empty());
        wakers.remove(keys[5]);
        given[5].wake();
        given[6].wake();
        assert_eq!(wakers.take_woken(), [at(6)]);
    }
}
