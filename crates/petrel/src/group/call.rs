//! A call to each member of a group, and where they end.

use std::cell::RefCell;
use std::rc::Rc;

use petrel_proto::SessionId;

use super::{Collect, Group, GroupFailure, Member, MemberOutcome, Need, Verdict};
use crate::endpoint::{Broadcast, CallKey, CallOptions, Context, Reply, SharedMsg, State};
use crate::error::Error;
use crate::msgbuf::MsgBuf;

/// What a call to a group asks for.
#[derive(Clone, Copy, Debug)]
pub struct GroupCall {
    /// The method.
    pub method: u16,
    /// How many members have to answer well.
    pub need: Need,
    /// Most bytes of an answer, 1 024 by default. Each member gets a buffer of this size.
    pub response_bytes_max: usize,
    /// Those of each member's call.
    pub options: CallOptions,
    /// What becomes of the calls that nobody waits for any more.
    pub late: Late,
}

/// What becomes of members' calls that have not ended when the group's outcome is certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Late {
    /// They are carried out, and their answers dropped: a replica that is slow gets the write all the same.
    #[default]
    Finish,
    /// They are cancelled: one answer was all that was wanted.
    Cancel,
}

impl GroupCall {
    /// A call of `method`, with the defaults for all else.
    pub fn new(method: u16, need: Need) -> Self {
        let (options, late) = (CallOptions::new(), Late::Finish);
        Self { method, need, response_bytes_max: 1024, options, late }
    }
}

/// How a call to a group ended, when that was certain: every member with what is known of it. What comes
/// later is dropped.
pub type GroupReply = Result<Vec<Member<MsgBuf>>, GroupFailure<MsgBuf>>;

/// A call to a group that is on the way.
struct Running {
    /// Gone when the outcome is certain.
    undecided: Option<Undecided>,
}

struct Undecided {
    collect: Collect<MsgBuf>,
    then: Then,
    /// The members' calls, to be cancelled if the outcome is certain before they have ended.
    late: Vec<(usize, CallKey)>,
}

type Then = Box<dyn FnOnce(State<'_>, &mut Context<'_>, GroupReply)>;

impl Group {
    /// Sends `message` to all members, and runs `then` once, as soon as the outcome is certain, in a later
    /// turn of the event loop.
    ///
    /// A member that cannot be called, because its session has ended or there is no memory for its answer,
    /// counts as one that failed, without having executed anything.
    ///
    /// # Errors
    /// When `then` will not run: no outcome could satisfy the call, or so many members could not be called that the rest is not
    /// enough. The rest may execute it.
    pub fn call<S: 'static>(
        &self,
        cx: &mut Context<'_, S>,
        message: &SharedMsg,
        call: GroupCall,
        then: impl FnOnce(&mut S, &mut Context<'_, S>, GroupReply) + 'static,
    ) -> Result<(), GroupFailure<MsgBuf>> {
        let cx = cx.untyped();
        let then = move |state: State<'_>, cx: &mut Context<'_>, reply: GroupReply| {
            // SAFETY: called for an endpoint with this type of state.
            then(unsafe { state.get::<S>() }, cx.typed(), reply);
        };
        let collect = Collect::new(self.members().iter().copied(), call.need)?;
        let undecided = Undecided { collect, then: Box::new(then), late: Vec::new() };
        let running = Rc::new(RefCell::new(Running { undecided: Some(undecided) }));
        let options = call.options.begun(|| cx.clock_now_ns());
        let call = GroupCall { options, ..call };
        let broadcast = self
            .multicast()
            .and_then(|number| cx.prepare_broadcast(number, self.members(), message));
        for (member, &session) in self.members().iter().enumerate() {
            let to = ToCall { session, member, broadcast: broadcast.as_ref() };
            match to.call(cx, message, call, &running) {
                Ok(key) => running.borrow_mut().note_made(call.late, member, key),
                Err(error) => {
                    let ended = running.borrow_mut().end(member, Err(error));
                    if let Some(Ended { reply: Err(failure), late, .. }) = ended {
                        cancel_all(cx, late);
                        return Err(failure);
                    }
                }
            }
        }
        if let Some(broadcast) = broadcast {
            cx.send_broadcast(broadcast);
        }
        Ok(())
    }
}

fn cancel_all(cx: &mut Context<'_>, calls: Vec<CallKey>) {
    for call in calls {
        cx.cancel(call);
    }
}

/// A member to be called.
struct ToCall<'a> {
    session: SessionId,
    /// Its place in the group.
    member: usize,
    broadcast: Option<&'a Broadcast>,
}

impl ToCall<'_> {
    fn call(
        &self,
        cx: &mut Context<'_>,
        message: &SharedMsg,
        call: GroupCall,
        running: &Rc<RefCell<Running>>,
    ) -> Result<CallKey, Error> {
        let &Self { session, member, broadcast } = self;
        let GroupCall { method, options, .. } = call;
        let response = cx.alloc(call.response_bytes_max)?;
        let running = Rc::clone(running);
        let on_reply = move |state: State<'_>, cx: &mut Context<'_>, reply: Reply| {
            let ended = running.borrow_mut().end(member, reply.into_response());
            if let Some(Ended { then, reply, late }) = ended {
                cancel_all(cx, late);
                then(state, cx, reply);
            }
        };
        match broadcast.filter(|broadcast| broadcast.reaches(session)) {
            Some(broadcast) => broadcast.call(cx, session, message, response, call, on_reply),
            None => cx
                .call(session, method, message)
                .options(options)
                .into_buffer(response)
                .then_untyped(on_reply)
                .map_err(|rejected| rejected.error),
        }
    }
}

/// What is to be done when the outcome is certain.
struct Ended {
    then: Then,
    reply: GroupReply,
    /// Calls to cancel.
    late: Vec<CallKey>,
}

impl Running {
    /// The call to a member is on the way.
    fn note_made(&mut self, late: Late, member: usize, call: CallKey) {
        if let (Late::Cancel, Some(undecided)) = (late, &mut self.undecided) {
            undecided.late.push((member, call));
        }
    }

    /// The call to a member has ended. Gives what is to be done if that decides.
    fn end(&mut self, member: usize, outcome: Result<MsgBuf, Error>) -> Option<Ended> {
        let undecided = self.undecided.as_mut()?;
        match undecided.collect.take(member, outcome) {
            Verdict::Undecided | Verdict::Late => None,
            Verdict::Decided(_) => {
                let Undecided { collect, then, late } = self.undecided.take()?;
                let pending = |member: usize| {
                    matches!(collect.members()[member].outcome, MemberOutcome::Pending)
                };
                let late = late.into_iter().filter(|(member, _)| pending(*member));
                let late = late.map(|(_, call)| call).collect();
                Some(Ended { then, reply: collect.finish(), late })
            }
        }
    }
}
