//! Accesses to memory of a peer, by connected queue pairs: the card of the memory's host executes reads and writes, and the process that lends
//! the memory runs no instruction (HERD §2.2; Pilaf and FaRM, which HERD §5 compares with).
//!
//! | item | meaning |
//! | --- | --- |
//! | [`Card`] | an open card, for any number of connections |
//! | [`Accessor`] | the end of a connection that reads and writes |
//! | [`Lending`] | the end of a connection that lends memory |
//! | [`PairAddress`] | the address of an end |
//!
//! Each connection has a protection domain of its own, so the key of lent memory is valid in packets of this connection alone. No packet of RoCE
//! is authenticated: the network must keep strangers from sending packets in a peer's name.
//!
//! Cards also have operations on words. Most cards make them atomic among themselves alone (`IBV_ATOMIC_HCA`), and not beside the host's
//! processors, so they would break the promise of [`WordMemory`](crate::words::WordMemory). They are not used.

mod accessor;
mod connection;
mod lending;
#[cfg(test)]
pub(super) mod tests;

use std::fmt;
use std::sync::Arc;

use super::card::Port;
use super::error::VerbsError;
use super::table::{LIBRARY, Table};
use super::{PAIRS_MAX, VerbsConfig};

pub use accessor::{AccessError, Accessor};
pub use lending::{Lending, Rights};

/// An open card, for any number of connections.
pub struct Card {
    table: Table,
    port: Port,
}

impl Card {
    /// Opens the card of a name, as `rdma link` shows it, or the first card if the name is empty.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let table = Table::open(LIBRARY)?;
        let config = VerbsConfig { card: name.to_owned(), ..VerbsConfig::default() };
        let port = Port::open(&table, &config)?;
        Ok(Arc::new(Self { table, port }))
    }

    /// The number of the port's largest packet: 1 for 256 bytes, and each further number doubles the bytes.
    fn mtu(&self) -> u8 {
        (self.port.mtu.ilog2() - 7) as u8
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card").field("port", &self.port).finish_non_exhaustive()
    }
}

/// The address of an end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairAddress {
    gid: [u8; 16],
    lid: u16,
    pair: u32,
    /// The number of the first packet.
    first: u32,
    mtu: u8,
}

impl PairAddress {
    /// Bytes of an address.
    pub const BYTES: usize = 27;

    /// The port's global address and local identifier, and the number of the queue pair.
    pub fn names(&self) -> ([u8; 16], u16, u32) {
        (self.gid, self.lid, self.pair)
    }

    /// Returns the address in the form of `docs/wire-protocol.md` §15.4.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..18].copy_from_slice(&self.lid.to_le_bytes());
        bytes[18..22].copy_from_slice(&self.pair.to_le_bytes());
        bytes[22..26].copy_from_slice(&self.first.to_le_bytes());
        bytes[26] = self.mtu;
        bytes
    }

    /// Returns the address that the bytes mean, or `None` if a number is beyond its limit.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let far = Self {
            gid: std::array::from_fn(|at| bytes[at]),
            lid: u16::from_le_bytes([bytes[16], bytes[17]]),
            pair: word(18),
            first: word(22),
            mtu: bytes[26],
        };
        let is_valid = far.pair < PAIRS_MAX && far.first < PAIRS_MAX && (1..=5).contains(&far.mtu);
        is_valid.then_some(far)
    }
}

/// Lent memory, as the peer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address of the first byte.
    pub address: u64,
    /// The card's key.
    pub key: u32,
}

/// The kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Packets are acknowledged and sent again (RC): reads and writes.
    Reliable,
    /// Packets are sent once (UC): writes, which end when the own card has sent them. HERD's clients write their requests so.
    Unreliable,
}
