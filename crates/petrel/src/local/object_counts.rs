//! The current contents of the futures' tables, for checkers: empty at the end.

/// The number of objects of the futures on an endpoint's thread.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalObjectCounts {
    /// Calls with waiting futures.
    pub calls: usize,
    /// Pending orders of futures to the event loop: starts, cancels, commands and answers.
    pub orders: usize,
    /// Sleeping futures.
    pub sleeping: usize,
    /// Tasks that have not ended.
    pub tasks: usize,
    /// Sessions watched by handles.
    pub watched: usize,
}
