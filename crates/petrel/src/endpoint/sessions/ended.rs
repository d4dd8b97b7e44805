//! The ends of sessions.

use std::collections::VecDeque;

use petrel_proto::SessionId;

use crate::control::Reason;
use crate::endpoint::SessionEnds;
use crate::values::SessionEnd;

/// Ended sessions whose reason is kept.
const ENDED_MAX: usize = 1024;

/// An ended session.
pub(in crate::endpoint) struct Ended {
    id: SessionId,
    end: SessionEnd,
    reason: Reason,
}

impl Ended {
    pub(in crate::endpoint) fn new(id: SessionId, end: SessionEnd, reason: Reason) -> Self {
        Self { id, end, reason }
    }

    pub(in crate::endpoint) fn id(&self) -> &SessionId {
        &self.id
    }

    pub(in crate::endpoint) fn how_and_why(&self) -> (SessionEnd, &Reason) {
        (self.end, &self.reason)
    }
}

/// The last ended sessions, and the number of all.
#[derive(Default)]
pub(super) struct EndedSessions {
    /// Oldest first.
    last: VecDeque<Ended>,
    counts: SessionEnds,
}

impl EndedSessions {
    pub(super) fn record(&mut self, ended: Ended) {
        self.counts.count(ended.end);
        if self.last.len() == ENDED_MAX {
            self.last.pop_front();
        }
        self.last.push_back(ended);
        assert!(self.last.len() <= ENDED_MAX, "the ends of sessions are kept within their limit");
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Ended> {
        self.last.iter().rev().find(|ended| ended.id == id)
    }

    /// Returns how many sessions ended in each way.
    pub(super) fn counts(&self) -> SessionEnds {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::Status;

    use super::*;

    #[test]
    fn record__keeps_the_last_ends() {
        let mut sessions = EndedSessions::default();
        let id = |index: usize| SessionId { index: index as u32, generation: 0 };
        for index in 0..ENDED_MAX + 3 {
            let reason = Reason::new(Status::Unavailable, index.to_string());
            sessions.record(Ended::new(id(index), SessionEnd::Invalid, reason));
            assert_eq!(sessions.last.len(), (index + 1).min(ENDED_MAX));
        }
        let why = |index| sessions.get(id(index)).map(|ended| ended.reason.message.to_string());
        assert_eq!((why(2), why(3)), (None, Some("3".to_owned())));
        assert_eq!(why(ENDED_MAX + 2), Some((ENDED_MAX + 2).to_string()));
        assert_eq!(sessions.counts().get(SessionEnd::Invalid), ENDED_MAX as u64 + 3);
    }
}
