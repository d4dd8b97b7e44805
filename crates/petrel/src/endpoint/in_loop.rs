//! Whether an endpoint's event loop runs on a thread, which must not wait then.

use std::cell::Cell;

use crate::local::Hub;
use crate::sync::thread_local;

thread_local! {
    /// The number of nested event loops on this thread.
    static LOOPS: Cell<u32> = const { Cell::new(0) };
}

/// While this value exists, an event loop runs on the thread.
pub(crate) struct InLoop(());

impl InLoop {
    pub(crate) fn enter() -> Self {
        LOOPS.with(|loops| loops.set(loops.get() + 1));
        Self(())
    }
}

impl Drop for InLoop {
    fn drop(&mut self) {
        LOOPS.with(|loops| {
            let others = loops.get().checked_sub(1);
            loops.set(others.expect("a loop that ends was entered on this thread"));
        });
    }
}

/// Returns true if an endpoint's event loop, as far as it is known, runs on this thread.
pub(crate) fn runs_loop() -> bool {
    LOOPS.with(Cell::get) > 0 || Hub::with_current(|_| ()).is_some()
}
