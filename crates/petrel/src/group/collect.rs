//! Decides when the outcome of a group call is certain, without clock, calls or buffers of its own.

use crate::error::Error;
use std::fmt;

use petrel_proto::{CallFailure, Execution, SessionId, Status};

/// The most members of a group: a call sends to all of them at once and keeps a record of each.
pub const MEMBERS_MAX: usize = 1024;

/// How many members have to answer successfully.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Every member. One failure decides.
    All,
    /// This number, at least one.
    Quorum(usize),
    /// One.
    Any,
    /// No particular number: the outcome is every answer that has come by the call's deadline, and the failure of every other member. For
    /// searches over shards, where a part of the answer is better than none. The call itself never fails.
    Each,
}

impl Need {
    /// Returns the number of responses needed among `members`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if no outcome could satisfy it.
    pub fn of(self, members: usize) -> Result<usize, Error> {
        match self {
            Need::All => Ok(members),
            Need::Any => Ok(1),
            Need::Each => Ok(0),
            Need::Quorum(needed) if (1..=members).contains(&needed) => Ok(needed),
            Need::Quorum(needed) => Err(invalid(format!(
                "a quorum of {needed} among {members} members; it has to be 1 to {members}"
            ))),
        }
    }
}

/// The outcome of the call to one member.
#[derive(Debug)]
pub enum MemberOutcome<A> {
    /// The call was outstanding when the group's outcome was certain: the server may execute it.
    Pending,
    /// The member answered.
    Answered(A),
    /// The call failed.
    Failed(Error),
}

impl<A> MemberOutcome<A> {
    /// Returns the response, if it arrived.
    pub fn answer(&self) -> Option<&A> {
        match self {
            MemberOutcome::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// Returns the failure, if the call failed.
    pub fn failure(&self) -> Option<&CallFailure> {
        match self {
            MemberOutcome::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

/// A member with its outcome.
#[derive(Debug)]
pub struct Member<A, M = SessionId> {
    /// The member: its session.
    pub id: M,
    /// The outcome of the call to it.
    pub outcome: MemberOutcome<A>,
}

/// The effect of a member's outcome on the group's outcome.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both outcomes are still possible.
    Undecided,
    /// This member's outcome decides, which happens once: `true` for enough successful responses.
    Decided(bool),
    /// The outcome was certain before.
    Late,
}

/// Collects the outcomes of a group call, and reports when the group's outcome is certain: with enough responses, or
/// with too many failures.
///
/// 1. [`Collect::take`], once for each member, in any order;
/// 2. at [`Verdict::Decided`], [`Collect::finish`].
#[derive(Debug)]
pub struct Collect<A, M = SessionId> {
    members: Vec<Member<A, M>>,
    needed: usize,
    /// Whether the outcome is certain only when each member's is.
    is_of_each: bool,
    answered: usize,
    failed: usize,
}

impl<A, M> Collect<A, M> {
    /// Creates a collection without outcomes.
    ///
    /// # Errors
    /// There are no members or too many, or the need exceeds the members: each failed with INVALID_ARGUMENT without a
    /// call.
    pub fn new(ids: impl IntoIterator<Item = M>, need: Need) -> Result<Self, GroupFailure<A, M>> {
        let pending = |id| Member { id, outcome: MemberOutcome::Pending };
        let mut members: Vec<_> = ids.into_iter().map(pending).collect();
        let count = members.len();
        match check_count(count).and_then(|()| need.of(count)) {
            Ok(needed) => {
                let is_of_each = need == Need::Each;
                Ok(Self { members, needed, is_of_each, answered: 0, failed: 0 })
            }
            Err(error) => {
                for member in &mut members {
                    member.outcome = MemberOutcome::Failed(error.clone());
                }
                let needed = if let Need::Quorum(needed) = need { needed } else { count };
                Err(GroupFailure { needed, members })
            }
        }
    }

    /// Adds the outcome of a member's call.
    ///
    /// # Panics
    /// When `member` does not exist, or its call has ended before.
    pub fn take(&mut self, member: usize, outcome: Result<A, Error>) -> Verdict {
        let was_decided = self.decided().is_some();
        let place = &mut self.members[member].outcome;
        assert!(matches!(place, MemberOutcome::Pending), "member {member} ended twice");
        match outcome {
            Ok(answer) => {
                self.answered += 1;
                *place = MemberOutcome::Answered(answer);
            }
            Err(failure) => {
                self.failed += 1;
                *place = MemberOutcome::Failed(failure);
            }
        }
        assert!(
            self.answered + self.failed <= self.members.len(),
            "each member of a group ends once"
        );
        match self.decided() {
            _ if was_decided => Verdict::Late,
            Some(succeeded) => Verdict::Decided(succeeded),
            None => Verdict::Undecided,
        }
    }

    fn decided(&self) -> Option<bool> {
        if self.is_of_each {
            return (self.answered + self.failed == self.members.len()).then_some(true);
        }
        if self.answered >= self.needed {
            return Some(true);
        }
        (self.members.len() - self.failed < self.needed).then_some(false)
    }

    /// Returns every member with its current outcome.
    pub fn members(&self) -> &[Member<A, M>] {
        &self.members
    }

    /// Returns the group's outcome with the outcome of every member: enough responses, or a failure.
    ///
    /// # Errors
    /// [`GroupFailure`], also if called before the outcome is certain.
    pub fn finish(self) -> Result<Vec<Member<A, M>>, GroupFailure<A, M>> {
        let Self { members, needed, .. } = self;
        match self.answered >= needed {
            true => Ok(members),
            false => Err(GroupFailure { needed, members }),
        }
    }
}

#[cold]
fn invalid(message: String) -> Error {
    Error::not_sent(Status::InvalidArgument, message)
}

pub(super) fn check_count(members: usize) -> Result<(), Error> {
    match members {
        0 => Err(invalid("a group needs at least one member".to_owned())),
        1..=MEMBERS_MAX => Ok(()),
        _ => Err(invalid(format!("a group has at most {MEMBERS_MAX} members, not {members}"))),
    }
}

/// Checks the members of a group: a duplicate would get each call twice, and count twice.
pub(super) fn check_members<M: Ord + Copy>(ids: &[M]) -> Result<(), Error> {
    check_count(ids.len())?;
    let mut places: Vec<_> = ids.iter().enumerate().map(|(at, &id)| (id, at)).collect();
    places.sort_unstable();
    let twice = places.windows(2).find(|pair| pair[0].0 == pair[1].0);
    match twice {
        Some(pair) => Err(invalid(format!(
            "members {} and {} of the group are the same",
            pair[0].1, pair[1].1
        ))),
        None => Ok(()),
    }
}

/// Too few members answered successfully.
#[derive(Debug)]
pub struct GroupFailure<A, M = SessionId> {
    /// The number of responses needed.
    pub needed: usize,
    /// The outcome of every member, in the group's order.
    pub members: Vec<Member<A, M>>,
}

impl<A, M> GroupFailure<A, M> {
    /// Returns the most frequent status of the failures; of equally frequent ones, the first in the group's order.
    pub fn status(&self) -> Status {
        let all: Vec<Status> = self.failures().map(|(_, failure)| failure.status).collect();
        let count = |status: &Status| all.iter().filter(|&other| other == status).count();
        let most = all.iter().map(count).max();
        let first = all.iter().find(|&status| Some(count(status)) == most);
        first.copied().unwrap_or(Status::Unknown)
    }

    /// Returns the failed members by their place in the group.
    pub fn failures(&self) -> impl Iterator<Item = (usize, &CallFailure)> {
        let members = self.members.iter().enumerate();
        members.filter_map(|(place, member)| Some((place, member.outcome.failure()?)))
    }

    fn count(&self, is: impl Fn(&MemberOutcome<A>) -> bool) -> usize {
        self.members.iter().filter(|member| is(&member.outcome)).count()
    }
}

impl<A, M> fmt::Display for GroupFailure<A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, all) = (self.needed, self.members.len());
        let answered = self.count(|outcome| outcome.answer().is_some());
        let pending = self.count(|outcome| matches!(outcome, MemberOutcome::Pending));
        write!(f, "{answered} of {all} members answered, and {needed} had to")?;
        for (place, failure) in self.failures() {
            write!(f, "; member {place}: {failure}")?;
        }
        match pending {
            0 => Ok(()),
            _ => write!(f, "; {pending} had not ended"),
        }
    }
}

impl<A: fmt::Debug, M: fmt::Debug> std::error::Error for GroupFailure<A, M> {}

impl<A, M> From<GroupFailure<A, M>> for Error {
    /// Takes the most frequent status. Any member that was called may have executed the call.
    fn from(failure: GroupFailure<A, M>) -> Self {
        let did_not_run = |outcome: &MemberOutcome<A>| {
            let execution = outcome.failure().map(|failure| failure.execution);
            matches!(execution, Some(Execution::NotSent | Execution::Refused))
        };
        let execution = match failure.members.iter().all(|member| did_not_run(&member.outcome)) {
            true => Execution::NotSent,
            false => Execution::MayHaveExecuted,
        };
        Error::of(failure.status(), failure.to_string(), execution)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(count: u32) -> Vec<SessionId> {
        (0..count).map(|index| SessionId { index, generation: 1 }).collect()
    }

    fn failure(status: Status) -> Error {
        let execution = Execution::MayHaveExecuted;
        Error::of(status, "gone", execution)
    }

    fn outcome(answers: bool) -> Result<u8, Error> {
        if answers { Ok(7) } else { Err(failure(Status::Unavailable)) }
    }

    /// The certain outcome after these ends, found by trying all ends of the rest.
    fn naive(ended: &[bool], all: usize, needed: usize) -> Option<bool> {
        let answered = ended.iter().filter(|&&answers| answers).count();
        let rest = all - ended.len();
        let ends: Vec<bool> = (0..=rest).map(|more| answered + more >= needed).collect();
        ends.iter().all(|&end| end == ends[0]).then_some(ends[0])
    }

    #[test]
    fn each__is_decided_by_the_last_member_whatever_its_outcome() {
        let late = || Err(Error::of(Status::DeadlineExceeded, "late", Execution::MayHaveExecuted));
        let mut collect = Collect::<u32, usize>::new(0..3, Need::Each).unwrap();
        assert_eq!(collect.take(1, late()), Verdict::Undecided);
        assert_eq!(collect.take(0, Ok(7)), Verdict::Undecided);
        assert_eq!(collect.take(2, late()), Verdict::Decided(true));
        let members = collect.finish().unwrap();
        let answers: Vec<_> = members.iter().map(|member| member.outcome.answer()).collect();
        assert_eq!(answers, [Some(&7), None, None]);
        let mut none = Collect::<u32, usize>::new(0..1, Need::Each).unwrap();
        assert_eq!(none.take(0, late()), Verdict::Decided(true));
        assert!(none.finish().unwrap()[0].outcome.failure().is_some());
    }

    #[test]
    fn take__decides_exactly_when_nothing_else_can_happen() {
        for all in 1..=6u32 {
            for (needed, pattern) in
                (1..=all as usize).flat_map(|k| (0..1u32 << all).map(move |p| (k, p)))
            {
                let mut collect = Collect::new(sessions(all), Need::Quorum(needed)).unwrap();
                let ends: Vec<bool> = (0..all).map(|member| pattern >> member & 1 == 1).collect();
                for member in 0..all as usize {
                    let verdict = collect.take(member, outcome(ends[member]));
                    let before = naive(&ends[..member], all as usize, needed);
                    let expected = match naive(&ends[..=member], all as usize, needed) {
                        _ if before.is_some() => Verdict::Late,
                        Some(end) => Verdict::Decided(end),
                        None => Verdict::Undecided,
                    };
                    assert_eq!(verdict, expected, "{needed} of {all}, {ends:?}, member {member}");
                }
                assert_eq!(collect.finish().is_ok(), naive(&ends, all as usize, needed).unwrap());
            }
        }
    }

    #[test]
    fn need__all_any_and_quorums_that_cannot_be() {
        assert_eq!(
            (Need::All.of(5), Need::Any.of(5), Need::Quorum(5).of(5)),
            (Ok(5), Ok(1), Ok(5))
        );
        for needed in [0, 6] {
            let refused = Need::Quorum(needed).of(5).unwrap_err();
            assert_eq!(refused.status, Status::InvalidArgument);
            assert!(refused.message.starts_with(&format!("a quorum of {needed} among 5")));
        }
    }

    #[test]
    fn new__refuses_too_few_and_too_many_members() {
        let error = |members: usize| Collect::<u8, _>::new(0..members, Need::Any).unwrap_err();
        assert!(error(0).members.is_empty());
        let error = Error::from(error(MEMBERS_MAX + 1));
        assert_eq!((error.status, error.execution), (Status::InvalidArgument, Execution::NotSent));
        assert!(error.message.contains("a group has at most 1024 members, not 1025"), "{error}");
        assert!(Collect::<u8, _>::new(0..MEMBERS_MAX, Need::All).is_ok());
    }

    #[test]
    fn check_members__finds_duplicates() {
        let mut twice = sessions(4);
        twice.push(twice[1]);
        let error = |members: &[SessionId]| check_members(members).unwrap_err().message.clone();
        assert_eq!(error(&twice), "members 1 and 4 of the group are the same");
        assert_eq!(error(&[]), "a group needs at least one member");
        // Another session in the same place is another member.
        let later = SessionId { index: 0, generation: 2 };
        assert_eq!(check_members(&[later, sessions(1)[0]]), Ok(()));
    }

    #[test]
    fn finish__has_the_outcome_of_every_member() {
        let mut collect = Collect::new(sessions(4), Need::Quorum(3)).unwrap();
        assert_eq!(collect.take(2, Ok(9)), Verdict::Undecided);
        assert_eq!(collect.take(0, Err(failure(Status::Internal))), Verdict::Undecided);
        assert_eq!(collect.take(3, Err(failure(Status::Unavailable))), Verdict::Decided(false));
        let failed = collect.finish().unwrap_err();
        assert_eq!(failed.status(), Status::Internal, "the first of equally many");
        assert_eq!(failed.members[2].outcome.answer(), Some(&9));
        assert!(matches!(failed.members[1].outcome, MemberOutcome::Pending));
        let text = failed.to_string();
        for part in [
            "1 of 4 members answered, and 3 had to",
            "member 0: INTERNAL",
            "member 3: UNAVAILABLE",
            "may have been executed",
            "1 had not ended",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    panics! {
        take__of_a_member_that_has_ended: "ended twice" => {
            let mut collect = Collect::new(sessions(2), Need::All).unwrap();
            collect.take(0, outcome(true));
            collect.take(0, outcome(true));
        };
    }
}
