//! The agreement of a client's methods with those of a server, which the server's tables show.

use petrel_proto::{SessionId, Status};

use crate::error::Error;
use crate::values::method_table::{Expected, Misfit, ServedService};

/// The methods of a server, as far as a client needs them.
#[derive(Debug, Default)]
pub(super) struct Fit {
    served: Served,
    /// The client's methods with anything but their own number at this server.
    misfits: Vec<(u16, Suits)>,
}

#[derive(Debug, Default)]
enum Served {
    /// The client has no tables, or no session.
    #[default]
    NotAsked,
    Asked(SessionId),
    /// The server's services; `None` of a server that has no tables.
    Known(Option<Vec<ServedService>>),
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
            Self::Known(Misfit::Number(_)) => unreachable!("such a call is sent"),
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

    /// Returns how a call of a method goes to the server, unless by the client's own number.
    pub(super) fn of(&self, method: u16) -> Option<&Suits> {
        let found = self.misfits.iter().find(|(own, _)| *own == method);
        found.map(|(_, suits)| suits)
    }

    /// Returns the rank of the server for calls of a method: servers that understand the call come first.
    pub(super) fn rank(&self, method: u16) -> u8 {
        match self.of(method) {
            None | Some(Suits::Known(Misfit::Number(_))) => 0,
            Some(Suits::Asked) => 1,
            Some(Suits::Known(Misfit::Refused(_))) => 2,
        }
    }

    /// Adds a table of the client. Returns true if the server is to be asked for its tables.
    pub(super) fn add(&mut self, expected: &Expected, session: SessionId) -> bool {
        match &self.served {
            Served::Known(served) => {
                let misfits = expected.misfits(served.as_deref()).into_iter();
                self.misfits.extend(misfits.map(|(own, misfit)| (own, Suits::Known(misfit))));
                false
            }
            Served::Asked(_) | Served::NotAsked => {
                self.misfits.extend(expected.numbers().iter().map(|own| (*own, Suits::Asked)));
                let is_asked = matches!(self.served, Served::Asked(asked) if asked == session);
                self.served = Served::Asked(session);
                !is_asked
            }
        }
    }

    /// Records the answer of a session. Returns false if another session was asked meanwhile.
    pub(super) fn told(&mut self, session: SessionId, served: Option<Vec<ServedService>>) -> bool {
        let is_asked = matches!(self.served, Served::Asked(asked) if asked == session);
        if is_asked {
            *self = Self { served: Served::Known(served), misfits: Vec::new() };
        }
        is_asked
    }
}
