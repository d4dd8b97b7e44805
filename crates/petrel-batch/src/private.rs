//! The parts of which generated code is made. No part of the crate's interface: names may change in any version.

use core::marker::PhantomData;
use core::mem::needs_drop;

pub use crate::list::List;
pub use crate::prefetch::{fetch_write, prefetch_lines as fetch};
pub use crate::question::{FromResidual, branch};

/// Refuses a local that needs drop and in whose scope a mark stands: the mark would end the local early.
///
/// ```compile_fail
/// # use petrel_batch::batched;
/// # use std::sync::Mutex;
/// #[batched]
/// fn sum(#[shared] table: &[u32], #[shared] lock: &Mutex<u32>, at: usize) -> u32 {
///     if at == 0 && let Ok(guard) = lock.lock() {
///         prefetch!(&table[at]);
///     }
///     table[at]
/// }
/// # sum_batch(&[1], &Mutex::new(2), [0], |_, _| {});
/// ```
#[inline(always)]
pub fn no_drop<T>(_: &T) {
    const {
        assert!(
            !needs_drop::<T>(),
            "a local in whose scope a mark stands must not need drop: end its scope before the mark, by a block around it"
        );
    };
}

/// Refuses an unnamed value that needs drop and lives across a mark: the mark would end the value early.
///
/// ```compile_fail
/// # use petrel_batch::batched;
/// # use std::sync::Mutex;
/// #[batched]
/// fn sum(#[shared] table: &[u32], #[shared] lock: &Mutex<u32>, at: usize) -> u32 {
///     let guard;
///     guard = lock.lock();
///     prefetch!(&table[at]);
///     table[at]
/// }
/// # sum_batch(&[1], &Mutex::new(2), [0], |_, _| {});
/// ```
#[inline(always)]
pub fn no_temporary<T>(value: T) -> T {
    const {
        assert!(
            !needs_drop::<T>(),
            "a value that lives across a mark must not need drop: bind the value by `let` in a block that ends before the mark"
        );
    };
    value
}

/// Passes on the values that a lane keeps across a mark, none of which may need drop.
#[inline(always)]
pub fn kept<T>(values: T) -> T {
    no_drop(&values);
    values
}

/// Gives an expression the same type in each state of a batch, although a state contains some of its branches only.
#[inline(always)]
pub fn tie<T>(_: &PhantomData<T>, value: T) -> T {
    value
}

/// Moves the lanes that have an input to the front, in their order, and returns their number.
pub fn busy_first<L>(lanes: &mut [L], is_busy: impl Fn(&L) -> bool) -> usize {
    let mut busy = 0;
    for lane in 0..lanes.len() {
        if is_busy(&lanes[lane]) {
            lanes.swap(busy, lane);
            busy += 1;
        }
    }
    busy
}
