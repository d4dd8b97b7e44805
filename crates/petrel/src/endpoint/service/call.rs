//! A call of a service: parameters, state of the attempts, and end.

use std::mem;
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
    /// Whether a response may redirect it.
    pub(super) is_judged: bool,
    /// Most calls have none.
    special: Option<Box<Special>>,
    /// The end of all attempts, whenever they are made.
    pub(super) end_ns: u64,
    /// The deadline inherited by its continuation and later attempts.
    pub(super) inherited_ns: Option<u64>,
    pub(super) end: End,
    pub(super) message: Message,
    /// The buffer for the response, while no attempt has it.
    room: Option<MsgBuf>,
    pub(super) step: Step,
    /// The timer of the call's next step.
    pub(super) timer: Option<TimerId>,
    /// The outstanding attempt that is not a hedge.
    pub(super) first: Option<Attempt>,
    progress: Progress,
    /// Most calls have none.
    trouble: Option<Box<Trouble>>,
}

/// Options that few calls have.
struct Special {
    /// The hash of the key, for the choice of a server.
    key: Option<u64>,
    hedge_after: Option<Duration>,
    /// When the next hedge is due.
    hedge_ns: Option<u64>,
    response_bytes: Option<usize>,
}

/// The parameters of a call of a service.
pub(crate) struct Asked<'a> {
    pub(crate) method: u16,
    pub(crate) message: Message,
    pub(crate) room: Option<MsgBuf>,
    /// Without their times, which `end_ns` replaces.
    pub(crate) options: &'a CallOptions,
    pub(crate) end_ns: u64,
    pub(crate) end: End,
}

/// The receiver of a call's outcome.
pub(crate) enum End {
    /// The thread that waits for it.
    Posted(Pending),
    /// A continuation.
    Then(Continuation),
    /// The receiver has the outcome.
    Taken,
}

/// The end of a call: the receiver, and its arguments.
pub(super) enum Ending {
    /// The waiting thread; the response, and memory for its copy.
    Posted(Pending, Option<MsgBuf>, Vec<u8>),
    /// A continuation, which gets both buffers.
    Then(Continuation, MsgBuf, MsgBuf),
}

/// The request.
pub(crate) enum Message {
    /// Bytes, copied for each attempt; and the application's own buffer, if passed.
    Bytes(Vec<u8>, Option<MsgBuf>),
    /// A buffer, which each attempt returns.
    Buffer(Option<MsgBuf>),
}

/// The current step of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An attempt is outstanding, or about to be.
    Going,
    /// It waits for a session to any server.
    Waiting,
    /// It waits for a permit at a server.
    InQueue(Key),
    /// It pauses before the next attempt, until this time.
    Pausing(u64),
}

/// An outstanding attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) call: Key,
    pub(super) connection: Key,
    pub(super) session: SessionId,
    pub(super) leave: Leave,
}

/// The state of a call that is not plain.
struct Trouble {
    backoff: Backoff,
    /// Servers with failed attempts, each once, in the order of their last failure.
    tried: Vec<Target>,
    /// How the last attempt failed.
    last: String,
    /// Redirects since the call last paused.
    redirects: usize,
    /// Outstanding hedges.
    hedges: Vec<Key>,
}

/// The state of a call's attempts.
#[derive(Debug, Default)]
struct Progress {
    /// Attempts begun.
    attempts: u32,
    /// Whether an ended attempt may have been executed.
    may_have_executed: bool,
}

impl Call {
    /// Creates a call whose first attempt begins.
    #[inline(always)]
    pub(super) fn begun(
        service: Key,
        asked: Asked<'_>,
        first: Option<Attempt>,
        is_judged: bool,
        end_ns: u64,
        inherited_ns: Option<u64>,
    ) -> Self {
        let Asked { method, message, room, options, end, .. } = asked;
        let &CallOptions { idempotent, wait_for_ready, .. } = options;
        Self {
            service,
            method,
            idempotent,
            wait_for_ready,
            is_judged,
            special: Special::of(options),
            end_ns,
            inherited_ns,
            end,
            message,
            room,
            step: Step::Going,
            timer: None,
            first,
            progress: Progress { attempts: 1, may_have_executed: false },
            trouble: None,
        }
    }

    /// Copies the message, for several attempts at a time.
    pub(super) fn copy_message(&mut self) {
        let message = mem::replace(&mut self.message, Message::Buffer(None));
        self.message = message.copied();
    }

    /// Returns true if success of the first attempt leaves nothing to undo.
    #[inline]
    pub(super) fn has_no_trouble(&self) -> bool {
        self.timer.is_none() && self.trouble.is_none()
    }

    /// The same of a call whose response needs no judgement.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.has_no_trouble() && !self.is_judged
    }

    /// Returns the buffers for an attempt.
    #[inline(always)]
    pub(super) fn buffers(
        &mut self,
        pool: &BufPool,
        alloc_response: impl FnOnce(Option<usize>) -> Result<MsgBuf, PoolExhausted>,
    ) -> Result<(MsgBuf, MsgBuf), PoolExhausted> {
        let room = match self.room.take() {
            Some(room) => room,
            None => alloc_response(self.special.as_ref().and_then(|own| own.response_bytes))?,
        };
        match self.message.take_to_send(pool) {
            Ok(request) => Ok((request, room)),
            Err(error) => {
                self.room = Some(room);
                Err(error)
            }
        }
    }

    /// Takes back the buffers of a failed attempt.
    pub(super) fn put_back(&mut self, request: MsgBuf, response: MsgBuf) {
        self.message.put_back(request);
        self.room.get_or_insert(response);
    }

    /// Returns the end of the call, with the buffers of the successful attempt, if any.
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
            End::Taken => unreachable!("a call ends once"),
        }
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.progress.attempts += 1;
        self.put_off_hedge(now_ns);
    }

    /// Restarts the time until the next hedge.
    pub(super) fn put_off_hedge(&mut self, now_ns: u64) {
        if let Some(own) = &mut self.special {
            own.hedge_ns = own.hedge_after.map(|after| now_ns.saturating_add(as_ns(after)));
        }
    }

    /// Makes no further hedges.
    pub(super) fn end_hedges(&mut self) {
        if let Some(own) = &mut self.special {
            own.hedge_ns = None;
        }
    }

    /// Returns when the next hedge is due.
    pub(super) fn hedge_ns(&self) -> Option<u64> {
        self.special.as_ref()?.hedge_ns
    }

    /// Returns true if the call is hedged.
    pub(super) fn is_hedged(&self) -> bool {
        self.special.as_ref().is_some_and(|own| own.hedge_after.is_some())
    }

    /// Returns the hash of the key, for the choice of a server.
    pub(super) fn key(&self) -> Option<u64> {
        self.special.as_ref()?.key
    }

    /// Returns when the call's timer is due.
    pub(super) fn due_ns(&self) -> Option<u64> {
        let (step_ns, hedge_ns) = match self.step {
            Step::Going => (None, self.hedge_ns()),
            Step::Waiting | Step::InQueue(_) => (Some(self.end_ns), self.hedge_ns()),
            Step::Pausing(until_ns) => (Some(until_ns.min(self.end_ns)), None),
        };
        [step_ns, hedge_ns].into_iter().flatten().min()
    }

    /// Returns true if an attempt is outstanding or waits for a permit, beside a failed one.
    pub(super) fn is_tried_otherwise(&self) -> bool {
        let is_waiting = matches!(self.step, Step::Waiting | Step::InQueue(_));
        is_waiting || self.first.is_some() || !self.hedges().is_empty()
    }

    pub(super) fn attempts(&self) -> u32 {
        self.progress.attempts
    }

    /// Uncounts the attempt begun last.
    pub(super) fn take_back(&mut self) {
        let attempts = self.progress.attempts.checked_sub(1);
        self.progress.attempts = attempts.expect("an attempt that failed has begun");
    }

    /// Records the failure of an attempt.
    pub(super) fn note(&mut self, failure: &CallFailure) {
        self.progress.note(failure);
    }

    /// Gives up outstanding attempts whose end is unknown.
    pub(super) fn note_lost(&mut self) {
        self.progress.may_have_executed = true;
    }

    /// Returns true if the call allows another attempt after a failure.
    pub(super) fn may_retry(&self, failure: &CallFailure, attempts_max: u32) -> bool {
        self.progress.attempts < attempts_max && may_retry(failure, self.idempotent)
    }

    /// Returns the failure of the call after the failure of its last attempt.
    pub(super) fn conclude(&self, failure: Error) -> Error {
        self.progress.conclude(failure)
    }

    /// Returns the failure of the call after its deadline. Outstanding attempts may be executed.
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

    /// Returns the failure of a cancelled call.
    #[cold]
    pub(super) fn cancelled(&self) -> Error {
        let execution = match self.progress.may_have_executed {
            true => Execution::MayHaveExecuted,
            false => Execution::NotSent,
        };
        Error::of(Status::Cancelled, "the call was cancelled", execution)
    }

    /// Returns the servers with failed attempts, each once, in the order of their last failure.
    pub(super) fn tried(&self) -> &[Target] {
        self.trouble.as_ref().map_or(&[], |trouble| &trouble.tried)
    }

    /// Records a failed attempt at a server.
    pub(super) fn note_tried(&mut self, target: Target, why: &str, backoff: BackoffConfig) {
        let trouble = self.trouble(backoff);
        trouble.tried.retain(|tried| !tried.is_server(&target));
        trouble.tried.push(target);
        trouble.last = format!("{}: {why}", target.address);
    }

    /// Counts a redirect. Returns the number of redirects since the call last paused.
    pub(super) fn note_redirect(&mut self, backoff: BackoffConfig) -> usize {
        let trouble = self.trouble(backoff);
        trouble.redirects += 1;
        trouble.redirects
    }

    /// Returns the pause before the next attempt.
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

    /// Removes a hedge that has ended.
    pub(super) fn remove_hedge(&mut self, attempt: Key) {
        let trouble = self.trouble.as_mut().expect("a hedge is noted");
        trouble.hedges.retain(|hedge| *hedge != attempt);
    }

    pub(super) fn take_hedges(&mut self) -> Vec<Key> {
        self.trouble.as_mut().map_or_else(Vec::new, |trouble| mem::take(&mut trouble.hedges))
    }

    fn trouble(&mut self, backoff: BackoffConfig) -> &mut Trouble {
        self.trouble.get_or_insert_with(|| {
            let backoff = Backoff::new(backoff);
            let (tried, hedges) = (Vec::new(), Vec::new());
            Box::new(Trouble { backoff, tried, last: String::new(), redirects: 0, hedges })
        })
    }
}

impl Special {
    #[inline(always)]
    fn of(options: &CallOptions) -> Option<Box<Self>> {
        let &CallOptions { response_bytes, hedge_after, key, .. } = options;
        match (response_bytes, hedge_after, key) {
            (None, None, None) => None,
            _ => Some(Self::new(options)),
        }
    }

    #[inline(never)]
    fn new(options: &CallOptions) -> Box<Self> {
        let &CallOptions { response_bytes, hedge_after, key, .. } = options;
        Box::new(Self { key, hedge_after, hedge_ns: None, response_bytes })
    }
}

impl Message {
    /// Returns the message for an attempt.
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

    /// Returns the application's buffer.
    fn into_buffer(self) -> Option<MsgBuf> {
        match self {
            Message::Bytes(_, buffer) | Message::Buffer(buffer) => buffer,
        }
    }

    /// Takes memory that the request no longer needs.
    #[inline]
    pub(super) fn take_memory(&mut self) -> Vec<u8> {
        match self {
            Message::Bytes(bytes, _) => mem::take(bytes),
            Message::Buffer(_) => Vec::new(),
        }
    }

    /// Returns memory that the request no longer needs.
    pub(super) fn into_memory(self) -> Vec<u8> {
        match self {
            Message::Bytes(bytes, _) => bytes,
            Message::Buffer(_) => Vec::new(),
        }
    }

    /// Copies the message, for simultaneous attempts.
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

/// Returns true if a call with this failure may be retried.
pub(super) fn may_retry(failure: &CallFailure, is_idempotent: bool) -> bool {
    match (failure.status, failure.execution) {
        // The call has no time left, or the caller no longer wants it, wherever the call was.
        (Status::DeadlineExceeded | Status::Cancelled, _) => false,
        (Status::Unavailable, Execution::NotSent | Execution::Refused) => true,
        (Status::ResourceExhausted, Execution::Refused) => true,
        (Status::Unavailable, _) => is_idempotent,
        _ => false,
    }
}

/// Returns true if an attempt may be repeated as if it had not been made: it reached no server, and so adds no load
/// (gRPC, proposal A6, transparent retries). A hedge is made while another attempt is outstanding and always counts.
pub(super) fn never_left(call: &Call, failure: &CallFailure) -> bool {
    failure.execution == Execution::NotSent
        && failure.status == Status::Unavailable
        && !call.is_hedged()
        && !planted("service_unsent_is_an_attempt")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last attempt's failure, the failures before it, and the number of attempts.
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
