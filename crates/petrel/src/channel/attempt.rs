//! One attempt of a call: at one server, once.

use std::cell::Cell;
use std::time::Duration;

use petrel_proto::{CallFailure, Execution, Status};

use super::Channel;
use super::config::Target;
use super::permit::Outstanding;
use crate::endpoint::CallOptions;
use crate::msgbuf::MsgBuf;

/// A call of a channel, as all its attempts share it.
pub(super) struct Wanted<'a> {
    pub(super) method: u16,
    pub(super) request: &'a [u8],
    pub(super) options: &'a CallOptions,
    pub(super) end_ns: u64,
    /// Attempts that were handed to a session and have not ended, or were dropped before.
    pub(super) under_way: Cell<u32>,
}

/// How an attempt ended, and where it was made.
pub(super) struct Attempted {
    pub(super) outcome: Result<MsgBuf, Box<CallFailure>>,
    pub(super) target: Option<Target>,
}

impl Channel {
    /// Makes an attempt, at another server than those `besides` if there is one.
    pub(super) async fn attempt(&self, wanted: &Wanted<'_>, besides: Vec<Target>) -> Attempted {
        let inner = &self.inner;
        let (connection, session) = loop {
            if let Some(chosen) = inner.choose(&besides) {
                break chosen;
            }
            if wanted.options.wait_for_ready {
                self.ready().await;
                continue;
            }
            if let Some(failures) = self.failures() {
                return Attempted { outcome: Err(unreachable(failures)), target: None };
            }
            inner.wait_for_any(|one| one.is_ready() || self.failures().is_some()).await;
        };
        let target = Some(connection.target);
        let outstanding = Outstanding::begin(&inner.handle, &connection).await;
        let left_ns = wanted.end_ns.saturating_sub(inner.handle.now_ns());
        let options =
            CallOptions { timeout: Some(Duration::from_nanos(left_ns)), ..*wanted.options };
        wanted.under_way.set(wanted.under_way.get() + 1);
        let outcome = session.start_with(wanted.method, wanted.request, options).await;
        wanted.under_way.set(wanted.under_way.get() - 1);
        outstanding.end(&outcome);
        Attempted { outcome, target }
    }
}

#[cold]
fn unreachable(failures: String) -> Box<CallFailure> {
    Box::new(CallFailure {
        status: Status::Unavailable,
        message: format!("no server can be reached: {failures}"),
        execution: Execution::NotSent,
    })
}

/// Whether a call that failed so may be tried again.
pub(super) fn may_retry(failure: &CallFailure, is_idempotent: bool) -> bool {
    match (failure.status, failure.execution) {
        // Its time is over, or the caller does not want it any more, wherever it was.
        (Status::DeadlineExceeded | Status::Cancelled, _) => false,
        (Status::Unavailable, Execution::NotSent | Execution::Refused) => true,
        (Status::ResourceExhausted, Execution::Refused) => true,
        (Status::Unavailable, _) => is_idempotent,
        _ => false,
    }
}
