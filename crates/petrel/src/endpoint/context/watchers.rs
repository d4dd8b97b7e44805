//! Watchers of requests: when a caller stops waiting, closures run, and tasks are aborted.

use std::collections::hash_map;

use petrel_proto::RequestHandle;

use super::Context;
use crate::endpoint::ids::RequestMap;
use crate::local::Key;
use crate::values::State;

/// A closure with the endpoint's state.
type Closure = dyn FnOnce(State<'_>, &mut Context<'_>);

/// The action when the caller of a request stops waiting.
pub(crate) enum Watcher {
    Run(Box<Closure>),
    /// The task of the request's handler ends.
    Abort(Key),
}

impl Watcher {
    pub(crate) fn run(self, state: State<'_>, cx: &mut Context<'_>) {
        match self {
            Self::Run(run) => run(state, cx),
            Self::Abort(task) => cx.local.hub.abort(task),
        }
    }
}

/// The watchers of the requests whose callers wait.
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
        match self.by_request.entry(handle) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(watcher);
            }
            hash_map::Entry::Occupied(occupied) => {
                let first = occupied.remove();
                let both = move |mut state: State<'_>, cx: &mut Context<'_>| {
                    first.run(state.reborrow(), cx);
                    watcher.run(state, cx);
                };
                self.by_request.insert(handle, Watcher::Run(Box::new(both)));
            }
        }
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
