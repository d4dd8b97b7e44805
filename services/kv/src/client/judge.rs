//! The meaning of a replica's answer for the client below: whether to ask another replica.

use petrel::client::Verdict;
use petrel::{Error, Execution, Status as CallStatus};

use crate::api::{
    AdminReply, Certainty, DecodeError, GetReply, Refusal, Role, ScanReply, Status, WriteReply,
    methods,
};

/// Judges an answer. An accepted answer is left to the operation that asked.
pub(super) fn judge(method: u16, answer: &[u8]) -> Verdict {
    match refusal_of(method, answer) {
        Ok(None) => Verdict::Leads,
        Ok(Some(refusal)) => of_refusal(method, refusal),
        Err(_) => Verdict::Accept,
    }
}

/// The refusal in an answer. An answer without a refusal came from the leader. Stale reads are an exception, because
/// any replica serves them; their calls have a key, and the client below then infers no leader.
fn refusal_of(method: u16, answer: &[u8]) -> Result<Option<Refusal<'_>>, DecodeError> {
    Ok(match method {
        methods::WRITE => match WriteReply::decode(answer)? {
            WriteReply::Refused(refusal) => Some(refusal),
            WriteReply::Applied(_) => None,
        },
        methods::GET => match GetReply::decode(answer)? {
            GetReply::Refused(refusal) => Some(refusal),
            GetReply::Found { .. } | GetReply::NotFound => None,
        },
        methods::SCAN => match ScanReply::decode(answer)? {
            ScanReply::Refused(refusal) => Some(refusal),
            ScanReply::Pairs { .. } => None,
        },
        methods::STATUS => match Status::decode(answer)?.role {
            Role::Leader => None,
            _ => return Err(DecodeError::OutOfRange("role of a leader")),
        },
        _ => match AdminReply::decode(answer)? {
            AdminReply::Refused(refusal) => Some(refusal),
            AdminReply::Done | AdminReply::NoMember => None,
        },
    })
}

fn of_refusal(method: u16, refusal: Refusal<'_>) -> Verdict {
    let failed = |execution| {
        let error = Error::new(CallStatus::Unavailable, refusal.to_string());
        Verdict::Fail(error.with_execution(execution))
    };
    match refusal {
        Refusal::NotLeader { leader } => {
            let address =
                leader.and_then(|leader| leader.address.parse::<std::net::SocketAddr>().ok());
            Verdict::Redirect(address.map(Into::into))
        }
        Refusal::Unavailable { certainty: Certainty::Unknown, .. } => {
            failed(Execution::MayHaveExecuted)
        }
        // The leader refuses an operator's request, and the answer has the reason.
        Refusal::Unavailable { .. } if matches!(method, methods::MEMBER | methods::TRANSFER) => {
            Verdict::Accept
        }
        // This replica leads, and is overloaded: another replica could not help.
        Refusal::Unavailable { .. } | Refusal::TooManyPending => failed(Execution::Refused),
        Refusal::Malformed(_) | Refusal::SessionUnknown | Refusal::SequenceTooOld => {
            Verdict::Accept
        }
    }
}

#[cfg(test)]
mod tests {
    use petrel::client::Target;

    use super::*;
    use crate::api::{Applied, Leader, Outcome};

    fn of_write(reply: WriteReply<'_>) -> Verdict {
        let mut answer = Vec::new();
        reply.encode(&mut answer);
        judge(methods::WRITE, &answer)
    }

    fn refused(method: u16, refusal: Refusal<'_>) -> Verdict {
        let mut answer = Vec::new();
        match method {
            methods::WRITE => WriteReply::Refused(refusal).encode(&mut answer),
            _ => AdminReply::Refused(refusal).encode(&mut answer),
        }
        judge(method, &answer)
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
        let target = Target::from(std::net::SocketAddr::from(([10, 0, 0, 1], 7)));
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
            let mut answer = Vec::new();
            Status { role, ..Status::default() }.encode(&mut answer);
            assert_eq!(judge(methods::STATUS, &answer), verdict);
        }
    }

    #[test]
    fn judge__knows_what_may_have_been_done() {
        let unavailable = |method, certainty| {
            let verdict = refused(method, Refusal::Unavailable { certainty, reason: "busy" });
            match verdict {
                Verdict::Fail(error) => Some((error.status, error.execution)),
                _ => None,
            }
        };
        let [refused, unknown] = [Execution::Refused, Execution::MayHaveExecuted]
            .map(|execution| Some((CallStatus::Unavailable, execution)));
        assert_eq!(unavailable(methods::WRITE, Certainty::NotApplied), refused);
        assert_eq!(unavailable(methods::WRITE, Certainty::Unknown), unknown);
        assert_eq!(unavailable(methods::MEMBER, Certainty::Unknown), unknown);
        assert_eq!(
            unavailable(methods::MEMBER, Certainty::NotApplied),
            None,
            "the operator is told"
        );
    }
}
