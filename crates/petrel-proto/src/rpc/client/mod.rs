//! The client's half of the protocol: functions over a session in the client role, and what all sessions share
//! (`docs/wire-protocol.md` §5, §7).
//!
//! | file | concern |
//! | --- | --- |
//! | `call` | calls in slots, from their start to their end |
//! | `start` | a call in its slot, and calls that never got one |
//! | `order` | calls of sessions that keep an order |
//! | `send`, `grant` | packets of requests, and PULLs |
//! | `credit`, `response` | frames from the server |
//! | `turn` | the choice among these for a slot in the transmit queue |
//! | `timeout`, `expiry` | silence, and deadlines |
//! | `pace` | sessions that congestion control holds back |
//! | `cancels` | notices to servers that a request has ended |
//! | `by_paths` | sessions of several paths |

pub(super) mod by_paths;
pub(super) mod call;
pub(super) mod cancels;
pub(super) mod credit;
pub(super) mod expiry;
pub(super) mod grant;
pub(super) mod order;
pub(super) mod pace;
pub(super) mod response;
pub(super) mod send;
pub(super) mod start;
pub(super) mod timeout;
pub(super) mod turn;
