//! Requests as the parser understands them.

use crate::partition::Verb;

/// A request of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// An operation on one key. A classic command with several keys is several operations, and a reply behind them.
    Operation(Operation<'a>),
    /// An operation on all partitions.
    Everywhere(Everywhere),
    /// A reply that needs no partition; perhaps empty.
    Reply(&'static [u8]),
    /// A reply before the connection ends.
    Close(&'static [u8]),
}

/// An operation on all partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Everywhere {
    /// Remove all items.
    Flush {
        /// The exptime at which the items end; 0 for at once.
        exptime: i64,
        /// Whether to send no reply.
        is_quiet: bool,
    },
    /// Report the counters.
    Stats,
    /// Report the limits.
    Settings,
    /// Report the items as of one slab class.
    Items,
    /// Report the memory as one slab class.
    Slabs,
    /// Report keys, sizes and expiries.
    Dump {
        /// Most items of a partition.
        items: usize,
    },
    /// Report the connections.
    Connections,
    /// Limit the memory of the server.
    Limit {
        /// The limit.
        memory_bytes: u64,
        /// Whether to send no reply.
        is_quiet: bool,
    },
    /// Set the counters to zero.
    ResetStats,
}

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation<'a> {
    /// The action with its numbers.
    pub action: Action,
    /// The key, of 1 to 250 bytes.
    pub key: &'a [u8],
    /// The value to store; else empty.
    pub value: &'a [u8],
    /// The flags of a meta command as they came, for the reply; else empty.
    pub flags: &'a [u8],
}

/// The action of an operation, with its numbers. An *exptime* is a time in the client's notation: see [`super::Clock`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// get, gets, gat, gats.
    Get {
        /// Whether to return the version.
        with_cas: bool,
        /// Another exptime for the item.
        touch: Option<i64>,
    },
    /// set, add, replace, append, prepend, cas.
    Store {
        /// The condition.
        verb: Verb,
        /// The client's flags.
        client_flags: u32,
        /// The exptime.
        exptime: i64,
        /// The version that the item must have.
        compare: Option<u64>,
        /// Whether to send no reply.
        is_quiet: bool,
    },
    /// A request to store a value that was not received.
    Refused {
        /// The reason.
        reason: Refusal,
        /// Whether a cache removes the former item: its writer has meant to replace it in any case.
        removes: bool,
        /// Whether to send no reply.
        is_quiet: bool,
    },
    /// delete.
    Delete {
        /// Whether to send no reply.
        is_quiet: bool,
    },
    /// incr and decr.
    Count {
        /// Whether to add.
        is_increment: bool,
        /// The number to add or to subtract.
        delta: u64,
        /// Whether to send no reply.
        is_quiet: bool,
    },
    /// touch.
    Touch {
        /// The exptime.
        exptime: i64,
        /// Whether to send no reply.
        is_quiet: bool,
    },
    /// A meta command.
    Meta(MetaCommand, MetaParams),
}

/// The reason why a value was not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The value is longer than any value may be.
    TooLarge,
    /// The server has no memory for the value's bytes.
    NoMemory,
}

impl Action {
    /// The refusal of this request to store a value.
    pub(super) fn refused(self, reason: Refusal, is_quiet: bool) -> Self {
        let (verb, compare) = match self {
            Self::Store { verb, compare, .. } => (verb, compare),
            Self::Meta(_, params) => (params.verb, params.compare),
            _ => unreachable!("the other commands have no value"),
        };
        let removes = verb == Verb::Set && compare.is_none();
        // Meta commands suppress replies, and no errors.
        let is_quiet = is_quiet && !matches!(self, Self::Meta(..));
        Self::Refused { reason, removes, is_quiet }
    }
}

/// A meta command with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaCommand {
    /// mg
    Get,
    /// ms
    Set,
    /// md
    Delete,
    /// ma
    Count,
    /// me
    Debug,
}

/// The flags of a meta command that change its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaParams {
    /// T: the exptime.
    pub exptime: Option<i64>,
    /// N: after a miss, the exptime of the new item.
    pub vivify: Option<i64>,
    /// R: with fewer seconds left, the server tells one client to refresh the value.
    pub recache_s: Option<u32>,
    /// C: the version that the item must have.
    pub compare: Option<u64>,
    /// J: after a miss, the number in the new item.
    pub initial: u64,
    /// D: the number to add or to subtract.
    pub delta: u64,
    /// F: the client's flags.
    pub client_flags: u32,
    /// M of ms: the condition of the store.
    pub verb: Verb,
    /// M of ma: whether to add.
    pub is_increment: bool,
    /// q: no reply in the usual case.
    pub is_quiet: bool,
    /// v: return the value.
    pub wants_value: bool,
    /// u: leave the marks of an access as they are.
    pub is_silent: bool,
    /// I: store as stale, or mark as stale.
    pub invalidates: bool,
    /// b: the key came in base64.
    pub is_base64: bool,
}

impl Default for MetaParams {
    fn default() -> Self {
        Self {
            exptime: None,
            vivify: None,
            recache_s: None,
            compare: None,
            initial: 0,
            delta: 1,
            client_flags: 0,
            verb: Verb::Set,
            is_increment: true,
            is_quiet: false,
            wants_value: false,
            is_silent: false,
            invalidates: false,
            is_base64: false,
        }
    }
}
