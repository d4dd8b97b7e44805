//! Names of sockets, which are their tokens in the readiness loop.

/// The name of a connection and its token in the readiness loop; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ConnectionId(pub(super) usize);

/// The name of an exchange and its token in the readiness loop; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ExchangeId(pub(super) usize);

/// The numbers of sockets in the readiness loop, each given once.
#[derive(Debug)]
pub(super) struct Tokens {
    next: usize,
}

impl Tokens {
    /// Connections and exchanges are numbered from `first`.
    pub(super) fn from(first: usize) -> Self {
        Self { next: first }
    }

    pub(super) fn next_connection(&mut self) -> ConnectionId {
        ConnectionId(self.take())
    }

    pub(super) fn next_exchange(&mut self) -> ExchangeId {
        ExchangeId(self.take())
    }

    fn take(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }
}
