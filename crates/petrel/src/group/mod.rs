//! One call to many peers.
//!
//! A [`Group`] is a list of sessions. [`Group::call`] sends one message to all of them, built once
//! ([`SharedMsg`](crate::endpoint::SharedMsg)), and ends as soon as its outcome is certain: when as many members have answered as are
//! [needed](Need), or so many have failed that they cannot any more. The outcome tells what is known of each
//! member, with its status and whether it may have executed the call.
//!
//! A group call that failed may have been executed by some members, and so may one of which a quorum has
//! answered: nothing is taken back. What a member answers after the decision is dropped; whether it is still
//! asked to do it, says [`Late`].
//!
//! | module | what it holds |
//! | --- | --- |
//! | `collect` | when the outcome is certain: [`Collect`], a state machine of its own |
//! | `call` | a call to each member, and where they end |
//! | `future` | the same as a future |
//! | `clients` | [`ClientGroup`]: clients in place of sessions, from any thread |

mod call;
mod clients;
mod collect;
mod future;

pub use call::{GroupCall, GroupReply, Late};
pub use clients::ClientGroup;
pub use collect::{Collect, GroupFailure, MEMBERS_MAX, Member, MemberOutcome, Need, Verdict};

use std::cell::Cell;
use std::rc::Rc;

use petrel_proto::SessionId;

use crate::error::Error;

/// Sessions that are called together. Clones are the same group.
///
/// A session that ends stays a member, whose calls fail: a [`ClientGroup`] has members that come back.
#[derive(Clone, Debug)]
pub struct Group {
    members: Rc<[SessionId]>,
    /// Its number as one that is sent to by multicast.
    multicast: Rc<Cell<Option<u32>>>,
}

impl Group {
    /// A group of these sessions, all of one endpoint.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: none, too many, or one twice.
    pub fn new(members: impl IntoIterator<Item = SessionId>) -> Result<Self, Error> {
        let members: Rc<[SessionId]> = members.into_iter().collect();
        collect::check_members(&members)?;
        Ok(Self { members, multicast: Rc::default() })
    }

    /// The members, in their order.
    pub fn members(&self) -> &[SessionId] {
        &self.members
    }

    pub(crate) fn multicast(&self) -> Option<u32> {
        self.multicast.get()
    }

    pub(crate) fn set_multicast(&self, number: Option<u32>) {
        self.multicast.set(number);
    }
}
