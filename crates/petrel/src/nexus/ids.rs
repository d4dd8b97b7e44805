//! Names of sockets, which are their tokens in the readiness loop.

/// The name of a connection and its token in the readiness loop; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ConnectionId(pub(super) usize);

/// The name of an exchange and its token in the readiness loop; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ExchangeId(pub(super) usize);
