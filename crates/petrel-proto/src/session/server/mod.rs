//! The server's half of a session (`docs/wire-protocol.md` §6).
//!
//! | module | concern |
//! | --- | --- |
//! | `session` | the session: its parameters and its slots |
//! | `slot` | the place of one request, from the first packet to the answer's last repetition |
//! | `parts` | the state of a slot for recovery and for messages of several packets |

mod parts;
mod session;
mod slot;

pub(crate) use parts::ServerParts;
pub(crate) use session::{Age, ServerSession};
pub(crate) use slot::{ServerSlot, ServerState};
