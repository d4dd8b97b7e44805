//! The server's half of a session (`docs/wire-protocol.md` §6).
//!
//! | module | concern |
//! | --- | --- |
//! | `session` | the session: its parameters and its slots |
//! | `slot` | the place of one request, from the first packet to the answer's last repetition |
//! | `order` | the requests that wait for earlier ones, in a session that keeps an order |
//! | `paths` | the paths of a session of several |
//! | `parts` | the state of a slot for recovery and for messages of several packets |

mod order;
mod parts;
mod paths;
mod session;
mod slot;

pub(crate) use order::Early;
pub(crate) use parts::ServerParts;
pub(crate) use paths::ServerPaths;
pub(crate) use session::{Age, ServerSession};
pub(crate) use slot::{ServerSlot, ServerState};
