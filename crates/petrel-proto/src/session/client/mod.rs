//! The client's half of a session (`docs/wire-protocol.md` §5).
//!
//! | module | concern |
//! | --- | --- |
//! | `session` | the session: its slots, its credits, and the slots that wait for a credit or for the pace |
//! | `slot` | the place of one outstanding call, from the request to the end |
//! | `parts` | the state of a slot for recovery and for messages of several packets |
//! | `order` | the numbers of calls in a session that keeps an order |
//! | `paths` | the paths of a session of several |
//! | `reception` | whether multicast reaches the server |

mod order;
mod parts;
mod paths;
mod reception;
mod session;
mod slot;

pub(crate) use order::CallOrder;
pub(crate) use parts::ClientParts;
pub(crate) use paths::{ClientPaths, NextCopy};
pub(crate) use session::{
    Acknowledged, ClientSession, PlainAnswer, PlainPlace, PlainSend, SlotEnd,
};
pub(crate) use slot::{ClientSlot, ClientState, SendPath, SlotCall};
