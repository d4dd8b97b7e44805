//! The attempts of one operation: whom to ask next, when, and until when.

use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::CallOptions;
use petrel::overload::Backoff;
use petrel::task::Call;
use petrel::{Execution, MsgBuf, Status};
use petrel_planted::planted;

use super::changes::News;
use super::members::{Connection, Target};
use super::{Inner, KvError};
use crate::api::{Certainty, DecodeError, Refusal};

/// Doublings of an attempt's time: a thousandfold is as good as the operation's own deadline.
const LATE_MAX: u32 = 10;

/// The attempts of one operation.
///
/// Members are asked in turn until one says who leads, and that one next; when as many attempts have failed as
/// there are members, there is a pause, which ends early if another operation finds the leader meanwhile.
pub(super) struct Pursuit<'a> {
    inner: &'a Rc<Inner>,
    target: Target,
    deadline_ns: u64,
    /// Attempts since the last pause.
    tries: usize,
    /// Attempts that had no answer in time: each further one has twice as long.
    late: u32,
    backoff: Backoff,
    /// Whether it matters that the request may be executed without an answer.
    has_effects: bool,
    /// Whether that may have happened.
    is_doubtful: bool,
    /// What came of the last attempt.
    last: Option<String>,
}

impl<'a> Pursuit<'a> {
    pub(super) fn new(inner: &'a Rc<Inner>, target: Target, deadline_ns: u64) -> Self {
        let backoff = Backoff::new(inner.config.backoff);
        Self {
            inner,
            target,
            deadline_ns,
            tries: 0,
            late: 0,
            backoff,
            has_effects: false,
            is_doubtful: false,
            last: None,
        }
    }

    /// For operations that change something.
    pub(super) fn with_effects(self) -> Self {
        Self { has_effects: true, ..self }
    }

    /// Whether an earlier copy of the request may have been executed, or may be yet.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// Asks until somebody answers.
    pub(super) async fn ask(
        &mut self,
        method: u16,
        encode: impl Fn(&mut Vec<u8>),
    ) -> Result<(MsgBuf, Rc<Connection>), KvError> {
        loop {
            let connection = self.find().await?;
            let Some(call) = self.start(&connection, method, &encode) else { continue };
            match call.await {
                Ok(reply) => return Ok((reply, connection)),
                Err(failure) => self.note_failure(&connection, &failure),
            }
        }
    }

    async fn find(&mut self) -> Result<Rc<Connection>, KvError> {
        loop {
            if self.inner.handle.now_ns() >= self.deadline_ns {
                return Err(self.over());
            }
            if self.tries >= self.inner.members.len().max(1) {
                self.pause().await;
            } else if let Some(connection) = self.inner.members.choose(self.target) {
                return Ok(connection);
            } else {
                self.last = Some(self.inner.members.failures());
                let changed = self.inner.members.changes.wait(News::Connection);
                // The loop looks whether there is somebody, or the time is over.
                let _ = self.inner.handle.timeout(self.time_left(), changed).await;
            }
        }
    }

    fn start(
        &self,
        connection: &Connection,
        method: u16,
        encode: impl Fn(&mut Vec<u8>),
    ) -> Option<Call> {
        let options =
            CallOptions::new().deadline_ns(self.deadline_ns).timeout(self.attempt_timeout());
        let request = &mut *self.inner.request.borrow_mut();
        request.clear();
        encode(request);
        connection.start(method, request, options)
    }

    /// A cluster that is slow is not asked more and more often for the same.
    fn attempt_timeout(&self) -> Duration {
        self.inner.config.attempt_timeout.saturating_mul(1 << self.late.min(LATE_MAX))
    }

    /// Waits before all are asked again, unless somebody finds the leader before.
    async fn pause(&mut self) {
        let pause = Duration::from_nanos(self.backoff.next_ns(self.inner.random()));
        let found = self.inner.members.changes.wait(News::Leader);
        let _ = self.inner.handle.timeout(pause.min(self.time_left()), found).await;
        self.tries = 0;
    }

    fn time_left(&self) -> Duration {
        Duration::from_nanos(self.deadline_ns.saturating_sub(self.inner.handle.now_ns()))
    }

    /// The call has no answer.
    fn note_failure(&mut self, connection: &Rc<Connection>, failure: &petrel::Error) {
        let may_have_run =
            matches!(failure.execution, Execution::MayHaveExecuted | Execution::Answered)
                && !planted("kv_client_is_sure");
        self.is_doubtful |= may_have_run && self.has_effects;
        self.tries += 1;
        self.late += u32::from(failure.status == Status::DeadlineExceeded);
        self.last = Some(format!("{}: {failure}", connection.address));
        self.inner.members.forget_leader(connection);
    }

    /// The answer is that the request is not served: goes on, if that makes sense.
    pub(super) fn refused(
        &mut self,
        from: &Rc<Connection>,
        refusal: Refusal<'_>,
    ) -> Result<(), KvError> {
        self.last = Some(format!("{}: {refusal}", from.address));
        self.tries += 1;
        match refusal {
            Refusal::NotLeader { leader } => self.inner.take_hint(from, leader),
            Refusal::Unavailable { certainty: Certainty::Unknown, .. } => {
                self.is_doubtful |= self.has_effects;
                self.inner.members.forget_leader(from);
            }
            // It leads, and has too much to do. Others could not help.
            Refusal::Unavailable { .. } | Refusal::TooManyPending => self.tries = usize::MAX,
            Refusal::Malformed(_) | Refusal::SessionUnknown | Refusal::SequenceTooOld => {
                return Err(self.misunderstood());
            }
        }
        Ok(())
    }

    /// The answer is no message of this service.
    pub(super) fn not_understood(&mut self, from: &Rc<Connection>, error: &DecodeError) -> KvError {
        self.is_doubtful |= self.has_effects;
        self.last = Some(format!("{}: the answer is none of this service: {error}", from.address));
        self.misunderstood()
    }

    fn misunderstood(&mut self) -> KvError {
        let last = self.last.take().unwrap_or_default();
        if self.is_doubtful { KvError::Unknown { last } } else { KvError::Protocol(last) }
    }

    /// The end of an operation that cannot go on.
    pub(super) fn over(&mut self) -> KvError {
        let last = self.last.take().unwrap_or_else(|| "no attempt was made in time".to_owned());
        let last = match self.target {
            Target::Leader => self.inner.members.without_leader(last),
            Target::Any => last,
        };
        if self.is_doubtful { KvError::Unknown { last } } else { KvError::Timeout { last } }
    }

    /// The answer is one that only the leader gives.
    pub(super) fn confirm(&self, from: &Rc<Connection>) {
        if self.target == Target::Leader {
            self.inner.members.confirm(from);
        }
    }
}
