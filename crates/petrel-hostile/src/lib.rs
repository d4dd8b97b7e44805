//! Peers that use Petrel's protocol against it: for the tests of the library and for `petrel bench
//! attacks`.
//!
//! The code follows `docs/wire-protocol.md` and shares nothing with the library. Therefore tests detect
//! errors common to client and server code of the library, and messages can be wrong in any respect.
//! Applications have no use for this crate.
//!
//! | module | concern |
//! | --- | --- |
//! | [`control`] | the control plane, §8: a connection, its messages, links and sessions |
//! | [`frames`] | frames of the data plane, §3 |
//! | [`regions`] | operations on regions, §15, which a server must refuse |
//! | [`shm`] | a peer in shared memory |
//! | [`spray`] | datagrams of unknown senders, well formed or not |

pub mod control;
pub mod frames;
pub mod regions;
pub mod shm;
pub mod spray;

pub use control::{Connection, Link, Message, Session, Shape};
pub use shm::Neighbour;
