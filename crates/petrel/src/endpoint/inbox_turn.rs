//! Handles the messages of other threads, in the event loop.

use super::context::{Context, Local};
use super::service::{cancel_posted, close_service, set_targets};
use super::worker_requests::{give_answer, refuse};
use crate::inbox_message::{InboxMessage, Refuse, RunTask};
use crate::local::Handle;

/// Handles the messages of other threads.
pub(super) fn handle_messages(local: &mut Local) {
    let Some(mut messages) = local.remote.take_messages() else { return };
    for message in messages.drain(..) {
        let cx = &mut Context::new(local);
        match message {
            InboxMessage::Answer(answer) => give_answer(cx, answer),
            InboxMessage::Refuse(Refuse { handle, status, text }) => {
                refuse(cx.local, handle, status, text);
            }
            InboxMessage::Start(start) => cx.local.begin_posted_call(start),
            InboxMessage::Cancel(state) => cancel_posted(cx, &state),
            InboxMessage::OpenService(open) => cx.local.open_service(*open),
            InboxMessage::SetTargets(key, targets) => set_targets(cx, key, targets),
            InboxMessage::ExpectTable(key, expected) => cx.local.expect_table(key, expected),
            InboxMessage::Run(task) => run(cx.local, task),
            InboxMessage::CloseService(key) => {
                close_service(cx.local, key);
                cx.local.remote.free_service(key);
            }
        }
    }
    local.remote.put_back(messages);
    for task in local.remote.take_deferred() {
        run(local, task);
    }
}

/// Begins a task, if it may begin on this thread.
fn run(local: &mut Local, task: RunTask) {
    if let Some(task) = local.remote.admit(task) {
        (task.begin)(&Handle::new(local.hub.clone()));
    }
}
