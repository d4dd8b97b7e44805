//! Endpoints, clients and workers on threads scheduled by a model checker:
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle \
//!   cargo test -p petrel-rpc --test threads --release
//! ```
//!
//! Each seed is a world: two endpoints with real event loops, a pool of workers, and threads that call, cancel, wait
//! and leave. The seed draws the world and the order of the threads; the same seed repeats the run.
//! `PETREL_THREADS_SEED` sets the first seed, `PETREL_THREADS_SEEDS` the number of seeds.
//!
//! | file | contents |
//! | --- | --- |
//! | `schedule` | the choice of the next thread |
//! | `medium` | transport and control plane within the process |
//! | `spec` | the parameters drawn from a seed |
//! | `ledger` | every call, and its allowed outcomes |
//! | `caller`, `service`, `world` | the threads |
//! | `nexus` | the queues between endpoints and the nexus, by themselves |
#![cfg(shuttle)]
#![allow(non_snake_case)]

mod caller;
mod ledger;
mod medium;
mod nexus;
mod rng;
mod schedule;
mod service;
mod spec;
mod world;

/// Stands in for the library's module in included library files.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard, PoisonError};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

use petrel::unstable::control;
use std::panic::{self, AssertUnwindSafe};

use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use schedule::Chooser;

/// More steps than any world needs: a world that reaches the limit does not end.
const STEPS_MAX: usize = 1_000_000;

/// Bytes of a thread's stack: a turn of the event loop needs more than shuttle's default.
const STACK_BYTES: usize = 256 << 10;

/// The number of worlds that covers every outcome.
const ENOUGH_SEEDS: u64 = 2_000;

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

#[test]
fn worlds__hold_in_every_order() {
    let first = from_environment("PETREL_THREADS_SEED", 1);
    let count = from_environment("PETREL_THREADS_SEEDS", ENOUGH_SEEDS);
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.stack_size = STACK_BYTES;
    config.silence_warnings = true;
    let runner = Runner::new(Chooser::new(first..first + count), config);
    let ran = panic::catch_unwind(AssertUnwindSafe(|| {
        runner.run(|| world::run(&spec::Spec::draw(schedule::current_seed())))
    }));
    if let Err(failure) = ran {
        let seed = schedule::current_seed();
        eprintln!("seed {seed}: {:#?}", spec::Spec::draw(seed));
        eprintln!("again: PETREL_THREADS_SEED={seed} PETREL_THREADS_SEEDS=1");
        panic::resume_unwind(failure);
    }
    eprintln!("{count} seeds from {first}: {}", ledger::totals());
    let unseen = ledger::unseen();
    assert!(count < ENOUGH_SEEDS || unseen.is_empty(), "no world has {unseen:?}");
}
