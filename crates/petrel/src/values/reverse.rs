//! Whose handlers the server of a link may call.

/// Names the [callbacks](crate::client::Callbacks) of a client at its endpoint. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallbacksKey(pub(crate) u64);

/// Whose handlers the server of a link may call, on reverse sessions (`docs/wire-protocol.md` §8.5): the opener of the link decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Reverse {
    /// No handlers: the link has no reverse sessions.
    #[default]
    No,
    /// The handlers of the endpoint.
    Endpoint,
    /// The callbacks of a client alone.
    Callbacks(CallbacksKey),
}
