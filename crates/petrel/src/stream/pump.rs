//! The task of a pair on the endpoint's thread: sends the batches, and ends the pair.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use petrel_proto::{Execution, Status};

use super::registry::session_ended;
use super::shared::Shared;
use super::wire::{METHOD, UNDER_WAY_MAX};
use crate::error::Error;
use crate::local::{Command, Handle, Parallel, Session, Sleep};
use crate::msgbuf::MsgBuf;
use crate::sync::Arc;

/// A pair and its endpoint. Dropped with the task, it ends the streams and the session on which the peer's batches come.
pub(super) struct Ends {
    handle: Handle,
    pair: Arc<Shared>,
}

impl Ends {
    pub(super) fn new(handle: &Handle, pair: &Arc<Shared>) -> Self {
        Self { handle: handle.clone(), pair: Arc::clone(pair) }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let text = "the streams of the endpoint have ended";
        self.pair.fail(&Error::of(Status::Unavailable, text, Execution::MayHaveExecuted));
        if let Some(session) = self.pair.served() {
            self.handle.hub().command(Command::Close(session));
        }
    }
}

/// Sends the batches of a pair on its session, if it was opened, until the pair ends.
pub(super) async fn run(ends: Ends, opened: Result<Session, Error>) {
    let session = match opened {
        Ok(session) => session,
        Err(error) => return ends.pair.fail(&error),
    };
    let mut sending = Sending {
        ends: &ends,
        session: &session,
        calls: Parallel::new(UNDER_WAY_MAX as usize),
        timer: None,
    };
    let mut ended = pin!(session.unavailable());
    let failure = poll_fn(|cx| match ended.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Some(session_ended())),
        Poll::Pending => sending.poll(cx),
    });
    if let Some(error) = failure.await {
        ends.pair.fail(&error);
    }
    session.close();
}

struct Sending<'a> {
    ends: &'a Ends,
    session: &'a Session,
    calls: Parallel,
    /// The timer of the next deadline, and its time.
    timer: Option<(u64, Sleep)>,
}

impl Sending<'_> {
    /// Sends the batches that are due. Is ready when the pair ends: with the error, or without one after its last stream.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Error>> {
        loop {
            if let Err(error) = self.take_answers(cx) {
                return Poll::Ready(Some(error));
            }
            match self.send(cx) {
                Err(error) => return Poll::Ready(Some(error)),
                Ok(true) => continue,
                Ok(false) => {}
            }
            let (due_ns, is_over) = self.ends.pair.next_look();
            if is_over && self.calls.outstanding() == 0 {
                return Poll::Ready(None);
            }
            if !self.sleeps_until(due_ns, cx) {
                return Poll::Pending;
            }
        }
    }

    /// Notes the answers to batches.
    fn take_answers(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        while let Poll::Ready(Some((sequence, answer))) = pin!(self.calls.next()).poll(cx) {
            answer?;
            self.ends.pair.with(|pair| pair.acknowledge(sequence));
        }
        Ok(())
    }

    /// Sends a batch, if there is one.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let hub = self.ends.handle.hub();
        let alloc = |bytes| Ok(MsgBuf::from_pool(hub.pool(), bytes)?);
        let memory = MsgBuf::storage_mut;
        let batch = self.ends.pair.next_batch(hub.clock_now_ns(), cx.waker(), alloc, memory)?;
        let Some(mut batch) = batch else { return Ok(false) };
        batch.message.set_len(batch.len);
        let call = self.session.call(METHOD, batch.message).response_bytes(0).started();
        self.calls.push(batch.sequence, call);
        Ok(true)
    }

    /// Sets the timer. Returns true if the time has come.
    fn sleeps_until(&mut self, due_ns: u64, cx: &mut Context<'_>) -> bool {
        if self.timer.as_ref().is_none_or(|(at_ns, _)| *at_ns != due_ns) {
            let left_ns = due_ns.saturating_sub(self.ends.handle.hub().clock_now_ns());
            let sleep = self.ends.handle.sleep(Duration::from_nanos(left_ns));
            self.timer = (due_ns != u64::MAX).then_some((due_ns, sleep));
        }
        let has_come = match &mut self.timer {
            Some((_, sleep)) => Pin::new(sleep).poll(cx).is_ready(),
            None => false,
        };
        if has_come {
            self.timer = None;
        }
        has_come
    }
}
