//! The server's half of the protocol: functions over a session in the server role, and what all sessions share
//! (`docs/wire-protocol.md` §6).
//!
//! | file | concern |
//! | --- | --- |
//! | `request` | packets of requests, up to the handler |
//! | `run` | the steps of a request in its slot |
//! | `respond`, `send` | the application's answers, and their transmission |
//! | `order`, `settle` | requests that wait for earlier ones of their session |
//! | `pull` | the client asks for packets of an answer |
//! | `refuse` | errors that the core answers itself |
//! | `abandon`, `watched` | requests whose client no longer waits; their owners, who are told |
//! | `memory` | the memory of half-arrived requests and large answers |
//! | `by_paths` | sessions of several paths |

pub(super) mod abandon;
pub(super) mod by_paths;
pub(super) mod memory;
pub(super) mod order;
pub(super) mod pull;
pub(super) mod refuse;
pub(super) mod request;
pub(super) mod respond;
pub(super) mod run;
pub(super) mod send;
pub(super) mod settle;
pub(super) mod watched;
