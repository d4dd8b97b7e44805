//! The state that an endpoint shares with other threads: the inbox, and the requests that they have.

use std::collections::HashMap;
use std::mem;

use petrel_proto::{CallFailure, RequestHandle};
use petrel_transport::wake::Waker;

use super::CallFailures;
use super::ClientShared;
use super::free_bytes::FreeBytes;
use crate::inbox::{Inbox, InboxSender, WorkFlag};
use crate::inbox_message::{InboxMessage, RunTask};
use crate::local::client_call::places::Places;
use crate::sync::{Arc, AtomicBool, Ordering};
use crate::values::StreamConfig;
use crate::values::client::ServiceKey;

/// Counters of calls from other threads ([`Client`](crate::Client)), for all clients of the endpoint together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCalls {
    /// Calls that the endpoint made for clients.
    pub made: u64,
    /// Calls that could not be made: the session had ended, its queue was full, or no memory was left.
    pub not_made: u64,
    /// Places taken now: at most `EndpointConfig::client_calls_max`.
    pub under_way: usize,
    /// Callers waiting for a place now.
    pub waiting: usize,
}

/// State shared with other threads; mostly allocated on first use.
pub(super) struct Remote {
    work_flag: WorkFlag,
    waker: Waker,
    client_calls_max: usize,
    stream_limits: (StreamConfig, usize),
    remote_inbox: Option<RemoteInbox>,
    detached: DetachedRequests,
    /// Failures of all calls of the endpoint, kept here, away from the state that every call uses.
    failures: CallFailures,
    /// Memory of requests and answers, for reuse.
    free_bytes: FreeBytes,
    /// Tasks of the application that wait for the endpoint's thread.
    deferred: Vec<RunTask>,
    /// Whether such a task has begun.
    is_bound: bool,
}

/// Created on the first use by another thread.
struct RemoteInbox {
    inbox: Inbox<InboxMessage>,
    clients: Arc<ClientShared>,
}

impl Remote {
    pub(super) fn new(
        work_flag: WorkFlag,
        waker: Waker,
        client_calls_max: usize,
        stream_limits: (StreamConfig, usize),
    ) -> Self {
        Self {
            work_flag,
            waker,
            client_calls_max,
            stream_limits,
            remote_inbox: None,
            detached: DetachedRequests::default(),
            failures: CallFailures::default(),
            free_bytes: FreeBytes::default(),
            deferred: Vec::new(),
            is_bound: false,
        }
    }

    fn remote_inbox(&mut self) -> &mut RemoteInbox {
        self.remote_inbox.get_or_insert_with(|| {
            let waker = self.waker.clone();
            let inbox = Inbox::new(self.work_flag.clone(), move || waker.wake());
            let places = Places::new(self.client_calls_max);
            let clients = ClientShared::new(inbox.sender(), places, self.stream_limits);
            RemoteInbox { inbox, clients: Arc::new(clients) }
        })
    }

    /// Returns true if `clients` belong to the endpoint.
    #[inline]
    pub(super) fn is_of(&self, clients: &Arc<ClientShared>) -> bool {
        self.remote_inbox
            .as_ref()
            .is_some_and(|remote_inbox| Arc::ptr_eq(&remote_inbox.clients, clients))
    }

    /// Returns the counters of client calls.
    pub(super) fn client_calls(&self, (made, not_made): (u64, u64)) -> ClientCalls {
        let places = self.remote_inbox.as_ref().map(|remote_inbox| remote_inbox.clients.places());
        assert!(
            places.is_none_or(|places| places.free() <= self.client_calls_max),
            "a place that is given back was taken"
        );
        ClientCalls {
            made,
            not_made,
            under_way: self.calls_under_way(),
            waiting: places.map_or(0, |places| places.waiting()),
        }
    }

    /// Returns the state for clients of this endpoint.
    pub(super) fn clients(&mut self) -> &Arc<ClientShared> {
        &self.remote_inbox().clients
    }

    /// Counts a failed call.
    #[cold]
    pub(super) fn count_failure(&mut self, failure: &CallFailure) {
        self.failures.count(failure);
    }

    /// Returns the failures of all calls of the endpoint.
    pub(super) fn failures(&self) -> CallFailures {
        self.failures
    }

    /// Takes the messages of other threads; return the empty vector to [`put_back`](Self::put_back).
    pub(super) fn take_messages(&mut self) -> Option<Vec<InboxMessage>> {
        Some(self.remote_inbox.as_mut()?.inbox.take())
    }

    /// Returns a task to begin on this thread. A task of the application gets objects of the endpoint: it waits for the endpoint's
    /// thread, and binds the endpoint to it.
    pub(super) fn admit(&mut self, task: RunTask) -> Option<RunTask> {
        if task.is_library {
            return Some(task);
        }
        if !self.remote_inbox().clients.is_on_thread() {
            self.deferred.push(task);
            return None;
        }
        self.is_bound = true;
        Some(task)
    }

    /// Returns the tasks that wait for the endpoint's thread, if this is the thread.
    pub(super) fn take_deferred(&mut self) -> Vec<RunTask> {
        match self.wants_thread() && self.remote_inbox().clients.is_on_thread() {
            true => mem::take(&mut self.deferred),
            false => Vec::new(),
        }
    }

    /// Returns true if a task waits for the endpoint's thread.
    pub(super) fn wants_thread(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns true if the endpoint stays on its thread.
    pub(super) fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Returns the number of outstanding calls of clients.
    pub(super) fn calls_under_way(&self) -> usize {
        let places = self.remote_inbox.as_ref().map(|inbox| inbox.clients.places());
        places.map_or(0, |places| self.client_calls_max - places.free())
    }

    /// Returns the memory of handled messages.
    pub(super) fn put_back(&mut self, messages: Vec<InboxMessage>) {
        self.remote_inbox().inbox.put_back(messages);
    }

    /// Frees the number of a service that the endpoint has forgotten.
    pub(super) fn free_service(&mut self, key: ServiceKey) {
        self.remote_inbox().clients.free_service(key);
    }

    /// Hands a request to another thread: returns memory for the message, the request's cancellation flag, and the
    /// way to answer.
    pub(super) fn detach(
        &mut self,
        handle: RequestHandle,
    ) -> (Vec<u8>, Arc<AtomicBool>, InboxSender<InboxMessage>) {
        let sender = self.remote_inbox().inbox.sender();
        (self.free_bytes.take(), self.detached.add(handle), sender)
    }

    /// Takes back an answered request with its flag.
    pub(super) fn attach(&mut self, handle: RequestHandle, flag: Arc<AtomicBool>) {
        self.detached.remove(handle, flag);
    }

    /// Forgets a request that was refused.
    pub(super) fn forget(&mut self, handle: RequestHandle) {
        self.detached.flags.remove(&handle);
    }

    /// Takes back the memory of an answer.
    pub(super) fn free_bytes(&mut self, bytes: Vec<u8>) {
        self.free_bytes.put_back(bytes);
    }

    /// Records that the endpoint is about to sleep. Returns false if it must not.
    pub(super) fn may_sleep(&self) -> bool {
        self.remote_inbox.as_ref().is_none_or(|remote_inbox| remote_inbox.inbox.may_sleep())
    }

    /// Sets the cancellation flag of a request whose caller no longer waits.
    pub(super) fn cancel(&mut self, handle: RequestHandle) {
        if let Some(cancelled) = self.detached.flags.remove(&handle) {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Records that the endpoint is awake.
    pub(super) fn is_awake(&self) {
        if let Some(remote_inbox) = &self.remote_inbox {
            remote_inbox.inbox.is_awake();
        }
    }
}

impl Drop for RemoteInbox {
    fn drop(&mut self) {
        // Wakes the callers that wait for a place. The inbox and the calls end their own contents.
        self.clients.places().close();
    }
}

/// Requests owned by other threads, with their cancellation flags.
#[derive(Default)]
struct DetachedRequests {
    flags: HashMap<RequestHandle, Arc<AtomicBool>>,
    /// The free list of flags.
    free: Vec<Arc<AtomicBool>>,
}

/// The most flags kept for reuse.
const FREE_FLAGS_MAX: usize = 256;

impl DetachedRequests {
    fn add(&mut self, handle: RequestHandle) -> Arc<AtomicBool> {
        let flag = self.free.pop().unwrap_or_default();
        let before = self.flags.insert(handle, Arc::clone(&flag));
        assert!(before.is_none(), "a request has one owner");
        assert!(!flag.load(Ordering::Relaxed), "the flag of a cancelled request is not used again");
        flag
    }

    /// Removes an answered request; `flag` comes back with the answer.
    fn remove(&mut self, handle: RequestHandle, flag: Arc<AtomicBool>) {
        // A cancelled request is gone already, and its flag is not reused.
        let Some(own) = self.flags.remove(&handle) else { return };
        assert!(Arc::ptr_eq(&own, &flag), "an answer comes back with the flag of its request");
        if self.free.len() < FREE_FLAGS_MAX {
            self.free.push(flag);
        }
    }
}

impl Drop for DetachedRequests {
    fn drop(&mut self) {
        // After the endpoint's end no caller waits.
        self.flags.values().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::SessionId;

    use super::*;

    fn handle(number: u64) -> RequestHandle {
        RequestHandle { session: SessionId { index: 0, generation: 1 }, number }
    }

    #[test]
    fn detached__uses_flags_again_that_came_back_with_the_answer() {
        let mut detached = DetachedRequests::default();
        let flag = detached.add(handle(1));
        detached.remove(handle(1), Arc::clone(&flag));
        assert!(detached.flags.is_empty());
        assert!(Arc::ptr_eq(&detached.add(handle(2)), &flag));
        assert!(!Arc::ptr_eq(&detached.add(handle(3)), &flag), "one for each request");
        assert_eq!((detached.flags.len(), detached.free.len()), (2, 0));
    }

    panics! {
        add__of_a_request_with_an_owner: "a request has one owner" => {
            let mut detached = DetachedRequests::default();
            detached.add(handle(1));
            detached.add(handle(1));
        };
        remove__with_the_flag_of_another_request:
            "an answer comes back with the flag of its request" => {
            let mut detached = DetachedRequests::default();
            let [_, other] = [1, 2].map(|number| detached.add(handle(number)));
            detached.remove(handle(1), other);
        };
    }

    #[test]
    fn detached__keeps_no_more_flags_than_the_most() {
        let mut detached = DetachedRequests::default();
        let handles = || (0..FREE_FLAGS_MAX as u64 + 3).map(handle);
        let flags: Vec<_> = handles().map(|handle| detached.add(handle)).collect();
        for (kept, (handle, flag)) in (1..).zip(handles().zip(flags)) {
            detached.remove(handle, flag);
            assert_eq!(detached.free.len(), FREE_FLAGS_MAX.min(kept));
        }
        assert!(detached.flags.is_empty());
    }

    /// The owner of a cancelled request may read its flag for any length of time.
    #[test]
    fn detached__does_not_use_the_flag_of_a_cancelled_request_again() {
        let mut remote =
            Remote::new(WorkFlag::new(), Waker::new().expect("a waker"), 1, Default::default());
        let flag = remote.detached.add(handle(1));
        assert!(!flag.load(Ordering::Relaxed));
        remote.cancel(handle(1));
        assert!(flag.load(Ordering::Relaxed));
        remote.detached.remove(handle(1), flag);
        assert!(remote.detached.free.is_empty());
        let kept = remote.detached.add(handle(2));
        drop(remote);
        assert!(kept.load(Ordering::Relaxed), "with the endpoint nobody waits any more");
    }
}
