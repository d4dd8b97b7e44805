//! Messages to a group by multicast.

use std::collections::BTreeSet;

use petrel_proto::{GroupFrames, PendingCall, SessionId};

use super::context::continuation::{CallKey, Continuation, KeyedEnd, Reply};
use super::context::{Context, Local};
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::values::{CallOptions, SharedMsg, State};

/// The least number of receiving members for multicast: a single member costs the same packets plus an announcement.
const RECEIVERS_MIN: usize = 2;

/// A message whose packets some members receive by multicast.
pub(crate) struct Broadcast {
    frames: GroupFrames,
    message: MsgBuf,
    receivers: BTreeSet<SessionId>,
}

impl Broadcast {
    /// Prepares a message to a group for multicast, if enough members can receive it now.
    pub(crate) fn prepare(
        cx: &mut Context<'_>,
        number: u32,
        members: &[SessionId],
        message: &SharedMsg,
    ) -> Option<Self> {
        let Local { core, groups, pool, .. } = &mut *cx.local;
        let sender = groups.get_mut(number)?;
        if !sender.is_worth(message.len()) {
            return None;
        }
        let receives = |id: &SessionId| {
            sender.has_joined(*id) && core.may_announce(*id, message.len(), sender.packet_bytes())
        };
        let receivers: BTreeSet<SessionId> = members.iter().copied().filter(receives).collect();
        if receivers.len() < RECEIVERS_MIN {
            return None;
        }
        // Without memory it is sent by unicast.
        let message = message.to_reference(pool).ok()?;
        Some(Self { frames: sender.next_frames(number), message, receivers })
    }

    /// Sends the packets, after the announcements.
    pub(crate) fn send(self, cx: &mut Context<'_>) {
        cx.local.core.send_to_group(self.frames, self.message);
    }

    /// Returns true if this member receives it.
    pub(crate) fn reaches(&self, session: SessionId) -> bool {
        self.receivers.contains(&session)
    }

    /// Calls a method of a member that the multicast reaches.
    pub(crate) fn call(
        &self,
        cx: &mut Context<'_>,
        session: SessionId,
        message: &SharedMsg,
        response: MsgBuf,
        (method, options): (u16, CallOptions),
        continuation: impl FnOnce(State<'_>, &mut Context<'_>, Reply) + 'static,
    ) -> Result<CallKey, Error> {
        assert!(self.reaches(session), "the member receives the packets");
        let request = message.to_reference(&cx.local.pool)?;
        let number = cx.local.keyed().add(move |state, cx, mut reply| {
            reply.release_request();
            // All sent frames are flushed when a call ends.
            cx.local.core.release_sent();
            continuation(state, cx, reply);
        });
        let tag = Continuation::numbered::<KeyedEnd>(number);
        let call = PendingCall { method, tag, request, response };
        let Local { core, now_ns, clock, .. } = &mut *cx.local;
        let limits = options.limits(clock.now_ns());
        core.call_announced(*now_ns, session, call, limits, self.frames.announcement);
        Ok(CallKey::on_session(session, number))
    }
}
