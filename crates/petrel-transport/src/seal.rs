//! The keys of sealed datagrams (`docs/wire-protocol.md` §17), as a transport sees them. A separate crate has the
//! cryptography: a program without credentials builds no cryptography.
//!
//! `Sender` and `Receiver` keep the numbers, epochs and the replay window of a direction. They are for all transports of datagrams: they
//! neither send nor know addresses.

mod head;
mod receiver;
mod sender;

use std::fmt;

pub use head::SEALED_MARK;
pub(crate) use head::SealedDatagram;
pub(crate) use receiver::{Receiver, Refusal};
pub(crate) use sender::Sender;

/// Bytes before the ciphertext of a sealed datagram: mark, path, number.
pub const HEAD_BYTES: usize = 12;

/// Bytes of authentication behind the ciphertext.
pub const TAG_BYTES: usize = 16;

/// The bytes by which a datagram grows when it is sealed.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;

/// Datagrams of an epoch: the key changes after as many, and the number of a datagram tells its epoch.
pub const EPOCH_DATAGRAMS: u64 = 1 << 22;

/// First number that no datagram has: the link ends before.
pub const NUMBER_END: u64 = 1 << 62;

/// First path number that no link has.
pub const PATH_END: u32 = 1 << 24;

/// The key of one direction of a link, in one epoch.
pub trait DatagramKey: fmt::Debug + Send {
    /// Encrypts a datagram in place. `bytes` are the plain datagram and, behind it, [`TAG_BYTES`] of room for the tag. `head` is
    /// authenticated.
    fn seal(&self, number: u64, head: &[u8; HEAD_BYTES], bytes: &mut [u8]);

    /// Decrypts a datagram in place. `bytes` are the ciphertext and its tag, of [`TAG_BYTES`]. Returns false if the datagram was not
    /// sealed by this key with this number and head; the contents of `bytes` are unspecified then.
    #[must_use]
    fn open(&self, number: u64, head: &[u8; HEAD_BYTES], bytes: &mut [u8]) -> bool;

    /// Returns the key of the next epoch.
    fn next(&self) -> Box<dyn DatagramKey>;

    /// Forged datagrams after which the link ends: the limit of the cipher (RFC 9001 §6.6).
    fn forgeries_max(&self) -> u64;
}

/// The keys of a sealed link, at one end.
#[derive(Debug)]
pub struct SealedLink {
    /// The number by which the peer names this end's key, below [`PATH_END`] and unique among the endpoint's links.
    pub local_path: u32,
    /// The number by which this end names the peer's key.
    pub remote_path: u32,
    /// Seals datagrams to the peer; of the first epoch.
    pub send: Box<dyn DatagramKey>,
    /// Opens datagrams of the peer; of the first epoch.
    pub receive: Box<dyn DatagramKey>,
}

/// The length of epochs: [`EPOCH_DATAGRAMS`], or shorter for tests and simulators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epochs {
    bits: u32,
}

impl Epochs {
    pub(crate) const STANDARD: Self = Self::of_bits(EPOCH_DATAGRAMS.trailing_zeros());

    /// Epochs of 2 to the power of `bits` datagrams.
    pub(crate) const fn of_bits(bits: u32) -> Self {
        assert!(bits > 0 && 1 << bits <= EPOCH_DATAGRAMS, "a key is for no more datagrams");
        Self { bits }
    }

    #[inline]
    fn of(self, number: u64) -> u64 {
        number >> self.bits
    }
}

const _: () = assert!(EPOCH_DATAGRAMS.is_power_of_two());
