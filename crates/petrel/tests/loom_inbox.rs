//! The inbox of an endpoint under every interleaving of its owner and its senders, up to a number of preemptions.
//!
//! The test includes the library's file, with loom's mutex and atomics in place of the standard library's. The owner
//! behaves like the event loop: it polls the flag, and sleeps if the flag is down. A lost wake-up is a deadlock, which
//! loom reports; a lost message is missed at the end.
//!
//! Loom's types work without `--cfg loom`, which makes this an ordinary test.

// Some items are unused here.
#![allow(dead_code)]

#[path = "../src/inbox.rs"]
mod inbox;

mod client {
    pub(crate) mod places {
        /// Named by the inbox's documentation.
        pub(crate) struct Places;
    }
}

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
    pub(crate) use std::sync::TryLockError;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

use inbox::{Inbox, InboxSender, WorkFlag};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Remembers a wake-up until a thread has slept, as a transport's waker does.
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    fn ring(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }

    fn sleep(&self) {
        let mut rang = self.0.0.lock().unwrap();
        while !*rang {
            rang = self.0.1.wait(rang).unwrap();
        }
        *rang = false;
    }
}

struct Owner {
    work_flag: WorkFlag,
    bell: Bell,
    inbox: Inbox<u32>,
}

impl Owner {
    fn new() -> Self {
        let (work_flag, bell) = (WorkFlag::new(), Bell::new());
        let ring = bell.clone();
        let inbox = Inbox::new(work_flag.clone(), move || ring.ring());
        Self { work_flag, bell, inbox }
    }

    /// Runs turns of the event loop until `count` messages have arrived.
    fn collect(&mut self, count: usize) -> Vec<u32> {
        let mut all = Vec::new();
        while all.len() < count {
            if self.work_flag.is_raised() {
                self.work_flag.clear();
                let mut messages = self.inbox.take();
                if messages.is_empty() {
                    // A sender holds the lock: its turn.
                    thread::yield_now();
                }
                all.append(&mut messages);
                self.inbox.put_back(messages);
            } else if self.inbox.may_sleep() {
                self.bell.sleep();
                self.inbox.is_awake();
            } else {
                thread::yield_now();
            }
        }
        all
    }
}

fn post_from_a_thread(
    sender: InboxSender<u32>,
    messages: &'static [u32],
) -> thread::JoinHandle<()> {
    thread::spawn(move || messages.iter().for_each(|message| sender.post(*message).unwrap()))
}

/// Preemptions of the interleavings in a run of `cargo test`, which takes a quarter of a second. All interleavings take
/// minutes; CI runs more, by `LOOM_MAX_PREEMPTIONS`.
const PREEMPTIONS_MAX: usize = 3;

/// Checks every interleaving with at most this number of preemptions.
fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS_MAX));
    builder.check(check);
}

#[test]
fn every_post_wakes_the_owner_and_comes_once() {
    model(|| {
        let mut owner = Owner::new();
        let one = post_from_a_thread(owner.inbox.sender(), &[1]);
        let two = post_from_a_thread(owner.inbox.sender(), &[2]);
        let mut all = owner.collect(2);
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        one.join().unwrap();
        two.join().unwrap();
    });
}

#[test]
fn posts_of_one_thread_come_in_order_over_several_sleeps() {
    model(|| {
        let mut owner = Owner::new();
        let sender = post_from_a_thread(owner.inbox.sender(), &[1, 2, 3]);
        assert_eq!(owner.collect(3), [1, 2, 3]);
        sender.join().unwrap();
    });
}

#[test]
fn a_post_to_an_owner_that_goes_comes_back_or_is_dropped_there() {
    model(|| {
        let work_flag = WorkFlag::new();
        let inbox = Inbox::new(work_flag, || {});
        let sender = inbox.sender();
        let dropped = Arc::new(());
        let message = Arc::clone(&dropped);
        let thread = thread::spawn(move || drop(sender.post(message)));
        drop(inbox);
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&dropped), 1, "somebody still holds it");
    });
}
