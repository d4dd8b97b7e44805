//! A call of a service: what it asks, what is known of its attempts, and how it ends.

use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::{CallFailure, Execution, SessionId, Status};
use petrel_transport::buf::{BufPool, PoolExhausted};

use super::connection::Leave;
use crate::client::Target;
use crate::client::state::Pending;
use crate::endpoint::CallOptions;
use crate::endpoint::call::Continuation;
use crate::error::Error;
use crate::local::{Key, TimerId};
use crate::msgbuf::MsgBuf;
use crate::overload::{Backoff, BackoffConfig};
use crate::time::as_ns;

/// A call that has not ended.
pub(super) struct Call {
    pub(super) service: Key,
    pub(super) method: u16,
    pub(super) idempotent: bool,
    pub(super) wait_for_ready: bool,
    /// Whether an answer may send it to another server.
    pub(super) is_judged: bool,
    /// The hash of the key by which its server is chosen.
    pub(super) key: Option<u64>,
    pub(super) hedge_after: Option<Duration>,
    /// When the next hedge is due.
    pub(super) hedge_ns: Option<u64>,
    response_bytes: Option<usize>,
    /// All attempts end then, whenever they are made.
    pub(super) end_ns: u64,
    /// What its continuation, and the attempts that are made later, inherit.
    pub(super) inherited_ns: Option<u64>,
    pub(super) end: End,
    pub(super) message: Message,
    /// The buffer for the response, while no attempt has it.
    room: Option<MsgBuf>,
    pub(super) step: Step,
    /// When the call is looked at although nothing has happened to it.
    pub(super) timer: Option<TimerId>,
    /// The attempt on its way that is no hedge.
    pub(super) first: Option<Attempt>,
    progress: Progress,
    /// Most calls have none.
    trouble: Option<Box<Trouble>>,
}

/// What a call asks of a service.
pub(crate) struct Asked {
    pub(crate) method: u16,
    pub(crate) message: Message,
    pub(crate) room: Option<MsgBuf>,
    pub(crate) options: CallOptions,
    pub(crate) end: End,
}

/// Who is told of a call's end.
pub(crate) enum End {
    /// The thread that waits for it.
    Posted(Pending),
    /// A continuation.
    Then(Continuation),
}

/// The end of a call that is over: who is told, and with what.
pub(super) enum Ending {
    /// The thread that waits; the response, and memory for its copy.
    Posted(Pending, Option<MsgBuf>, Vec<u8>),
    /// A continuation, which gets both buffers.
    Then(Continuation, MsgBuf, MsgBuf),
}

/// The request.
pub(crate) enum Message {
    /// Copied for each attempt. With the buffer in which the application has given it, if it did so.
    Bytes(Vec<u8>, Option<MsgBuf>),
    /// A buffer, which each attempt gives back.
    Buffer(Option<MsgBuf>),
}

/// What a call is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An attempt is on its way, or about to be.
    Going,
    /// It waits for a session to any server.
    Waiting,
    /// It waits for leave to be made at a server.
    InQueue(Key),
    /// It pauses before the next attempt, until this time.
    Pausing(u64),
}

/// An attempt that is on its way.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) call: Key,
    pub(super) connection: Key,
    pub(super) session: SessionId,
    pub(super) leave: Leave,
}

/// What a call has that does not go as most do.
struct Trouble {
    backoff: Backoff,
    /// Servers whose attempts have failed, each once, in the order of their last failure.
    tried: Vec<Target>,
    /// How the last attempt failed.
    last: String,
    /// Answers that sent the call to another server since it has paused.
    redirects: usize,
    /// Further attempts on their way.
    hedges: Vec<Key>,
}

/// What is known of a call's attempts.
#[derive(Debug, Default)]
struct Progress {
    /// Attempts that were begun.
    attempts: u32,
    /// Whether one that has ended may have been executed.
    may_have_executed: bool,
}

impl Call {
    pub(super) fn new(
        service: Key,
        asked: Asked,
        is_judged: bool,
        end_ns: u64,
        inherited_ns: Option<u64>,
    ) -> Self {
        let Asked { method, message, room, options, end } = asked;
        let CallOptions { response_bytes, idempotent, wait_for_ready, hedge_after, key, .. } =
            options;
        Self {
            service,
            method,
            idempotent,
            wait_for_ready,
            is_judged,
            key,
            hedge_after,
            hedge_ns: None,
            response_bytes,
            end_ns,
            inherited_ns,
            end,
            message: if hedge_after.is_some() { message.copied() } else { message },
            room,
            step: Step::Going,
            timer: None,
            first: None,
            progress: Progress::default(),
            trouble: None,
        }
    }

    /// Whether nothing is to be undone when its first attempt succeeds.
    pub(super) fn is_plain(&self) -> bool {
        self.timer.is_none() && self.trouble.is_none()
    }

    /// The buffers of an attempt.
    pub(super) fn buffers(
        &mut self,
        pool: &BufPool,
        alloc_response: impl FnOnce(Option<usize>) -> Result<MsgBuf, PoolExhausted>,
    ) -> Result<(MsgBuf, MsgBuf), PoolExhausted> {
        let room = match self.room.take() {
            Some(room) => room,
            None => alloc_response(self.response_bytes)?,
        };
        match self.message.take_to_send(pool) {
            Ok(request) => Ok((request, room)),
            Err(error) => {
                self.room = Some(room);
                Err(error)
            }
        }
    }

    /// An attempt that has failed gives its buffers back.
    pub(super) fn put_back(&mut self, request: MsgBuf, response: MsgBuf) {
        self.message.put_back(request);
        self.room.get_or_insert(response);
    }

    /// What is to be done at its end, with the buffers of the attempt that has succeeded, if one has.
    pub(super) fn into_end(self, buffers: Option<(MsgBuf, MsgBuf)>) -> Ending {
        let (request, response) = buffers.unzip();
        match self.end {
            End::Posted(pending) => Ending::Posted(pending, response, self.message.into_memory()),
            End::Then(continuation) => {
                let (request, response) =
                    (self.message.into_buffer().or(request), response.or(self.room));
                let kept = "a continuation's buffers come back from each attempt";
                Ending::Then(continuation, request.expect(kept), response.expect(kept))
            }
        }
    }

    /// An attempt begins.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.progress.attempts += 1;
        self.put_off_hedge(now_ns);
    }

    /// The next hedge is due in a while from now.
    pub(super) fn put_off_hedge(&mut self, now_ns: u64) {
        self.hedge_ns = self.hedge_after.map(|after| now_ns.saturating_add(as_ns(after)));
    }

    /// When the call is to be looked at although nothing has happened to it.
    pub(super) fn due_ns(&self) -> Option<u64> {
        let (step_ns, hedge_ns) = match self.step {
            Step::Going => (None, self.hedge_ns),
            Step::Waiting | Step::InQueue(_) => (Some(self.end_ns), self.hedge_ns),
            Step::Pausing(until_ns) => (Some(until_ns.min(self.end_ns)), None),
        };
        [step_ns, hedge_ns].into_iter().flatten().min()
    }

    /// Whether an attempt is on its way or waits for leave, beside one that has just failed.
    pub(super) fn is_tried_otherwise(&self) -> bool {
        let is_waiting = matches!(self.step, Step::Waiting | Step::InQueue(_));
        is_waiting || self.first.is_some() || !self.hedges().is_empty()
    }

    pub(super) fn attempts(&self) -> u32 {
        self.progress.attempts
    }

    /// The attempt that was begun last does not count.
    pub(super) fn take_back(&mut self) {
        let attempts = self.progress.attempts.checked_sub(1);
        self.progress.attempts = attempts.expect("an attempt that failed has begun");
    }

    /// Takes in how an attempt failed.
    pub(super) fn note(&mut self, failure: &CallFailure) {
        self.progress.note(failure);
    }

    /// Attempts that were on their way and whose end is not known are no longer waited for.
    pub(super) fn note_lost(&mut self) {
        self.progress.may_have_executed = true;
    }

    /// Whether a failure may be followed by another attempt, as far as it goes by the call.
    pub(super) fn may_retry(&self, failure: &CallFailure, attempts_max: u32) -> bool {
        self.progress.attempts < attempts_max && may_retry(failure, self.idempotent)
    }

    /// How the call fails, by how its last attempt did.
    pub(super) fn conclude(&self, failure: Error) -> Error {
        self.progress.conclude(failure)
    }

    /// How the call fails when its time is over. Attempts that are on their way may be executed.
    #[cold]
    pub(super) fn too_late(&self) -> Error {
        let is_under_way = self.first.is_some() || !self.hedges().is_empty();
        let execution = match self.progress.may_have_executed || is_under_way {
            true => Execution::MayHaveExecuted,
            false => Execution::NotSent,
        };
        let attempts = match self.progress.attempts {
            0 => String::new(),
            attempts => format!(", in {attempts} attempts"),
        };
        let last = match self.trouble.as_deref() {
            Some(Trouble { last, .. }) if !last.is_empty() => format!("; the last: {last}"),
            _ => String::new(),
        };
        let message = format!("no answer within the call's time{attempts}{last}");
        Error::of(Status::DeadlineExceeded, message, execution)
    }

    /// How the call ends that is cancelled.
    #[cold]
    pub(super) fn cancelled(&self) -> Error {
        let execution = match self.progress.may_have_executed {
            true => Execution::MayHaveExecuted,
            false => Execution::NotSent,
        };
        Error::of(Status::Cancelled, "the call was cancelled", execution)
    }

    /// Servers whose attempts have failed, each once, in the order of their last failure.
    pub(super) fn tried(&self) -> &[Target] {
        self.trouble.as_ref().map_or(&[], |trouble| &trouble.tried)
    }

    /// An attempt at a server has failed so.
    pub(super) fn note_tried(&mut self, target: Target, why: &str, backoff: BackoffConfig) {
        let trouble = self.trouble(backoff);
        trouble.tried.retain(|tried| !tried.is_server(&target));
        trouble.tried.push(target);
        trouble.last = format!("{}: {why}", target.address);
    }

    /// An answer has sent the call to another server. Gives how often that was so since the call has paused.
    pub(super) fn note_redirect(&mut self, backoff: BackoffConfig) -> usize {
        let trouble = self.trouble(backoff);
        trouble.redirects += 1;
        trouble.redirects
    }

    /// The pause before the next attempt.
    pub(super) fn pause_ns(&mut self, backoff: BackoffConfig, random: u64) -> u64 {
        let trouble = self.trouble(backoff);
        trouble.redirects = 0;
        trouble.backoff.next_ns(random)
    }

    pub(super) fn hedges(&self) -> &[Key] {
        self.trouble.as_ref().map_or(&[], |trouble| &trouble.hedges)
    }

    pub(super) fn add_hedge(&mut self, attempt: Key, backoff: BackoffConfig) {
        self.trouble(backoff).hedges.push(attempt);
    }

    /// A hedge has ended.
    pub(super) fn remove_hedge(&mut self, attempt: Key) {
        let trouble = self.trouble.as_mut().expect("a hedge is noted");
        trouble.hedges.retain(|hedge| *hedge != attempt);
    }

    pub(super) fn take_hedges(&mut self) -> Vec<Key> {
        self.trouble.as_mut().map_or_else(Vec::new, |trouble| std::mem::take(&mut trouble.hedges))
    }

    fn trouble(&mut self, backoff: BackoffConfig) -> &mut Trouble {
        self.trouble.get_or_insert_with(|| {
            let backoff = Backoff::new(backoff);
            let (tried, hedges) = (Vec::new(), Vec::new());
            Box::new(Trouble { backoff, tried, last: String::new(), redirects: 0, hedges })
        })
    }
}

impl Message {
    /// What an attempt sends.
    fn take_to_send(&mut self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        match self {
            Message::Bytes(bytes, _) => MsgBuf::holding(pool, bytes),
            Message::Buffer(buffer) => {
                Ok(buffer.take().expect("one attempt at a time has the buffer"))
            }
        }
    }

    fn put_back(&mut self, request: MsgBuf) {
        if let Message::Buffer(buffer) = self {
            *buffer = Some(request);
        }
    }

    /// The buffer that is the application's.
    fn into_buffer(self) -> Option<MsgBuf> {
        match self {
            Message::Bytes(_, buffer) | Message::Buffer(buffer) => buffer,
        }
    }

    /// Memory that the request does not need any more.
    pub(super) fn into_memory(self) -> Vec<u8> {
        match self {
            Message::Bytes(bytes, _) => bytes,
            Message::Buffer(_) => Vec::new(),
        }
    }

    /// For several attempts at a time.
    fn copied(self) -> Self {
        match self {
            Message::Buffer(Some(buffer)) => Message::Bytes(buffer.to_vec(), Some(buffer)),
            message => message,
        }
    }
}

impl Progress {
    fn note(&mut self, failure: &CallFailure) {
        self.may_have_executed |= !did_not_run(failure);
    }

    /// An earlier attempt that may have been executed makes a failure uncertain.
    fn conclude(&self, mut failure: Error) -> Error {
        if self.may_have_executed && did_not_run(&failure) {
            failure = failure.with_execution(Execution::MayHaveExecuted);
        }
        if self.attempts > 1 {
            let message = format!("{} (after {} attempts)", failure.message, self.attempts);
            failure = failure.with_message(message);
        }
        failure
    }
}

fn did_not_run(failure: &CallFailure) -> bool {
    matches!(failure.execution, Execution::NotSent | Execution::Refused)
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

/// Whether an attempt may be repeated as if it had not been made: no server has heard of it, so that it adds nothing to the load
/// of one (gRPC, proposal A6, transparent retries). A hedge is made while another is on its way and counts in any case.
pub(super) fn never_left(call: &Call, failure: &CallFailure) -> bool {
    failure.execution == Execution::NotSent
        && failure.status == Status::Unavailable
        && call.hedge_after.is_none()
        && !planted("service_unsent_is_an_attempt")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last attempt's failure, what came before it, and how often it was tried.
    #[test]
    fn conclude__counts_all_attempts() {
        use Execution::{Answered, MayHaveExecuted, NotSent, Refused};
        let failure = |execution| Error::of(Status::Unavailable, "gone", execution);
        for last in [NotSent, Refused, MayHaveExecuted, Answered] {
            for before in [vec![], vec![Refused], vec![MayHaveExecuted], vec![Refused, NotSent]] {
                let mut progress = Progress::default();
                for execution in &before {
                    progress.attempts += 1;
                    progress.note(&failure(*execution));
                }
                progress.attempts += 1;
                let concluded = progress.conclude(failure(last));
                let is_uncertain = before.contains(&MayHaveExecuted);
                let expected = match last {
                    NotSent | Refused if is_uncertain => MayHaveExecuted,
                    as_it_is => as_it_is,
                };
                assert_eq!(concluded.execution, expected, "{before:?}, {last:?}");
                assert_eq!(concluded.status, Status::Unavailable);
                let message = match before.len() {
                    0 => "gone",
                    1 => "gone (after 2 attempts)",
                    _ => "gone (after 3 attempts)",
                };
                assert_eq!(concluded.message, message);
            }
        }
    }
}
