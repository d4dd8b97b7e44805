//! Plain values that the engine, its tasks and its inbox share with the faces above. Their public paths are in
//! [`endpoint`](crate::endpoint) and [`client`](crate::client).
//!
//! | file | contents |
//! | --- | --- |
//! | `call_options` | [`CallOptions`]: the options of a call |
//! | `session_state`, `session_end` | [`SessionState`] and [`SessionEnd`] |
//! | `shared_msg` | [`SharedMsg`]: a message for many receivers |
//! | `stream_config` | [`StreamConfig`]: the limits of streams |
//! | `reverse` | [`Reverse`]: whose handlers the server of a link may call |
//! | `state` | [`State`]: the application's state, lent without its type |
//! | `expected` | [`Expected`](expected::Expected): the methods that a client expects at its servers |
//! | `method_table` | [`ServiceTable`]: the methods of a typed service, by name |
//! | `metadata` | [`Metadata`]: entries beside the message of a call |
//! | `client/` | the servers, settings and counters of a client |

mod call_options;
pub(crate) mod client;
pub(crate) mod expected;
pub(crate) mod metadata;
pub(crate) mod method_table;
mod reverse;
mod session_end;
mod session_state;
mod shared_msg;
mod state;
mod stream_config;

pub use call_options::CallOptions;
pub use metadata::{Entry, Metadata};
pub use session_end::SessionEnd;
pub use session_state::SessionState;
pub use shared_msg::SharedMsg;
pub use stream_config::StreamConfig;

pub(crate) use call_options::{Marks, limits};
pub(crate) use metadata::Envelope;
pub(crate) use reverse::{CallbacksKey, Reverse};
pub(crate) use state::State;
