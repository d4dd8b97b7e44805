//! A call to each member of a group, and where they end.

use std::cell::RefCell;
use std::rc::Rc;

use petrel_proto::{CallFailure, Execution, SessionId};

use super::{Collect, Group, GroupError, GroupFailure, Member, Need, Verdict};
use crate::endpoint::{Context, SharedMsg, StartError};
use crate::msgbuf::MsgBuf;

/// What a call to a group asks for.
#[derive(Clone, Copy, Debug)]
pub struct GroupCall {
    /// The method.
    pub method: u16,
    /// How many members have to answer well.
    pub need: Need,
    /// Most bytes of an answer. Each member gets a buffer of this size.
    pub response_bytes_max: usize,
}

/// How a call to a group ended, when that was certain: every member with what is known of it. What comes
/// later is dropped.
pub type GroupReply = Result<Vec<Member<MsgBuf>>, GroupFailure<MsgBuf>>;

/// A call to a group that was not made: its continuation will not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupRejected {
    /// No outcome could satisfy it. Nothing was sent.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// So many members could not be called that the rest is not enough. The rest may execute it.
    #[error("{0}")]
    Members(GroupFailure<MsgBuf>),
}

/// A call to a group that is on the way.
struct Running {
    /// Gone when the outcome is certain.
    undecided: Option<Undecided>,
}

struct Undecided {
    collect: Collect<MsgBuf>,
    then: Then,
}

type Then = Box<dyn FnOnce(&mut Context<'_>, GroupReply)>;

impl Group {
    /// Sends `message` to all members, and runs `then` once, as soon as the outcome is certain, in a later
    /// turn of the event loop.
    ///
    /// A member that cannot be called, because its session has ended or there is no memory for its answer,
    /// counts as one that failed, without having executed anything.
    ///
    /// # Errors
    /// [`GroupRejected`], when `then` will not run.
    pub fn call(
        &self,
        cx: &mut Context<'_>,
        message: &SharedMsg,
        call: GroupCall,
        then: impl FnOnce(&mut Context<'_>, GroupReply) + 'static,
    ) -> Result<(), GroupRejected> {
        let collect = Collect::new(self.members().iter().copied(), call.need)?;
        let undecided = Undecided { collect, then: Box::new(then) };
        let running = Rc::new(RefCell::new(Running { undecided: Some(undecided) }));
        for (member, &session) in self.members().iter().enumerate() {
            if let Err(error) = call_member(cx, session, member, message, call, &running) {
                let ended = running.borrow_mut().end(member, Err(not_made(&error)));
                if let Some((_, Err(failure))) = ended {
                    return Err(GroupRejected::Members(failure));
                }
            }
        }
        Ok(())
    }
}

fn call_member(
    cx: &mut Context<'_>,
    session: SessionId,
    member: usize,
    message: &SharedMsg,
    call: GroupCall,
    running: &Rc<RefCell<Running>>,
) -> Result<(), StartError> {
    let response = cx.alloc(call.response_bytes_max)?;
    let running = Rc::clone(running);
    cx.call_shared(session, call.method, message, response, move |cx, reply| {
        let ended = running.borrow_mut().end(member, reply.into_response());
        if let Some((then, reply)) = ended {
            then(cx, reply);
        }
    })
    .map_err(|rejected| rejected.error)
}

fn not_made(error: &StartError) -> Box<CallFailure> {
    let (status, message) = (error.status(), error.to_string());
    Box::new(CallFailure { status, message, execution: Execution::NotSent })
}

/// What runs when the outcome is certain, and that.
type Ended = (Then, GroupReply);

impl Running {
    /// The call to a member has ended. Gives what is to be done if that decides.
    fn end(&mut self, member: usize, outcome: Result<MsgBuf, Box<CallFailure>>) -> Option<Ended> {
        let undecided = self.undecided.as_mut()?;
        match undecided.collect.take(member, outcome) {
            Verdict::Undecided | Verdict::Late => None,
            Verdict::Decided(_) => {
                let Undecided { collect, then } = self.undecided.take()?;
                Some((then, collect.finish()))
            }
        }
    }
}
