//! Closures that run when the caller of a request no longer waits.

use petrel_proto::RequestHandle;

use super::Context;
use crate::endpoint::ids::RequestMap;
use crate::endpoint::state::State;

pub(crate) type Watcher = Box<dyn FnOnce(State<'_>, &mut Context<'_>)>;

/// Closures to run when the caller of a request no longer waits.
#[derive(Default)]
pub(crate) struct Watchers {
    by_request: RequestMap<Watcher>,
    /// Watchers added after their call had ended. They run in the next turn.
    late: Vec<Watcher>,
}

impl Watchers {
    /// Removes the watchers of a request that is answered.
    #[inline]
    pub(crate) fn forget(&mut self, handle: RequestHandle) {
        if !self.by_request.is_empty() {
            self.by_request.remove(&handle);
        }
    }

    /// Adds a watcher. The watchers of a request run in order of addition.
    pub(crate) fn add(&mut self, handle: RequestHandle, watcher: Watcher) {
        let watcher = match self.by_request.remove(&handle) {
            None => watcher,
            Some(first) => Box::new(|mut state: State<'_>, cx: &mut Context<'_>| {
                first(state.reborrow(), cx);
                watcher(state, cx);
            }),
        };
        self.by_request.insert(handle, watcher);
    }

    /// Takes the watchers of a request whose caller no longer waits.
    pub(crate) fn take(&mut self, handle: RequestHandle) -> Option<Watcher> {
        self.by_request.remove(&handle)
    }

    /// Adds a watcher of a request whose caller no longer waits.
    pub(crate) fn add_late(&mut self, watcher: Watcher) {
        self.late.push(watcher);
    }

    /// Takes a watcher added after its call had ended.
    pub(crate) fn pop_late(&mut self) -> Option<Watcher> {
        self.late.pop()
    }
}
