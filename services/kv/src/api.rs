//! The service definition: methods, their requests and their replies (`docs/kv-protocol.md`).
//!
//! | method | request | reply |
//! | --- | --- | --- |
//! | [`WRITE`](methods::WRITE) | [`Command`](crate::command::Command) | [`WriteReply`] |
//! | [`GET`](methods::GET) | [`GetRequest`] | [`GetReply`] |
//! | [`SCAN`](methods::SCAN) | [`ScanRequest`] | [`ScanReply`] |
//! | [`SAVE`](methods::SAVE) | [`SaveRequest`] | [`SaveReply`] |
//! | [`LEASE`](methods::LEASE) | [`LeaseRequest`] | [`LeaseReply`] |
//! | [`REVISION`](methods::REVISION) | [`RevisionRequest`] | [`RevisionReply`] |
//! | [`WATCH`](methods::WATCH) | [`WatchRequest`] | a stream of [`WatchMessage`] |
//! | [`STATUS`](methods::STATUS) | nothing | [`Status`] |
//! | [`MEMBER`](methods::MEMBER) | [`MemberRequest`] | [`AdminReply`] |
//! | [`TRANSFER`](methods::TRANSFER) | [`TransferRequest`] | [`AdminReply`] |
//!
//! Every type encodes itself onto the end of a `Vec<u8>`, and decodes itself from a message from which it borrows.

mod admin;
mod get;
mod lease;
pub mod methods;
mod refusal;
mod save;
mod scan;
mod status;
mod watch;
mod write;

pub use admin::{AdminReply, MemberChange, MemberRequest, TransferRequest};
pub use get::{Consistency, GetReply, GetRequest};
pub use lease::{LeaseReply, LeaseRequest, LeaseState};
pub use refusal::{Certainty, Leader, Refusal};
pub use save::{SaveReply, SaveRequest};
pub use scan::{Pair, Pairs, PairsBuffer, ScanReply, ScanRequest};
pub use status::{Member, MemberKind, Role, Status};
pub use watch::{Change, Changes, RevisionReply, RevisionRequest, WatchMessage, WatchRequest};
pub(crate) use watch::{Compacted, Watching, WatchingClient, WatchingServer};
pub use write::{Applied, LeaseOutcome, Outcome, RestoreOutcome, WriteReply};

pub use crate::wire::DecodeError;
