//! One call to many peers.
//!
//! A [`Group`] is a list of sessions. [`Group::call`] sends one message, built once
//! ([`SharedMsg`](crate::endpoint::SharedMsg)), to all of them. The call ends as soon as the outcome is certain: as
//! many members have answered as are [needed](Need), or too many have failed. The outcome lists each member's status,
//! and whether the member may have executed the call.
//!
//! Some members may have executed a failed group call, as may members outside a quorum that answered: nothing is rolled
//! back. Responses after the decision are dropped; [`Late`] says whether outstanding calls are cancelled.
//!
//! | module | contents |
//! | --- | --- |
//! | `collect` | [`Collect`], a state machine that decides when the outcome is certain |
//! | `call` | the calls to the members, and their outcomes |
//! | `future` | group calls as futures |
//! | `clients` | [`ClientGroup`]: clients in place of sessions, from any thread |

mod call;
mod clients;
mod collect;
mod future;
mod multicast;

pub use call::{GroupCall, GroupReply, Late};
pub use clients::ClientGroup;
pub use collect::{Collect, GroupFailure, MEMBERS_MAX, Member, MemberOutcome, Need, Verdict};

use std::cell::Cell;
use std::rc::Rc;

use petrel_proto::SessionId;

use crate::error::Error;

/// A list of sessions for group calls. Clones are the same group.
///
/// A session that ends stays a member, and calls to it fail; the members of a [`ClientGroup`] reconnect.
#[derive(Clone, Debug)]
pub struct Group {
    members: Rc<[SessionId]>,
    /// Its number for multicast, if any.
    multicast: Rc<Cell<Option<u32>>>,
}

impl Group {
    /// Creates a group of these sessions, all of one endpoint.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for no members, too many, or a session listed twice.
    pub fn new(members: impl IntoIterator<Item = SessionId>) -> Result<Self, Error> {
        let members: Rc<[SessionId]> = members.into_iter().collect();
        collect::check_members(&members)?;
        Ok(Self { members, multicast: Rc::default() })
    }

    /// Returns the members in order.
    pub fn members(&self) -> &[SessionId] {
        &self.members
    }

    fn multicast(&self) -> Option<u32> {
        self.multicast.get()
    }

    fn set_multicast(&self, number: Option<u32>) {
        self.multicast.set(number);
    }
}
