//! Continuations: what runs when a call ends.

use petrel_proto::{CallFailure, Completion, SessionId};

use super::context::Context;
use crate::msgbuf::MsgBuf;

/// The end of a call, as its continuation gets it.
#[derive(Debug)]
pub struct Reply {
    /// The session on which the call was made.
    pub session: SessionId,
    /// Whether it succeeded.
    pub outcome: Result<(), Box<CallFailure>>,
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
    pub fn message(&self) -> Result<&[u8], &CallFailure> {
        match &self.outcome {
            Ok(()) => Ok(&self.response),
            Err(failure) => Err(failure),
        }
    }

    /// The response's buffer, or why there is none.
    ///
    /// # Errors
    /// The call's failure.
    pub fn into_response(self) -> Result<MsgBuf, Box<CallFailure>> {
        self.outcome.map(|()| self.response)
    }
}

impl Reply {
    /// The parts of a call's end: what is to run, and with what.
    #[inline]
    pub(super) fn of(ended: Completion<MsgBuf, Continuation>) -> (Continuation, Self) {
        let Completion { session, tag, outcome, request, response, .. } = ended;
        (tag, Self { session, outcome, request, response })
    }
}

/// What runs when a call ends. It travels with the call, so that it needs no table of its own.
pub struct Continuation(Kind);

type Boxed = Box<dyn FnOnce(&mut Context<'_>, Reply)>;

type Function = fn(&mut Context<'_>, Reply, u64);

enum Kind {
    Boxed(Boxed),
    Function(Function, u64),
    /// With a number by which the call can be cancelled.
    Keyed(Box<(u64, Boxed)>),
}

/// Names a call that was made with options, to cancel it by.
#[derive(Clone, Copy, Debug)]
pub struct CallKey {
    pub(super) session: SessionId,
    which: Which,
}

#[derive(Clone, Copy, Debug)]
enum Which {
    Number(u64),
    Function(Function, u64),
}

impl CallKey {
    pub(super) fn of_number(session: SessionId, number: u64) -> Self {
        Self { session, which: Which::Number(number) }
    }

    pub(super) fn of_function(session: SessionId, function: Function, tag: u64) -> Self {
        Self { session, which: Which::Function(function, tag) }
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

    pub(super) fn keyed(
        number: u64,
        continuation: impl FnOnce(&mut Context<'_>, Reply) + 'static,
    ) -> Self {
        Self(Kind::Keyed(Box::new((number, Box::new(continuation)))))
    }

    /// Whether it is that of the call which the key names. A function is compared by the address that was
    /// given with the call.
    pub(super) fn is(&self, key: &CallKey) -> bool {
        match (&self.0, key.which) {
            (Kind::Keyed(keyed), Which::Number(number)) => keyed.0 == number,
            (Kind::Function(function, tag), Which::Function(wanted, wanted_tag)) => {
                std::ptr::fn_addr_eq(*function, wanted) && *tag == wanted_tag
            }
            _ => false,
        }
    }

    #[inline]
    fn run(self, cx: &mut Context<'_>, reply: Reply) {
        match self.0 {
            Kind::Boxed(continuation) => continuation(cx, reply),
            Kind::Function(function, tag) => function(cx, reply, tag),
            Kind::Keyed(keyed) => keyed.1(cx, reply),
        }
    }
}

/// Runs the continuation of a call that has ended, one that inherited nothing.
#[inline]
pub(super) fn run_continuation(cx: &mut Context<'_>, ended: Completion<MsgBuf, Continuation>) {
    let (continuation, reply) = Reply::of(ended);
    continuation.run(cx, reply);
}

/// Runs the continuation of a call that has ended, under the deadline that the call inherited.
pub(super) fn run_under_deadline(cx: &mut Context<'_>, ended: Completion<MsgBuf, Continuation>) {
    let deadline_ns = ended.inherited_ns;
    cx.under_deadline(deadline_ns, |cx| run_continuation(cx, ended));
}
