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

/// What runs when a call ends. It travels with the call, so that it needs no table of its own.
pub struct Continuation(Kind);

type Boxed = Box<dyn FnOnce(&mut Context<'_>, Reply)>;

enum Kind {
    Boxed(Boxed),
    Function(fn(&mut Context<'_>, Reply, u64), u64),
}

impl Continuation {
    #[inline]
    pub(super) fn boxed(continuation: impl FnOnce(&mut Context<'_>, Reply) + 'static) -> Self {
        Self(Kind::Boxed(Box::new(continuation)))
    }

    #[inline]
    pub(super) fn function(function: fn(&mut Context<'_>, Reply, u64), tag: u64) -> Self {
        Self(Kind::Function(function, tag))
    }
}

/// Runs the continuation of a call that has ended.
#[inline]
pub(super) fn run_continuation(cx: &mut Context<'_>, completion: Completion<MsgBuf, Continuation>) {
    let Completion { session, tag, outcome, request, response } = completion;
    let reply = Reply { session, outcome, request, response };
    match tag.0 {
        Kind::Boxed(continuation) => continuation(cx, reply),
        Kind::Function(function, tag) => function(cx, reply, tag),
    }
}
