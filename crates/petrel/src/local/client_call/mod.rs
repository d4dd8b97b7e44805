//! A client's call between the endpoint's thread and the caller. The hub keeps states and memory of ended calls for the next.
//!
//! | file | contents |
//! | --- | --- |
//! | `state` | the state that both sides share, and the outcome |
//! | `response` | [`Response`]: a message, and the server that gave it |
//! | `places` | the limit of outstanding calls |
//! | `memories` | the memory of responses, kept by a thread |

mod memories;
pub(crate) mod places;
pub(crate) mod response;
pub(crate) mod state;

pub use response::Response;
