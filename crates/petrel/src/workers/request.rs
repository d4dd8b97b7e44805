//! A request that belongs to another thread than its endpoint's.

use std::fmt;
use std::mem;
use std::time::Duration;

use petrel_proto::{RequestHandle, SessionId, Status};

use crate::endpoint::Peer;
use crate::inbox::Poster;
use crate::post::{Answer, Post, Refuse};
use crate::sync::{Arc, AtomicBool, Ordering, now_ns, thread};

/// A request that any thread can have and answer: with its bytes, and the right and duty to answer.
///
/// It is `Send`, so that it may go on to another thread or into a task; whoever has it answers it by
/// [`WorkerRequest::reply`] or [`WorkerRequest::fail`]. Dropping it without an answer, also because
/// a handler panics, answers the request with INTERNAL.
///
/// When the endpoint is gone, or the client has given up, the answer goes nowhere.
pub struct WorkerRequest {
    handle: RequestHandle,
    method: u16,
    deadline_ns: Option<u64>,
    data: Vec<u8>,
    /// Set by the endpoint. `None` once the request is answered.
    cancelled: Option<Arc<AtomicBool>>,
    poster: Poster<Post>,
    peer: Option<std::sync::Arc<Peer>>,
}

impl WorkerRequest {
    pub(crate) fn new(
        handle: RequestHandle,
        method: u16,
        deadline_ns: Option<u64>,
        data: Vec<u8>,
        cancelled: Arc<AtomicBool>,
        poster: Poster<Post>,
    ) -> Self {
        Self { handle, method, deadline_ns, data, cancelled: Some(cancelled), poster, peer: None }
    }

    pub(crate) fn with_peer(mut self, peer: Option<std::sync::Arc<Peer>>) -> Self {
        self.peer = peer;
        self
    }

    /// The message.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The message, to keep or to change; afterwards [`WorkerRequest::data`] is empty. An answer that
    /// is made in its memory costs no allocation.
    pub fn take_data(&mut self) -> Vec<u8> {
        mem::take(&mut self.data)
    }

    /// The method that was called.
    pub fn method(&self) -> u16 {
        self.method
    }

    /// The session on which the request came.
    pub fn session(&self) -> SessionId {
        self.handle.session
    }

    /// Who called. `None` if the session had ended before the handler ran.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_deref()
    }

    /// When the request's deadline is over, if it has one, in nanoseconds of the endpoint's clock.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// What is left until the request's deadline, if it has one.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns())))
    }

    /// Whether nobody waits for the answer any more: the caller has cancelled the call, or it expired,
    /// or the session or the endpoint is gone. A handler that takes long looks now and then, and drops the
    /// request when it is so.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.as_ref().is_none_or(|cancelled| cancelled.load(Ordering::Relaxed))
    }

    /// Answers with a message, which is copied into the memory of the request's.
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

    /// Answers that the handler was not run, and will not be.
    pub(crate) fn refuse(mut self, status: Status, text: &'static str) {
        self.cancelled = None;
        let _ = self.poster.post(Post::Refuse(Refuse { handle: self.handle, status, text }));
    }

    /// Gives the duty to answer back to the endpoint, on its own thread.
    pub(crate) fn into_handle(mut self) -> RequestHandle {
        self.cancelled = None;
        self.handle
    }

    fn answer(&mut self, status: Status, message: Vec<u8>) {
        let Some(cancelled) = self.cancelled.take() else { return };
        let answer = Answer { handle: self.handle, status, message, cancelled };
        // Without the endpoint nobody waits for the answer.
        let _ = self.poster.post(Post::Answer(answer));
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
