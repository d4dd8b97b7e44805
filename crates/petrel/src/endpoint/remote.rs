//! The endpoint's interface to other threads: makes their calls and sends their answers.

use std::collections::HashMap;

use petrel_proto::{RequestHandle, Status};
use petrel_transport::Transport;
use petrel_transport::wake::Waker;

use super::context::{Context, Local};
use super::handler::{Handled, Request};
use super::service::{
    Asked, End, Message, begin_call, begin_call_at, cancel_posted, close_service, open_service,
    set_targets,
};
use super::{CallFailures, CallOptions, ClientCalls, Endpoint, spare::SpareBytes};
use crate::client::places::Places;
use crate::client::state::Pending;
use crate::client::{Client, ClientConfig, ClientShared, ServiceKey, ServiceKeys, Target};
use crate::control::ControlPlane;
use crate::events;
use crate::inbox::{Inbox, WorkFlag};
use crate::inbox_message::{Answer, InboxMessage, Refuse, StartCall};
use crate::local::Handle;
use crate::sync::{Arc, AtomicBool, Ordering, thread};
use crate::workers::{WorkerRequest, Workers};

/// State shared with other threads; mostly allocated on first use.
pub(super) struct Remote {
    work_flag: WorkFlag,
    waker: Waker,
    client_calls_max: usize,
    remote_inbox: Option<RemoteInbox>,
    running: Running,
    /// Failures of all calls of the endpoint, kept here, away from the state that every call uses.
    pub(super) failures: CallFailures,
    /// Memory of requests and answers, for reuse.
    spare: SpareBytes,
}

/// Created on the first use by another thread.
struct RemoteInbox {
    inbox: Inbox<InboxMessage>,
    clients: Arc<ClientShared>,
}

impl Remote {
    pub(super) fn new(work_flag: WorkFlag, waker: Waker, client_calls_max: usize) -> Self {
        Self {
            work_flag,
            waker,
            client_calls_max,
            remote_inbox: None,
            running: Running::default(),
            failures: CallFailures::default(),
            spare: SpareBytes::default(),
        }
    }

    fn remote_inbox(&mut self) -> &mut RemoteInbox {
        self.remote_inbox.get_or_insert_with(|| {
            let waker = self.waker.clone();
            let inbox = Inbox::new(self.work_flag.clone(), move || waker.wake());
            let clients = ClientShared {
                sender: inbox.sender(),
                places: Places::new(self.client_calls_max),
                services: ServiceKeys::default(),
                endpoint_thread: thread::current().id(),
            };
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
        let places = self.remote_inbox.as_ref().map(|remote_inbox| &remote_inbox.clients.places);
        ClientCalls {
            made,
            not_made,
            under_way: places.map_or(0, |places| self.client_calls_max - places.free()),
            waiting: places.map_or(0, |places| places.waiting()),
        }
    }

    /// Records that the endpoint is about to sleep. Returns false if it must not.
    pub(super) fn may_sleep(&self) -> bool {
        self.remote_inbox.as_ref().is_none_or(|remote_inbox| remote_inbox.inbox.may_sleep())
    }

    /// Sets the cancellation flag of a request whose caller no longer waits.
    pub(super) fn cancel(&mut self, handle: RequestHandle) {
        if let Some(cancelled) = self.running.flags.remove(&handle) {
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
        self.clients.places.close();
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Returns a client of a service on one or several servers, for any thread, with sessions of this endpoint. The
    /// client begins to connect when the event loop runs. On the endpoint's thread its calls may have continuations,
    /// too:
    ///
    /// ```
    /// # use petrel::client::ClientConfig;
    /// # use petrel::endpoint::EndpointConfig;
    /// # use petrel::Nexus;
    /// # use std::time::Duration;
    /// # const DOUBLE: u16 = 1;
    /// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    /// # let mut server = nexus.endpoint(EndpointConfig::default())?;
    /// # server.on(DOUBLE, |_, cx, request| { let n = request.data()[0]; request.reply(cx, &[2 * n]) });
    /// # let address = nexus.local_addr().expect("it listens");
    /// let mut endpoint = nexus.endpoint_with(EndpointConfig::default(), Vec::new())?;
    /// let client = endpoint.client([address], ClientConfig::default());
    /// endpoint
    ///     .call(&client, DOUBLE, &[21])
    ///     .timeout(Duration::from_secs(60))
    ///     .idempotent()
    ///     .then(|answers: &mut Vec<u8>, _, reply| answers.push(reply.message().expect("an answer")[0]))?;
    /// while endpoint.state().is_empty() {
    ///     endpoint.run_once();
    /// #   server.run_once();
    /// }
    /// assert_eq!(endpoint.state(), &[42]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Without a target.
    pub fn client<A: Into<Target>>(
        &mut self,
        targets: impl IntoIterator<Item = A>,
        config: ClientConfig,
    ) -> Client {
        self.refresh_clock();
        self.local.client(targets.into_iter().map(Into::into).collect(), config)
    }

    /// Returns the state for clients of this endpoint.
    pub(crate) fn client_shared(&mut self) -> Arc<ClientShared> {
        Arc::clone(&self.local.remote.remote_inbox().clients)
    }

    /// Sets a handler that runs on a worker pool, replacing a former one: for handlers that wait or take longer than
    /// some microseconds.
    ///
    /// When the pool's queue is full the request is answered with RESOURCE_EXHAUSTED at once.
    pub fn on_worker(
        &mut self,
        method: u16,
        workers: &Workers,
        handler: impl Fn(WorkerRequest) + Send + Sync + 'static,
    ) {
        let handler = std::sync::Arc::new(handler);
        let queue = workers.queue();
        self.set_handler(method, move |_, cx, request| {
            let (request, handled) = request.detach(cx);
            if let Err(refused) = queue.push(cx.now_ns(), handler.clone(), request) {
                let (handle, reason) = refused.into_parts();
                refuse(cx.local, handle, reason.status(), reason.text());
            }
            handled
        });
    }

    /// Handles the messages of other threads. Returns true if there were any.
    pub(super) fn handle_posts(&mut self) {
        let Some(remote_inbox) = &mut self.local.remote.remote_inbox else { return };
        let mut messages = remote_inbox.inbox.take();
        let mut closed = Vec::new();
        let cx = &mut Context::<()>::new(&mut self.local);
        for message in messages.drain(..) {
            match message {
                InboxMessage::Answer(answer) => give_answer(cx, answer),
                InboxMessage::Refuse(Refuse { handle, status, text }) => {
                    refuse(cx.local, handle, status, text);
                }
                InboxMessage::Start(start) => start_call(cx, start),
                InboxMessage::Cancel(state) => cancel_posted(cx, &state),
                InboxMessage::OpenService(open) => open_service(cx, *open),
                InboxMessage::SetTargets(key, targets) => set_targets(cx, key, targets),
                InboxMessage::Run(begin) => begin(&Handle::new(cx.local.hub.clone())),
                InboxMessage::CloseService(key) => {
                    close_service(cx.local, key);
                    closed.push(key);
                }
            }
        }
        if let Some(remote_inbox) = &mut self.local.remote.remote_inbox {
            remote_inbox.inbox.put_back(messages);
            closed.into_iter().for_each(|key| remote_inbox.clients.services.give_back(key));
        }
    }
}

impl Local {
    /// Creates a client with sessions of this endpoint.
    pub(crate) fn client(&mut self, targets: Vec<Target>, config: ClientConfig) -> Client {
        assert!(!targets.is_empty(), "a client has a target");
        let clients = Arc::clone(&self.remote.remote_inbox().clients);
        let (client, open) = Client::of_endpoint(clients, targets, config);
        open_service(&mut Context::new(self), open);
        client
    }

    /// Makes a call at once if `clients` belong to this endpoint.
    pub(crate) fn start_own(&mut self, clients: &Arc<ClientShared>, start: &mut Option<StartCall>) {
        if self.remote.is_of(clients)
            && let Some(start) = start.take()
        {
            start_call(&mut Context::new(self), start);
        }
    }

    /// Returns true if `clients` belong to this endpoint.
    #[inline]
    pub(crate) fn is_of(&self, clients: &Arc<ClientShared>) -> bool {
        self.remote.is_of(clients)
    }

    /// Makes a call that a task of this endpoint has begun at `clock_ns`, and that ends at `end_ns`.
    #[inline(always)]
    pub(crate) fn start_awaited(
        &mut self,
        (service, method): (ServiceKey, u16),
        request: Vec<u8>,
        options: &CallOptions,
        (clock_ns, end_ns): (u64, u64),
        pending: Pending,
    ) {
        let Some(service) = self.services.find(service) else { return client_gone(pending) };
        let (message, end) = (Message::Bytes(request, None), End::Posted(pending));
        let asked = Asked { method, message, room: None, options, end_ns, end };
        begin_call_at(&mut Context::new(self), service, asked, Some(clock_ns));
    }
}

#[cold]
fn client_gone(pending: Pending) {
    pending.end_unsent(Status::Unavailable, "the client is gone");
}

/// Makes the call of a client's handle.
fn start_call(cx: &mut Context<'_>, start: StartCall) {
    let StartCall { pending, service, method, request, options } = start;
    if !pending.is_wanted() {
        return;
    }
    let Some(service) = cx.local.services.find(service) else { return client_gone(pending) };
    let (message, end) = (Message::Bytes(request, None), End::Posted(pending));
    let end_ns = options.deadline_ns.expect("a client's call has a time, and has begun");
    let asked = Asked { method, message, room: None, options: &options, end_ns, end };
    begin_call(cx, service, asked);
}

impl Request<'_> {
    /// Copies the request, for any thread or task to answer.
    ///
    /// Only the sessions' slots limit the number of detached requests: a handler should use a bounded channel, or a
    /// semaphore. For threads of a pool there is [`Endpoint::on_worker`].
    pub fn detach<S: 'static>(self, cx: &mut Context<'_, S>) -> (WorkerRequest, Handled) {
        let Request { handle: &handle, method, payload, .. } = self;
        let deadline_ns = cx.deadline_ns();
        let Local { core, remote, sessions, .. } = &mut *cx.local;
        let sender = remote.remote_inbox().inbox.sender();
        let mut data = remote.spare.take();
        data.extend_from_slice(payload.data());
        core.watch(handle);
        let cancelled = remote.running.add(handle);
        let request = WorkerRequest::new(handle, method, deadline_ns, data, cancelled, sender)
            .with_peer(sessions.peer_of(handle.session).cloned());
        (request, Handled(None))
    }
}

fn give_answer(cx: &mut Context<'_>, answer: Answer) {
    let Answer { handle, status, message, cancelled } = answer;
    cx.local.remote.running.remove(handle, cancelled);
    match cx.alloc_message(&message) {
        Ok(buffer) => cx.respond(handle, status, buffer),
        Err(_) => {
            let text = "the server has no memory left";
            cx.local.core.respond_error(handle, Status::ResourceExhausted, text);
        }
    }
    cx.local.remote.spare.put_back(message);
}

fn refuse(local: &mut Local, handle: RequestHandle, status: Status, text: &'static str) {
    local.remote.running.flags.remove(&handle);
    events::request_refused(handle.session, status, text);
    local.core.refuse(handle, status, text);
}

/// Requests owned by other threads, with their cancellation flags.
#[derive(Default)]
struct Running {
    flags: HashMap<RequestHandle, Arc<AtomicBool>>,
    spare: Vec<Arc<AtomicBool>>,
}

/// Most flags kept for reuse.
const SPARE_FLAGS_MAX: usize = 256;

impl Running {
    fn add(&mut self, handle: RequestHandle) -> Arc<AtomicBool> {
        let flag = self.spare.pop().unwrap_or_default();
        self.flags.insert(handle, Arc::clone(&flag));
        flag
    }

    /// Removes an answered request; `flag` comes back with the answer.
    fn remove(&mut self, handle: RequestHandle, flag: Arc<AtomicBool>) {
        // A cancelled request is gone already, and its flag is not reused.
        if self.flags.remove(&handle).is_some() && self.spare.len() < SPARE_FLAGS_MAX {
            self.spare.push(flag);
        }
    }
}

impl Drop for Running {
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
    fn running__uses_flags_again_that_came_back_with_the_answer() {
        let mut running = Running::default();
        let flag = running.add(handle(1));
        running.remove(handle(1), Arc::clone(&flag));
        assert!(running.flags.is_empty());
        assert!(Arc::ptr_eq(&running.add(handle(2)), &flag));
        assert!(!Arc::ptr_eq(&running.add(handle(3)), &flag), "one for each request");
        assert_eq!((running.flags.len(), running.spare.len()), (2, 0));
    }

    #[test]
    fn running__keeps_no_more_flags_than_the_most() {
        let mut running = Running::default();
        let handles = || (0..SPARE_FLAGS_MAX as u64 + 3).map(handle);
        let flags: Vec<_> = handles().map(|handle| running.add(handle)).collect();
        for (kept, (handle, flag)) in (1..).zip(handles().zip(flags)) {
            running.remove(handle, flag);
            assert_eq!(running.spare.len(), SPARE_FLAGS_MAX.min(kept));
        }
        assert!(running.flags.is_empty());
    }

    /// The owner of a cancelled request may read its flag for any length of time.
    #[test]
    fn running__does_not_use_the_flag_of_a_cancelled_request_again() {
        let mut remote = Remote::new(WorkFlag::new(), Waker::new().expect("a waker"), 1);
        let flag = remote.running.add(handle(1));
        assert!(!flag.load(Ordering::Relaxed));
        remote.cancel(handle(1));
        assert!(flag.load(Ordering::Relaxed));
        remote.running.remove(handle(1), flag);
        assert!(remote.running.spare.is_empty());
        let kept = remote.running.add(handle(2));
        drop(remote);
        assert!(kept.load(Ordering::Relaxed), "with the endpoint nobody waits any more");
    }
}
