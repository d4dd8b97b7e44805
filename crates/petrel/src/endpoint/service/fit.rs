//! The agreement of a client's methods with those of a server, which the server's tables show.

use std::collections::BTreeMap;

use petrel_proto::{SessionId, Status};

use crate::error::Error;
use crate::values::expected::{Expected, Misfit, Served};

/// The methods of a server, as far as a client needs them.
#[derive(Debug, Default)]
pub(super) struct Fit {
    asked: Asked,
    /// The client's methods with anything but their own number at this server.
    misfits: BTreeMap<u16, Suits>,
}

#[derive(Debug, Default)]
enum Asked {
    /// The client has no tables, or no session.
    #[default]
    No,
    /// In this session, with the latest failure.
    Open(SessionId, Option<String>),
    Answered(Served),
}

/// How a call of a method goes to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Suits {
    Known(Misfit),
    /// After the server's answer.
    Asked,
}

impl Suits {
    /// Returns the error of a call that is not sent.
    #[cold]
    pub(super) fn why_not(&self) -> Error {
        match self {
            Self::Known(Misfit::Other { .. }) => unreachable!("such a call is sent"),
            Self::Known(Misfit::Refused(why)) => Error::not_sent(Status::Unimplemented, why),
            Self::Asked => {
                let text = "the server has not named its methods yet";
                Error::not_sent(Status::Unavailable, text)
            }
        }
    }
}

impl Fit {
    /// Forgets the methods of a session that is over.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns true if every method has the client's own number.
    pub(super) fn is_perfect(&self) -> bool {
        self.misfits.is_empty()
    }

    /// Returns how a call of a typed method goes to the server, unless by the client's own number.
    pub(super) fn of(&self, method: Option<u16>) -> Option<&Suits> {
        self.misfits.get(&method?)
    }

    /// Returns true if a call of a method can be sent now.
    pub(super) fn is_callable(&self, method: Option<u16>) -> bool {
        matches!(self.of(method), None | Some(Suits::Known(Misfit::Other { .. })))
    }

    /// Returns the rank of the server for calls of a method: servers that understand the call come first. A call with a key waits for the
    /// answer of the key's owner.
    pub(super) fn rank(&self, method: Option<u16>, has_key: bool) -> u8 {
        match self.of(method) {
            None | Some(Suits::Known(Misfit::Other { .. })) => 0,
            Some(Suits::Asked) => u8::from(!has_key),
            Some(Suits::Known(Misfit::Refused(_))) => 2,
        }
    }

    /// Adds a table of the client. Returns true if the server is to be asked for its tables.
    pub(super) fn add(&mut self, expected: &Expected, session: SessionId) -> bool {
        match &self.asked {
            Asked::Answered(served) => {
                let misfits = expected.misfits(served).into_iter();
                self.misfits.extend(misfits.map(|(own, misfit)| (own, Suits::Known(misfit))));
                false
            }
            Asked::Open(..) | Asked::No => {
                self.misfits.extend(expected.numbers().iter().map(|own| (*own, Suits::Asked)));
                let is_new = !self.is_asked_in(session);
                if is_new {
                    self.asked = Asked::Open(session, None);
                }
                is_new
            }
        }
    }

    /// Records the answer of a session. Returns false if another session was asked meanwhile.
    pub(super) fn told(&mut self, session: SessionId, served: Served) -> bool {
        let is_asked = self.is_asked_in(session);
        if is_asked {
            *self = Self { asked: Asked::Answered(served), misfits: BTreeMap::new() };
        }
        is_asked
    }

    fn is_asked_in(&self, session: SessionId) -> bool {
        matches!(self.asked, Asked::Open(asked, _) if asked == session)
    }

    /// Records why a session has not answered so far.
    pub(super) fn failed(&mut self, session: SessionId, why: String) {
        if let Asked::Open(asked, failure) = &mut self.asked
            && *asked == session
        {
            *failure = Some(why);
        }
    }

    /// Returns why the server has not named its methods so far.
    pub(super) fn failure(&self) -> Option<&str> {
        match &self.asked {
            Asked::Open(_, failure) => failure.as_deref(),
            Asked::No | Asked::Answered(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::method_table::{MethodEntry, ServiceTable};

    #[test]
    fn fit__of_a_server_that_fails_and_then_lacks_the_service() {
        static TABLE: ServiceTable = ServiceTable {
            name: "S",
            version: "1",
            methods: &[MethodEntry {
                name: "M",
                id: Some(7),
                is_idempotent: false,
                streams: (false, false),
                codec: "text",
                schema: || 0,
            }],
            descriptors: &[],
        };
        let expected = Expected::new(&TABLE, vec![7, 8]);
        let [before, session] = [1, 2].map(|index| SessionId { index, generation: 0 });
        let (mut fit, method) = (Fit::default(), Some(7));
        assert!(fit.add(&expected, session), "the server is to be asked");
        assert!(!fit.add(&expected, session), "once");
        assert_eq!([false, true].map(|has_key| fit.rank(method, has_key)), [1, 0]);
        assert_eq!((fit.is_callable(method), fit.is_callable(None)), (false, true));
        fit.failed(before, "of an earlier session".to_owned());
        assert_eq!(fit.failure(), None);
        fit.failed(session, "no answer".to_owned());
        assert_eq!(fit.failure(), Some("no answer"));
        assert!(!fit.told(before, Served::Malformed));
        assert!(fit.told(session, Served::Services(Vec::new())));
        assert!(!fit.add(&expected, session), "the server has answered");
        assert_eq!((fit.failure(), fit.rank(method, true), fit.is_perfect()), (None, 2, false));
        let why = fit.of(method).expect("a misfit").why_not();
        assert_eq!(why.status, Status::Unimplemented);
    }
}
