//! The first attempt of a call that is posted by another thread: without a task of its own, as most calls need no second one.

use petrel_proto::SessionId;

use super::Channel;
use super::attempt::{Wanted, for_an_attempt, may_retry, unreachable};
use super::call::Progress;
use super::config::Target;
use super::permit::Outstanding;
use crate::endpoint::CallOptions;
use crate::error::Error;
use crate::msgbuf::MsgBuf;

/// How a call begins.
pub(crate) enum Beginning {
    /// With an attempt on this session, which has these options.
    Attempt(SessionId, CallOptions, Begun),
    /// No server can be asked at once, or more than one attempt may be on its way together.
    Later(Unfinished),
}

/// A first attempt that is on its way.
pub(crate) struct Begun {
    outstanding: Outstanding,
    options: CallOptions,
    end_ns: u64,
}

/// A call that needs more than a first attempt that could begin at once.
pub(crate) struct Unfinished {
    options: CallOptions,
    end_ns: u64,
    /// How the first attempt failed, and where it was made.
    failed: Option<(Error, Target)>,
}

impl Channel {
    /// Begins the first attempt of a call.
    pub(crate) fn begin(&self, options: CallOptions, now_ns: u64) -> Beginning {
        let inner = &self.inner;
        inner.counters.calls.increment();
        let end_ns = self.end_ns(&options, now_ns);
        let chosen = match options.hedge_after {
            None => inner.choose(&[]),
            Some(_) => None,
        };
        let begun = chosen.and_then(|(connection, session)| {
            Some((session, Outstanding::try_begin(&inner.handle, &connection)?))
        });
        match begun {
            Some((session, outstanding)) => {
                let begun = Begun { outstanding, options, end_ns };
                Beginning::Attempt(session.id(), for_an_attempt(&options, end_ns), begun)
            }
            None => Beginning::Later(Unfinished { options, end_ns, failed: None }),
        }
    }

    /// The first attempt has succeeded.
    pub(crate) fn succeeded(&self, begun: Begun) {
        self.note_end(begun.outstanding, &Ok(()));
        self.note_success();
    }

    /// The first attempt has failed: the end of the call, or what is left to do.
    pub(crate) fn failed(&self, begun: Begun, error: Error) -> Result<Unfinished, Error> {
        let Begun { outstanding, options, end_ns } = begun;
        let target = outstanding.target();
        let outcome: Result<(), Error> = Err(error);
        self.note_end(outstanding, &outcome);
        let Err(error) = outcome else { unreachable!("it has failed") };
        match may_retry(&error, options.idempotent) {
            true => Ok(Unfinished { options, end_ns, failed: Some((error, target)) }),
            false => Err(error),
        }
    }

    /// Makes the attempts that are left.
    pub(crate) async fn finish(
        &self,
        method: u16,
        request: &[u8],
        unfinished: Unfinished,
    ) -> Result<MsgBuf, Error> {
        let Unfinished { options, end_ns, failed } = unfinished;
        let mut progress = Progress::default();
        let (failed, tried) = match failed {
            None => (None, Vec::new()),
            Some((error, target)) => {
                progress.begin();
                (Some(error), vec![target])
            }
        };
        let wanted = Wanted::new(method, request, &options, end_ns, tried);
        wanted.note_end(failed.as_ref());
        self.attempt_until(&wanted, progress, failed).await
    }

    /// Waits until a session is open.
    ///
    /// # Errors
    /// UNAVAILABLE when opening one has failed at each server.
    pub(crate) async fn opened(&self) -> Result<(), Error> {
        self.inner.wait_for_any(|one| one.is_ready() || self.failures().is_some()).await;
        match self.failures() {
            Some(failures) if self.ready_count() == 0 => Err(unreachable(failures)),
            _ => Ok(()),
        }
    }
}
