//! Calls to each member of a group, and the collection of their outcomes.

use std::cell::RefCell;
use std::rc::Rc;

use petrel_proto::SessionId;

use super::{Collect, Group, GroupFailure, Member, MemberOutcome, Need, Verdict};
use crate::endpoint::{Broadcast, CallKey, Context, Reply};
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::values::{CallOptions, SharedMsg, State};

/// The parameters of a call to a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupCall {
    /// The method.
    pub method: u16,
    /// How many members have to answer successfully.
    pub need: Need,
    /// The largest response, 1 024 bytes by default. Every member gets a buffer of this size.
    pub response_bytes_max: usize,
    /// The options of each member's call.
    pub options: CallOptions,
    /// The fate of calls still outstanding after the decision.
    pub late: Late,
}

/// The fate of members' calls still outstanding when the group's outcome is certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Late {
    /// The calls are executed and their responses dropped: a slow replica still gets the write.
    #[default]
    Finish,
    /// The calls are cancelled: the caller wanted only one response.
    Cancel,
}

impl GroupCall {
    /// Returns a call of `method`, with default options.
    pub fn new(method: u16, need: Need) -> Self {
        let (options, late) = (CallOptions::new(), Late::Finish);
        Self { method, need, response_bytes_max: 1024, options, late }
    }
}

/// The outcome of a group call at the time of the decision: every member with its current outcome. Later responses are
/// dropped.
pub type GroupReply = Result<Vec<Member<MsgBuf>>, GroupFailure<MsgBuf>>;

/// An outstanding call to a group.
struct Running {
    /// `None` once the outcome is certain.
    undecided: Option<Undecided>,
}

struct Undecided {
    collect: Collect<MsgBuf>,
    then: Then,
    /// The members' calls, to be cancelled if the outcome is certain before they end.
    late: Vec<(usize, CallKey)>,
}

type Then = Box<dyn FnOnce(State<'_>, &mut Context<'_>, GroupReply)>;

impl Group {
    /// Sends `message` to all members, and runs `then` once, in a turn of the event loop after the outcome is certain.
    ///
    /// A member without a session, or without memory for its response, counts as failed without execution.
    ///
    /// # Errors
    /// When `then` will not run: no outcome could satisfy the call, or too few members could be called. The called
    /// members may execute it.
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
        let options = call.options.begun(|| cx.clock_now().as_ns());
        let call = GroupCall { options, ..call };
        let broadcast = self
            .multicast()
            .and_then(|number| Broadcast::prepare(cx, number, self.members(), message));
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
            broadcast.send(cx);
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
    /// Calls a member, by multicast if it reaches the member. The reply ends the group's call when it decides the outcome.
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
            Some(broadcast) => {
                broadcast.call(cx, session, message, response, (method, options), on_reply)
            }
            None => cx
                .call(session, method, message)
                .options(options)
                .into_buffer(response)
                .then_untyped(on_reply)
                .map_err(|rejected| rejected.error),
        }
    }
}

/// The continuation and its arguments once the outcome is certain.
struct Ended {
    then: Then,
    reply: GroupReply,
    late: Vec<CallKey>,
}

impl Running {
    /// Records an outstanding call to a member.
    fn note_made(&mut self, late: Late, member: usize, call: CallKey) {
        if let (Late::Cancel, Some(undecided)) = (late, &mut self.undecided) {
            undecided.late.push((member, call));
        }
    }

    /// Records the end of a member's call. Returns the continuation to run if this end decides the outcome.
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
