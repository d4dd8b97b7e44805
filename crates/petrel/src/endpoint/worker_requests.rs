//! Requests owned by other threads, and the answers.

use petrel_proto::{RequestHandle, Status};

use super::context::{Context, Local};
use super::request::{Handled, Request};
use crate::events;
use crate::inbox_message::Answer;
use crate::workers::WorkerRequest;

impl Request<'_> {
    /// Copies the request, for any thread or task to answer.
    ///
    /// Only the sessions' slots limit the number of detached requests: a handler should use a bounded channel, or a
    /// semaphore. For threads of a pool there is [`Endpoint::on_worker`](crate::Endpoint::on_worker).
    pub fn detach<S: 'static>(self, cx: &mut Context<'_, S>) -> (WorkerRequest, Handled) {
        let (handle, method, payload) = self.into_parts();
        let deadline = cx.deadline();
        let Local { core, remote, sessions, .. } = &mut *cx.local;
        let (mut data, cancelled, sender) = remote.detach(handle);
        data.extend_from_slice(payload.data());
        core.watch(handle);
        let request = WorkerRequest::new(handle, method, deadline, data, cancelled, sender)
            .with_peer(sessions.peer_of(handle.session).cloned());
        (request, Handled::later())
    }
}

/// Sends the answer of another thread.
pub(super) fn give_answer(cx: &mut Context<'_>, answer: Answer) {
    let Answer { handle, status, message, cancelled } = answer;
    cx.local.remote.attach(handle, cancelled);
    match cx.alloc_message(&message) {
        Ok(buffer) => cx.respond(handle, status, buffer),
        Err(_) => {
            let text = "the server has no memory left";
            cx.local.core.respond_error(handle, Status::ResourceExhausted, text);
        }
    }
    cx.local.remote.free_bytes(message);
}

/// Refuses a request that another thread has not executed.
pub(super) fn refuse(local: &mut Local, handle: RequestHandle, status: Status, text: &'static str) {
    local.remote.forget(handle);
    events::request_refused(handle.session, status, text);
    local.core.refuse(handle, status, text);
}
