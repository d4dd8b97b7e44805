//! The start of calls on sessions.

use petrel_proto::{CallLimits, PendingCall, SessionId};

use super::continuation::Continuation;
use super::{Context, Local, NotTaken};
use crate::endpoint::route::Route;
use crate::msgbuf::MsgBuf;
use crate::values::{CallOptions, limits};

/// The kind of a call: its demands besides its message.
#[derive(Clone, Copy)]
pub(in crate::endpoint) enum CallKind {
    /// The call has no limits and owns its request.
    Plain,
    /// The call is [`CallKind::Plain`], and the request leaves with the current burst, behind the frames of the
    /// transmit queue.
    InBurst,
    /// The call ends at `end_ns`; `clock_ns` is the time, if its caller has just read the clock. The request leaves with the
    /// current burst.
    Until { end_ns: u64, clock_ns: Option<u64> },
    /// The call has any of these limits, or its request refers to a message of the application. It runs only after all
    /// earlier calls of its session if `ordered`.
    Limited { timeout_ns: Option<u64>, deadline_ns: Option<u64>, ordered: bool },
}

impl CallKind {
    /// Returns the kind of a call with these options; `is_shared` if its request refers to a message of the application.
    #[inline(always)]
    pub(in crate::endpoint) fn of(options: &CallOptions, is_shared: bool) -> Self {
        let (timeout_ns, deadline_ns) = (options.timeout_ns(), options.deadline_ns());
        let ordered = options.is_ordered();
        match options.has_limits() || ordered || is_shared {
            true => Self::Limited { timeout_ns, deadline_ns, ordered },
            false => Self::Plain,
        }
    }
}

impl<S: 'static> Context<'_, S> {
    /// Starts a call.
    // Inline: callers know the kind, and the compiler removes the other kinds.
    #[inline(always)]
    pub(in crate::endpoint) fn start(
        &mut self,
        session: SessionId,
        call: PendingCall<MsgBuf, Continuation>,
        kind: CallKind,
    ) -> Result<(), NotTaken> {
        match kind {
            CallKind::Plain => self.start_plain(session, call, false),
            CallKind::InBurst => self.start_plain(session, call, true),
            CallKind::Until { end_ns, clock_ns } => {
                let Local { core, now_ns, clock, lent, .. } = &mut *self.local;
                let clock_ns = clock_ns.unwrap_or_else(|| clock.now_ns());
                core.set_time(clock_ns);
                let lent = lent.as_mut().filter(|_| !core.has_transmit());
                let mut route = Route::new(self.route.reborrow(), lent, Some(clock_ns));
                let limits = CallLimits { deadline_ns: Some(end_ns), ..CallLimits::default() };
                core.call_with_at_once(*now_ns, session, call, limits, &mut route)
            }
            CallKind::Limited { timeout_ns, deadline_ns, ordered: false } => {
                self.start_limited(session, call, timeout_ns, deadline_ns)
            }
            CallKind::Limited { timeout_ns, deadline_ns, ordered: true } => {
                self.start_in_order(session, call, timeout_ns, deadline_ns)
            }
        }
    }

    #[inline(always)]
    fn start_plain(
        &mut self,
        session: SessionId,
        call: PendingCall<MsgBuf, Continuation>,
        in_burst: bool,
    ) -> Result<(), NotTaken> {
        let Local { core, now_ns, lent, .. } = &mut *self.local;
        let lent = lent.as_mut().filter(|_| in_burst && !core.has_transmit());
        let mut route = Route::new(self.route.reborrow(), lent, None);
        core.call_at_once(*now_ns, session, call, &mut route)
    }

    #[inline(never)]
    fn start_limited(
        &mut self,
        session: SessionId,
        call: PendingCall<MsgBuf, Continuation>,
        timeout_ns: Option<u64>,
        deadline_ns: Option<u64>,
    ) -> Result<(), NotTaken> {
        let Local { core, now_ns, clock, .. } = &mut *self.local;
        let has_limits = timeout_ns.is_some() || deadline_ns.is_some();
        let clock_ns = if has_limits { clock.now_ns() } else { *now_ns };
        let limits = limits(timeout_ns, deadline_ns, clock_ns);
        // Referenced messages cannot use the fast path.
        if limits == CallLimits::default() && !call.request.is_reference() {
            return self.start_plain(session, call, false);
        }
        core.set_time(clock_ns);
        let mut route = Route::new(self.route.reborrow(), None, Some(clock_ns));
        core.call_with_at_once(*now_ns, session, call, limits, &mut route)
    }

    #[cold]
    fn start_in_order(
        &mut self,
        session: SessionId,
        call: PendingCall<MsgBuf, Continuation>,
        timeout_ns: Option<u64>,
        deadline_ns: Option<u64>,
    ) -> Result<(), NotTaken> {
        let Local { core, now_ns, clock, .. } = &mut *self.local;
        let clock_ns = clock.now_ns();
        core.set_time(clock_ns);
        let limits = CallLimits { ordered: true, ..limits(timeout_ns, deadline_ns, clock_ns) };
        core.call_with(*now_ns, session, call, limits)
    }
}
