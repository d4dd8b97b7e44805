//! The right to run an endpoint's event loop, under every interleaving of its thread and of callers, up to a number of preemptions.
//!
//! The test includes the library's file, with loom's threads and atomics in place of the standard library's. The endpoint is a number in
//! a cell of loom's, which reports accesses without an order. A thread that waits for ever is a deadlock, and loom reports deadlocks,
//! too.

// Some items are unused here.
#![allow(dead_code)]

#[path = "../src/endpoint/driver/baton.rs"]
mod baton;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    pub(crate) mod thread {
        pub(crate) use loom::thread::{Thread, current, park};
        pub(crate) use std::thread::panicking;
    }
}

use baton::Baton;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Counts turns.
struct Endpoint(UnsafeCell<u32>);

impl Endpoint {
    fn turn(&self) {
        self.0.with_mut(|turns| {
            // SAFETY: loom fails the test if the accesses are not exclusive.
            unsafe { *turns += 1 }
        });
    }

    fn turns(&self) -> u32 {
        // SAFETY: the same.
        self.0.with(|turns| unsafe { *turns })
    }
}

/// Preemptions of the interleavings in a run of `cargo test`; CI runs more, by `LOOM_MAX_PREEMPTIONS`.
const PREEMPTIONS_MAX: usize = 3;

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS_MAX));
    builder.check(check);
}

/// A caller that takes the endpoint if it is free. Returns whether it was.
fn caller(baton: &Arc<Baton<Endpoint>>) -> thread::JoinHandle<bool> {
    let baton = Arc::clone(baton);
    thread::spawn(move || {
        let Some(held) = baton.try_take() else { return false };
        held.turn();
        held.turn();
        true
    })
}

/// The endpoint's thread waits for the caller that holds the endpoint, and takes the endpoint back.
fn take_back(baton: &Baton<Endpoint>) {
    while baton.try_take_back().is_none() {
        baton.park_while_taken();
    }
}

#[test]
fn the_holder_is_alone_and_the_thread_gets_the_endpoint_back() {
    model(|| {
        let baton = Arc::new(Baton::new(Endpoint(UnsafeCell::new(0))));
        let callers = [caller(&baton), caller(&baton)];
        // SAFETY: this is the endpoint's thread, and the reference is not kept.
        unsafe { baton.held() }.turn();
        baton.give();
        take_back(&baton);
        // SAFETY: the same.
        unsafe { baton.held() }.turn();
        let taken = callers.map(|caller| u32::from(caller.join().unwrap())).iter().sum::<u32>();
        assert_eq!(baton.taken(), taken as usize);
        assert_eq!(baton.end().turns(), 2 + 2 * taken);
    });
}

#[test]
fn an_endpoint_that_is_gone_is_taken_by_nobody() {
    model(|| {
        let baton = Arc::new(Baton::new(Endpoint(UnsafeCell::new(0))));
        let caller = caller(&baton);
        baton.give();
        take_back(&baton);
        let turns = baton.end().turns();
        assert_eq!(turns, 2 * u32::from(caller.join().unwrap()));
        assert!(baton.try_take().is_none() && !baton.ask());
    });
}

#[test]
fn a_caller_that_asks_is_seen_by_the_thread() {
    model(|| {
        let baton = Arc::new(Baton::new(Endpoint(UnsafeCell::new(0))));
        let asks = Arc::clone(&baton);
        let caller = thread::spawn(move || asks.ask());
        assert!(caller.join().unwrap() && baton.is_asked() && !baton.is_free());
        baton.clear_request();
        baton.give();
        assert!(baton.is_free() && !baton.is_asked() && !baton.ask());
        take_back(&baton);
        assert_eq!(baton.end().turns(), 0);
    });
}
