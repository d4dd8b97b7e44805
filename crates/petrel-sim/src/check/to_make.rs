//! The ways in which nodes make calls: with or without options, with owned or shared messages.

use petrel::endpoint::{CallBuilder, CallKey, CallOptions, CallRejected, SessionId, SharedMsg};
use petrel::{Context, Error, MsgBuf, Reply};

/// The parts of a call.
pub(super) struct ToMake {
    pub(super) session: SessionId,
    pub(super) method: u16,
    pub(super) request: MsgBuf,
    pub(super) response: MsgBuf,
    pub(super) options: Option<CallOptions>,
    pub(super) ordered: bool,
}

/// The error and the request of a rejected call.
type NotMade = (Error, MsgBuf);

impl ToMake {
    /// Makes the call. Every fourth call sends a shared message.
    pub(super) fn make(
        self,
        cx: &mut Context<'_>,
        id: u32,
        on_reply: impl FnOnce(&mut Context<'_>, Reply) + 'static,
    ) -> Result<Option<CallKey>, NotMade> {
        if id % 4 == 1 {
            return self.make_shared(cx, on_reply).map(Some);
        }
        let Self { session, method, request, response, options, ordered } = self;
        let demand = |call: CallBuilder<_, _>| if ordered { call.ordered() } else { call };
        let called = match options {
            None => demand(cx.call(session, method, request))
                .into_buffer(response)
                .then(move |_, cx, reply| on_reply(cx, reply))
                .map(|()| None),
            Some(options) => demand(cx.call(session, method, request))
                .into_buffer(response)
                .options(options)
                .then_cancellable(move |_, cx, reply| on_reply(cx, reply))
                .map(Some),
        };
        called.map_err(|rejected| {
            let CallRejected { error, request, .. } = *rejected;
            (error, request.expect("a request that was given in a buffer comes back"))
        })
    }

    /// Sends the request in place, as a shared message, and takes the message back when the call has ended:
    /// then no further share may exist.
    fn make_shared(
        self,
        cx: &mut Context<'_>,
        on_reply: impl FnOnce(&mut Context<'_>, Reply) + 'static,
    ) -> Result<CallKey, NotMade> {
        let Self { session, method, request, response, options, ordered } = self;
        let message = SharedMsg::from(request);
        let kept = message.clone();
        let on_reply = move |cx: &mut Context<'_>, mut reply: Reply| {
            reply.request = unshared(kept);
            on_reply(cx, reply);
        };
        let options = options.unwrap_or_default();
        let call = cx.call(session, method, &message).into_buffer(response).options(options);
        let called = if ordered { call.ordered() } else { call };
        let called = called.then_cancellable(move |_, cx, reply| on_reply(cx, reply));
        called.map_err(|rejected| (rejected.error, unshared(message)))
    }
}

fn unshared(message: SharedMsg) -> MsgBuf {
    message.try_unwrap().expect("a call that is over has no share in its message")
}
