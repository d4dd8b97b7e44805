//! The meaning of a replica's answer for the client below: another replica is asked, or the call ends. A call that ends
//! well has the answer of a method that was executed; refusals are failures.

use std::net::SocketAddr;

use petrel::client::Verdict;
use petrel::{Error, Execution, Status as CallStatus};

use crate::api::{AdminReply, Certainty, Refusal, Role, Status, methods};

/// The status of a write whose session has ended, and of the removal of a node that is no member.
pub(super) const UNKNOWN_NAME: CallStatus = CallStatus::NotFound;

/// Judges an answer. An answer without a refusal came from the leader. Stale reads are an exception, because any replica
/// serves them; their calls have a key, and the client below then infers no leader.
pub(super) fn judge(method: u16, answer: &[u8]) -> Verdict {
    if method == methods::STATUS {
        return match Status::decode(answer) {
            Ok(Status { role: Role::Leader, .. }) => Verdict::Leads,
            _ => Verdict::Accept,
        };
    }
    // The answer is the place of the stream, and any replica has one.
    if method == methods::WATCH {
        return Verdict::Accept;
    }
    match Refusal::of_reply(answer) {
        Ok(Some(refusal)) => of_refusal(method, &refusal),
        Ok(None) if is_no_member(method, answer) => {
            failed(UNKNOWN_NAME, "that node is no member", Execution::Refused)
        }
        Ok(None) => Verdict::Leads,
        // The operation says what is wrong.
        Err(_) => Verdict::Accept,
    }
}

fn is_no_member(method: u16, answer: &[u8]) -> bool {
    method == methods::MEMBER && AdminReply::decode(answer) == Ok(AdminReply::NoMember)
}

fn of_refusal(method: u16, refusal: &Refusal<'_>) -> Verdict {
    let (status, execution) = match refusal {
        Refusal::NotLeader { leader } => {
            let address = leader.and_then(|leader| leader.address.parse::<SocketAddr>().ok());
            return Verdict::Redirect(address.map(Into::into));
        }
        Refusal::Unavailable { certainty: Certainty::Unknown, .. } => {
            (CallStatus::Unavailable, Execution::MayHaveExecuted)
        }
        Refusal::Full(_) | Refusal::Restoring => {
            (CallStatus::FailedPrecondition, Execution::Refused)
        }
        // The leader refuses an operator's request for good.
        Refusal::Unavailable { .. } if matches!(method, methods::MEMBER | methods::TRANSFER) => {
            (CallStatus::FailedPrecondition, Execution::Refused)
        }
        // This replica leads, and is overloaded: another replica could not help.
        Refusal::Unavailable { .. } | Refusal::TooManyPending => {
            (CallStatus::Unavailable, Execution::Refused)
        }
        Refusal::SessionUnknown => (UNKNOWN_NAME, Execution::Refused),
        Refusal::Malformed(_) | Refusal::SequenceTooOld => {
            (CallStatus::InvalidArgument, Execution::Refused)
        }
    };
    failed(status, refusal.to_string(), execution)
}

fn failed(status: CallStatus, message: impl Into<String>, execution: Execution) -> Verdict {
    Verdict::Fail(Error::new(status, message).with_execution(execution))
}

#[cfg(test)]
mod tests {
    use petrel::client::Target;

    use super::*;
    use crate::api::{Applied, Leader, Outcome, WriteReply};

    fn of_write(reply: WriteReply<'_>) -> Verdict {
        judge(methods::WRITE, &reply.to_vec())
    }

    fn refused(method: u16, refusal: Refusal<'_>) -> Verdict {
        judge(method, &WriteReply::Refused(refusal).to_vec())
    }

    #[test]
    fn judge__finds_the_leader() {
        let applied = Applied { index: 1, outcome: Outcome::SessionOpened };
        assert_eq!(of_write(WriteReply::Applied(applied)), Verdict::Leads);
        let named = |address| {
            refused(
                methods::WRITE,
                Refusal::NotLeader { leader: Some(Leader { node: 1, address }) },
            )
        };
        let target = Target::from(SocketAddr::from(([10, 0, 0, 1], 7)));
        assert_eq!(named("10.0.0.1:7"), Verdict::Redirect(Some(target)));
        assert_eq!(named("no address"), Verdict::Redirect(None));
        assert_eq!(
            refused(methods::WRITE, Refusal::NotLeader { leader: None }),
            Verdict::Redirect(None)
        );
        assert_eq!(
            judge(methods::WRITE, b"\xff"),
            Verdict::Accept,
            "the operation says what is wrong"
        );
        for (role, verdict) in [(Role::Leader, Verdict::Leads), (Role::Follower, Verdict::Accept)] {
            let answer = Status { role, ..Status::default() }.to_vec();
            assert_eq!(judge(methods::STATUS, &answer), verdict);
        }
    }

    #[test]
    fn judge__knows_what_may_have_been_done() {
        use CallStatus::{FailedPrecondition, InvalidArgument, Unavailable};
        let failure = |verdict| match verdict {
            Verdict::Fail(error) => (error.status, error.execution, error.message.clone()),
            other => panic!("{other:?}"),
        };
        let of = |method, refusal| failure(refused(method, refusal));
        let busy = |certainty| Refusal::Unavailable { certainty, reason: "busy" };
        let (refused_it, unknown) = (Execution::Refused, Execution::MayHaveExecuted);
        for (method, refusal, status, execution) in [
            (methods::WRITE, busy(Certainty::NotApplied), Unavailable, refused_it),
            (methods::WRITE, busy(Certainty::Unknown), Unavailable, unknown),
            (methods::WRITE, Refusal::TooManyPending, Unavailable, refused_it),
            (methods::WRITE, Refusal::SessionUnknown, UNKNOWN_NAME, refused_it),
            (methods::WRITE, Refusal::SequenceTooOld, InvalidArgument, refused_it),
            (methods::WRITE, Refusal::Malformed("x"), InvalidArgument, refused_it),
            (methods::MEMBER, busy(Certainty::Unknown), Unavailable, unknown),
        ] {
            let (found, may_have_run, _) = of(method, refusal);
            assert_eq!((found, may_have_run), (status, execution), "{refusal:?}");
        }
        let told = (FailedPrecondition, refused_it, "busy".to_owned());
        assert_eq!(of(methods::MEMBER, busy(Certainty::NotApplied)), told, "the operator's reason");
        let answer = AdminReply::NoMember.to_vec();
        let (status, execution, _) = failure(judge(methods::MEMBER, &answer));
        assert_eq!((status, execution), (UNKNOWN_NAME, refused_it));
    }
}
