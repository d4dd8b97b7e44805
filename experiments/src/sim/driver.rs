//! Drivers of a node, and their common phase.

use std::cell::Cell;
use std::rc::Rc;

use petrel::Context;

/// The phase of all callers of a cluster.
#[derive(Debug, Default)]
pub(super) struct Phase {
    /// Whether callers make calls.
    pub(super) is_calling: Cell<bool>,
    /// Whether calls that end now count.
    pub(super) is_measuring: Cell<bool>,
}

/// A driver acts on an endpoint between turns: it makes calls, or serves requests.
pub(super) trait Driver {
    /// Returns when it acts next.
    fn next_ns(&self) -> Option<u64>;
    /// Performs the due actions.
    fn act(self: Rc<Self>, cx: &mut Context<'_>);
    /// Returns the number of calls or requests that have not ended.
    fn pending(&self) -> usize;
}
