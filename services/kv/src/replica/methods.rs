//! Numbers of the methods between replicas. The clients' methods are in [`crate::api`].

/// Messages of Raft. The response carries the resulting messages for the sender.
pub(crate) const RAFT: u16 = 16;
/// Introduction of two replicas: [`super::hello::Hello`], in both directions.
pub(crate) const HELLO: u16 = 17;
/// A replica's request to become a member: [`super::hello::Join`].
pub(crate) const JOIN: u16 = 18;
/// A part of a snapshot.
pub(crate) const SNAPSHOT: u16 = 19;
/// Reports the failure of a snapshot fetch.
pub(crate) const SNAPSHOT_FAILED: u16 = 20;
