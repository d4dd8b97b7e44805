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

type BoxedContinuation = Box<dyn FnOnce(&mut Context<'_>, Reply)>;

/// What runs when a call ends.
pub(super) enum Continuation {
    Boxed(BoxedContinuation),
    Function(fn(&mut Context<'_>, Reply, u64), u64),
}

impl Continuation {
    #[inline]
    pub(super) fn run(self, cx: &mut Context<'_>, completion: Completion<MsgBuf>) {
        let Completion { session, outcome, request, response, .. } = completion;
        let reply = Reply { session, outcome, request, response };
        match self {
            Continuation::Boxed(continuation) => continuation(cx, reply),
            Continuation::Function(function, tag) => function(cx, reply, tag),
        }
    }
}

/// The continuations of all calls on the way, by tag.
#[derive(Default)]
pub(super) struct Continuations {
    places: Vec<Option<Continuation>>,
    free: Vec<u32>,
}

impl Continuations {
    #[inline]
    pub(super) fn put(&mut self, continuation: Continuation) -> u64 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(continuation);
            return u64::from(place);
        }
        self.places.push(Some(continuation));
        self.places.len() as u64 - 1
    }

    #[inline]
    pub(super) fn take(&mut self, tag: u64) -> Option<Continuation> {
        let continuation = self.places.get_mut(tag as usize)?.take()?;
        self.free.push(tag as u32);
        Some(continuation)
    }
}
