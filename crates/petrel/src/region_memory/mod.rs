//! The memory of regions: servers register it, and endpoints and clients access it.
//!
//! | file | contents |
//! | --- | --- |
//! | `access` | [`Access`]: the rights that a key grants |
//! | `key` | [`RegionKey`]: the name and secret of a region |
//! | `memory` | [`RegionMemory`]: memory for words, with versioned values |
//! | `registry`, `owner_lock` | [`Regions`] and [`Region`]: registration and revocation, and the view of an endpoint |
//! | `wire` | the requests of operations |
//! | `writing` | [`Writing`]: large writes, whose packets go to the region as they arrive |
//! | `door` | the thread that hands memory files to processes of the same host |

mod access;
pub(crate) mod door;
mod key;
pub(crate) mod memory;
mod owner_lock;
pub(crate) mod registry;
pub(crate) mod wire;
mod writing;

pub use access::Access;
pub use key::{ParseKeyError, RegionKey};
pub use memory::RegionMemory;
pub use registry::{Region, RegionStats, Regions};
pub use wire::PIECES_MAX;

pub(crate) use registry::View;
pub(crate) use writing::Writing;
