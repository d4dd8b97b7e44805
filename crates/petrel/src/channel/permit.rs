//! The right to have an attempt outstanding to a server, which always goes back.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::{CallFailure, Execution, Status};

use super::config::Target;
use super::connection::Connection;
use super::queue::Place;
use crate::error::Error;
use crate::local::Handle;
use crate::overload::Permit;

/// An attempt, as its connection counts it.
pub(super) struct Outstanding {
    handle: Handle,
    connection: Rc<Connection>,
    permit: Option<Permit>,
}

impl Outstanding {
    /// Waits until the limit allows another attempt, behind the attempts that came before.
    pub(super) async fn begin(handle: &Handle, connection: &Rc<Connection>) -> Self {
        if let Some(begun) = Self::try_begin(handle, connection) {
            return begun;
        }
        let mut place = connection.queue.join();
        loop {
            wait(handle, connection, &mut place).await;
            if let Some(begun) = Self::take(handle, connection) {
                place.has_had();
                // One event may have made room for more than one.
                if connection.may_start(handle.now_ns()) {
                    connection.queue.call_first();
                }
                return begun;
            }
            place.wait_on();
        }
    }

    /// An attempt, if the limit allows another one and no other attempt waits for that.
    pub(super) fn try_begin(handle: &Handle, connection: &Rc<Connection>) -> Option<Self> {
        if connection.queue.is_empty() { Self::take(handle, connection) } else { None }
    }

    fn take(handle: &Handle, connection: &Rc<Connection>) -> Option<Self> {
        let permit = match &connection.limit {
            None => None,
            Some(limit) => Some(limit.borrow_mut().try_start(handle.now_ns())?),
        };
        connection.begin();
        Some(Self { handle: handle.clone(), connection: Rc::clone(connection), permit })
    }

    /// The server that is asked.
    pub(super) fn target(&self) -> Target {
        self.connection.target
    }

    /// Says how the attempt ended.
    pub(super) fn end<A>(mut self, outcome: &Result<A, Error>) {
        let (Some(permit), Some(limit)) = (self.permit.take(), &self.connection.limit) else {
            return;
        };
        let (mut limit, now_ns) = (limit.borrow_mut(), self.handle.now_ns());
        match outcome {
            Ok(_) => limit.succeeded(permit, now_ns),
            Err(failure) if is_too_much(failure) => limit.refused(permit, now_ns),
            Err(failure) if is_timeout(failure) => limit.timed_out(permit, now_ns),
            Err(_) => limit.ended(permit, now_ns),
        }
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        if let (Some(permit), Some(limit)) = (self.permit.take(), &self.connection.limit) {
            limit.borrow_mut().ended(permit, self.handle.now_ns());
        }
        self.connection.end();
    }
}

/// Waits until it is this place's turn, or the time at which the limit allows an attempt.
async fn wait(handle: &Handle, connection: &Connection, place: &mut Place<'_>) {
    // The first looks at the clock for all.
    let limit = connection.limit.as_ref().filter(|_| place.is_first());
    let resumes_ns = limit.and_then(|limit| limit.borrow().resumes_ns());
    let pause_ns = resumes_ns.map(|at_ns| at_ns.saturating_sub(handle.now_ns()).max(1));
    let mut sleep = pause_ns.map(|ns| Box::pin(handle.sleep(Duration::from_nanos(ns))));
    poll_fn(|cx| {
        // Nothing ends that would call the first while the limit pauses.
        if sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready()) {
            sleep = None;
            connection.queue.call_first();
        }
        pin!(&mut *place).poll(cx)
    })
    .await;
}

/// Whether the server did not answer in time what it may have begun.
fn is_timeout(failure: &CallFailure) -> bool {
    failure.status == Status::DeadlineExceeded && failure.execution == Execution::MayHaveExecuted
}

/// Whether the server refused because it has too much to do.
fn is_too_much(failure: &CallFailure) -> bool {
    if planted("channel_every_failure_is_overload") {
        return true;
    }
    failure.execution == Execution::Refused
        && matches!(failure.status, Status::ResourceExhausted | Status::DeadlineExceeded)
}
