//! memcached's protocol: the classic text commands and the meta commands, without sockets.
//!
//! [`Parser`] turns the bytes of a connection into [`Request`]s. A request that concerns one key is an [`Operation`].
//! [`execute`] runs an operation on the partition that owns the key, and appends the reply to some bytes. The reference
//! is memcached 1.6.18: `docs/cache.md` has a table of the commands and of the differences.

mod auth;
mod classic;
mod clock;
mod execute;
mod execute_meta;
mod flags;
mod meta;
mod operation;
mod parser;

#[cfg(test)]
mod tests;

pub use auth::Passwords;
pub use clock::Clock;
pub use execute::execute;
pub use operation::{Action, Everywhere, MetaCommand, MetaParams, Operation, Refusal, Request};
pub use parser::{Parser, Step};

/// Replies that several places give.
pub(crate) mod replies {
    pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
    pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
    pub(crate) const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
    pub(crate) const END: &[u8] = b"END\r\n";
    pub(crate) const ERROR: &[u8] = b"ERROR\r\n";
    pub(crate) const EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
    pub(crate) const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
    pub(crate) const NOT_A_NUMBER: &[u8] =
        b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    pub(crate) const OK: &[u8] = b"OK\r\n";
    pub(crate) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
}
