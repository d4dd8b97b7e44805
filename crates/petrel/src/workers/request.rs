//! A request that belongs to another thread than its endpoint's.

use std::fmt;
use std::mem;
use std::thread;

use petrel_proto::{RequestHandle, SessionId, Status};

use crate::inbox::Poster;
use crate::post::{Answer, Post};

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
    is_answered: bool,
    data: Vec<u8>,
    poster: Poster<Post>,
}

impl WorkerRequest {
    pub(crate) fn new(
        handle: RequestHandle,
        method: u16,
        data: Vec<u8>,
        poster: Poster<Post>,
    ) -> Self {
        Self { handle, method, is_answered: false, data, poster }
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

    /// Answers that the request was not executed and will not be, and why: the client may make the call
    /// again, whatever it does ([`Execution::Refused`](crate::Execution::Refused)).
    pub fn refuse(mut self, status: Status, message: &'static str) {
        self.is_answered = true;
        let _ = self.poster.post(Post::Refuse { handle: self.handle, status, message });
    }

    /// Gives the duty to answer back to the endpoint, on its own thread.
    pub(crate) fn into_handle(mut self) -> RequestHandle {
        self.is_answered = true;
        self.handle
    }

    fn answer(&mut self, status: Status, message: Vec<u8>) {
        self.is_answered = true;
        // Without the endpoint nobody waits for the answer.
        let _ = self.poster.post(Post::Answer(Answer { handle: self.handle, status, message }));
    }
}

impl Drop for WorkerRequest {
    fn drop(&mut self) {
        if !self.is_answered {
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
