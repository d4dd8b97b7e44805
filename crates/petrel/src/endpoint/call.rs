//! Continuations: what runs when a call ends.

use std::collections::HashMap;

use petrel_proto::{CallFailure, Completion, PlainCompletion, SessionId};

use super::context::{Context, Local};
use crate::error::Error;
use crate::events;
use crate::msgbuf::MsgBuf;

/// The end of a call, as its continuation gets it.
#[derive(Debug)]
pub struct Reply {
    /// The session on which the call was made.
    pub session: SessionId,
    /// Whether it succeeded.
    pub outcome: Result<(), Error>,
    /// The request, as it was given.
    pub request: MsgBuf,
    /// The response; empty if the call failed.
    pub response: MsgBuf,
}

impl Reply {
    /// The response, or why there is none.
    ///
    /// # Errors
    /// The call's failure.
    pub fn message(&self) -> Result<&[u8], &Error> {
        match &self.outcome {
            Ok(()) => Ok(&self.response),
            Err(failure) => Err(failure),
        }
    }

    /// The response's buffer, or why there is none.
    ///
    /// # Errors
    /// The call's failure.
    pub fn into_response(self) -> Result<MsgBuf, Error> {
        self.outcome.map(|()| self.response)
    }
}

impl From<Completion<MsgBuf, Continuation>> for Reply {
    fn from(ended: Completion<MsgBuf, Continuation>) -> Self {
        let Completion { session, outcome, request, response, .. } = ended;
        Self { session, outcome: outcome.map_err(Error::from), request, response }
    }
}

/// What runs when a call ends. It travels with the call, so that it needs no table of its own.
pub struct Continuation(Kind);

type Boxed = Box<dyn FnOnce(&mut Context<'_>, Reply)>;

type Function = fn(&mut Context<'_>, Reply, u64);

enum Kind {
    Boxed(Boxed),
    Function(Function, u64),
}

/// Names a call that was made with options, to cancel it by.
#[derive(Clone, Copy, Debug)]
pub struct CallKey {
    pub(super) session: SessionId,
    function: Function,
    tag: u64,
}

impl CallKey {
    pub(super) fn new(session: SessionId, function: Function, tag: u64) -> Self {
        Self { session, function, tag }
    }
}

impl Continuation {
    #[inline]
    pub(super) fn boxed(continuation: impl FnOnce(&mut Context<'_>, Reply) + 'static) -> Self {
        Self(Kind::Boxed(Box::new(continuation)))
    }

    #[inline]
    pub(super) fn function(function: Function, tag: u64) -> Self {
        Self(Kind::Function(function, tag))
    }

    /// Whether it is that of the call which the key names. A function is compared by the address that was
    /// given with the call.
    pub(super) fn is(&self, key: &CallKey) -> bool {
        match self.0 {
            Kind::Boxed(_) => false,
            Kind::Function(function, tag) => {
                std::ptr::fn_addr_eq(function, key.function) && tag == key.tag
            }
        }
    }
}

/// Runs the continuation of a call that has ended as most do. It inherited nothing.
#[inline]
pub(super) fn run_continuation(cx: &mut Context<'_>, ended: PlainCompletion<MsgBuf, Continuation>) {
    let PlainCompletion { session, tag, request, response } = ended;
    let reply = Reply { session, outcome: Ok(()), request, response };
    match tag.0 {
        Kind::Boxed(continuation) => continuation(cx, reply),
        Kind::Function(function, tag) => function(cx, reply, tag),
    }
}

/// Runs the continuation of a call that has ended, under the deadline that the call inherited.
#[inline(never)]
pub(super) fn run_under_deadline(cx: &mut Context<'_>, ended: Completion<MsgBuf, Continuation>) {
    let Completion { session, tag, outcome, request, response, inherited_ns } = ended;
    if let Err(failure) = &outcome {
        note_failure(cx.local, session, failure);
    }
    let outcome = outcome.map_err(Error::from);
    let reply = Reply { session, outcome, request, response };
    cx.under_deadline(inherited_ns, |cx| match tag.0 {
        Kind::Boxed(continuation) => continuation(cx, reply),
        Kind::Function(function, tag) => function(cx, reply, tag),
    });
}

#[cold]
fn note_failure(local: &mut Local, session: SessionId, failure: &CallFailure) {
    local.remote.failures.count(failure);
    events::call_failed(session, failure);
}

/// Continuations of calls that can be cancelled, by the number that their calls carry: one that is asked
/// after a call has ended must not find another.
#[derive(Default)]
pub(super) struct Keyed {
    waiting: HashMap<u64, Boxed>,
    next: u64,
}

impl Keyed {
    pub(super) fn add(
        &mut self,
        continuation: impl FnOnce(&mut Context<'_>, Reply) + 'static,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, Box::new(continuation));
        number
    }

    /// The call was not taken.
    pub(super) fn forget(&mut self, number: u64) {
        self.waiting.remove(&number);
    }
}

/// The function of calls whose continuation is in [`Keyed`].
pub(super) fn run_keyed(cx: &mut Context<'_>, reply: Reply, number: u64) {
    if let Some(continuation) = cx.local.keyed.waiting.remove(&number) {
        continuation(cx, reply);
    }
}
