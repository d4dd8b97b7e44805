//! Requests owned by other threads, and the answers.

use petrel_proto::{RequestHandle, Status};

use super::context::{Context, Local};
use super::peer::Peer;
use super::request::{Handled, Request};
use crate::events;
use crate::inbox::InboxSender;
use crate::inbox_message::{Answer, InboxMessage};
use crate::sync::{Arc, AtomicBool};
use crate::time::Time;

/// A request for another thread, which answers by `sender`.
pub(crate) struct Detached {
    pub(crate) handle: RequestHandle,
    pub(crate) method: u16,
    pub(crate) deadline: Option<Time>,
    pub(crate) data: Vec<u8>,
    /// Set when the answer is no longer wanted.
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) sender: InboxSender<InboxMessage>,
    pub(crate) peer: Option<std::sync::Arc<Peer>>,
}

impl Request<'_> {
    /// Copies the request for another thread, and watches it for a cancellation.
    pub(crate) fn into_detached<S: 'static>(self, cx: &mut Context<'_, S>) -> (Detached, Handled) {
        let (handle, method, payload) = self.into_parts();
        let deadline = cx.deadline();
        let Local { core, remote, sessions, .. } = &mut *cx.local;
        let (mut data, cancelled, sender) = remote.detach(handle);
        data.extend_from_slice(payload.data());
        core.watch(handle);
        let peer = sessions.peer_of(handle.session).cloned();
        let request = Detached { handle, method, deadline, data, cancelled, sender, peer };
        (request, Handled::later())
    }
}

impl Context<'_> {
    /// Notes that a thread was woken for a request, which may want this thread's CPU.
    pub(crate) fn note_woken(&self) {
        self.local.hub.note_woken();
    }

    /// Refuses a request for want of another thread.
    pub(crate) fn refuse_detached(
        &mut self,
        handle: RequestHandle,
        status: Status,
        text: &'static str,
    ) {
        refuse(self.local, handle, status, text);
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
