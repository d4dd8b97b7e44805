//! A request owned by a thread other than its endpoint's.

use std::fmt;
use std::mem;
use std::time::Duration;

use petrel_proto::{RequestHandle, SessionId, Status};

use crate::endpoint::{CallBuilder, Callee, Caller, IntoMessage, Peer};
use crate::inbox::InboxSender;
use crate::inbox_message::{Answer, InboxMessage, Refuse};
use crate::sync::{Arc, AtomicBool, Ordering, now_ns, thread};
use crate::time::Time;
use crate::values::CallOptions;

/// A request that any thread can own and answer.
///
/// It is `Send`, and can move to another thread or into a task; its owner answers by [`WorkerRequest::reply`] or
/// [`WorkerRequest::fail`]. Dropping it without an answer, also because of a panic, answers the request with INTERNAL.
///
/// If the endpoint is gone, or the client has given up, the answer is dropped.
///
/// ```
/// use petrel::workers::Workers;
///
/// let workers = Workers::builder().threads(2).start()?;
/// let server = petrel::Server::bind("127.0.0.1:0").serve(|_| (), move |endpoint| {
///     endpoint.on_worker(1, &workers, |request| {
///         // May block, and takes the request by value.
///         let text = request.data().to_ascii_uppercase();
///         request.reply(&text);
///     });
/// });
/// let server = server.start()?;
/// let client = petrel::Client::connect_wait(server.local_addr())?;
/// assert_eq!(client.call(1, "petrel").wait()?, b"PETREL");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WorkerRequest {
    handle: RequestHandle,
    method: u16,
    deadline: Option<Time>,
    data: Vec<u8>,
    /// Set by the endpoint. `None` once the request is answered.
    cancelled: Option<Arc<AtomicBool>>,
    sender: InboxSender<InboxMessage>,
    peer: Option<std::sync::Arc<Peer>>,
}

impl WorkerRequest {
    pub(crate) fn new(
        handle: RequestHandle,
        method: u16,
        deadline: Option<Time>,
        data: Vec<u8>,
        cancelled: Arc<AtomicBool>,
        sender: InboxSender<InboxMessage>,
    ) -> Self {
        Self { handle, method, deadline, data, cancelled: Some(cancelled), sender, peer: None }
    }

    /// Posts a message to the endpoint, if it still exists.
    pub(crate) fn post(&self, message: InboxMessage) {
        let _ = self.sender.post(message);
    }

    pub(crate) fn with_peer(mut self, peer: Option<std::sync::Arc<Peer>>) -> Self {
        self.peer = peer;
        self
    }

    /// Returns the message.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Takes the message, to keep or change it; afterwards [`WorkerRequest::data`] is empty. A reply made in its memory
    /// costs no allocation.
    pub fn take_data(&mut self) -> Vec<u8> {
        mem::take(&mut self.data)
    }

    /// Returns the called method.
    pub fn method(&self) -> u16 {
        self.method
    }

    /// Returns the session of the request.
    pub fn session(&self) -> SessionId {
        self.handle.session
    }

    /// Returns the caller's identity. `None` if the session had ended before the handler ran.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_deref()
    }

    /// Returns the request's deadline, if any, on the endpoint's clock.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Returns the time left until the request's deadline, if any.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|end| end.since(Time::from_ns(now_ns())))
    }

    /// Returns true if the response is no longer wanted: the caller has cancelled the call, or it expired, or the
    /// session or the endpoint is gone. A long handler should check at intervals, and drop the request if true.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.as_ref().is_none_or(|cancelled| cancelled.load(Ordering::Relaxed))
    }

    /// Answers with a message, copied into the request's memory.
    pub fn reply(mut self, message: &[u8]) {
        let mut answer = self.take_data();
        answer.clear();
        answer.extend_from_slice(message);
        self.answer(Status::Ok, answer);
    }

    /// Answers with a message.
    pub fn reply_vec(mut self, message: Vec<u8>) {
        self.answer(Status::Ok, message);
    }

    /// Answers with an error and a message for people.
    ///
    /// # Panics
    /// When the status is OK.
    pub fn fail(mut self, status: Status, message: &str) {
        assert!(status != Status::Ok, "a failure has a status other than OK");
        self.answer(status, message.into());
    }

    /// Answers that the handler was not and will not be run.
    pub(crate) fn refuse(mut self, status: Status, text: &'static str) {
        self.cancelled = None;
        self.post(InboxMessage::Refuse(Refuse { handle: self.handle, status, text }));
    }

    /// Returns the duty to answer to the endpoint, on its own thread.
    pub(crate) fn into_handle(mut self) -> RequestHandle {
        self.cancelled = None;
        self.handle
    }

    fn answer(&mut self, status: Status, message: Vec<u8>) {
        let Some(cancelled) = self.cancelled.take() else { return };
        let answer = Answer { handle: self.handle, status, message, cancelled };
        // Without the endpoint no caller waits for the answer.
        self.post(InboxMessage::Answer(answer));
    }
}

impl CallOptions {
    /// Ends the call no later than the deadline of a request, if any: for calls made for the request outside its
    /// handler.
    #[must_use]
    pub fn within(self, request: &WorkerRequest) -> Self {
        self.no_later_than(request.deadline().map(Time::as_ns))
    }
}

impl<P: Caller, M: IntoMessage, C: Callee> CallBuilder<P, M, C> {
    /// Ends the call no later than the deadline of a request, if any: for calls made for the request outside its
    /// handler. Calls in its handler inherit the deadline.
    pub fn within(self, request: &WorkerRequest) -> Self {
        self.map_options(|options| options.within(request))
    }
}

impl Drop for WorkerRequest {
    fn drop(&mut self) {
        if self.cancelled.is_some() {
            let text = match thread::panicking() {
                true => "the handler panicked",
                false => "the handler dropped the request",
            };
            self.answer(Status::Internal, text.into());
        }
    }
}

impl fmt::Debug for WorkerRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (handle, len) = (self.handle, self.data.len());
        write!(f, "WorkerRequest({handle:?}, method {}, {len} B)", self.method)
    }
}
