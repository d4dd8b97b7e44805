//! Numbers of the methods by which replicas talk to each other. Clients' are in [`crate::api`].

/// Messages of Raft; what they cause for the sender is the answer.
pub(crate) const RAFT: u16 = 16;
/// Who is who: [`super::hello::Hello`], both ways.
pub(crate) const HELLO: u16 = 17;
/// A replica asks to be taken in: [`super::hello::Join`].
pub(crate) const JOIN: u16 = 18;
/// A part of a snapshot.
pub(crate) const SNAPSHOT: u16 = 19;
/// A snapshot could not be fetched.
pub(crate) const SNAPSHOT_FAILED: u16 = 20;
