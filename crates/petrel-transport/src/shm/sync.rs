//! The atomics of the rings: the standard library's, or loom's in a model check (`--cfg loom`).
//!
//! Under loom only the [`ring`](super::ring) over the test's own memory may run: loom's atomics are
//! handles into its model and cannot live in shared memory.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
