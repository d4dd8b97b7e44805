//! Regions: memory of a server that clients read and write without a handler (one-sided operations).
//!
//! A server registers memory and gives the key to clients, by any call. A client reads, writes, swaps and adds at offsets.
//! The server's endpoint executes the operations; no code of the application runs. Deadlines, cancellation, large sizes
//! and retries are those of every call. On the same host, a client can also map the memory and access it directly.
//!
//! ```
//! use petrel::region::{Access, Regions, RegionMemory, RemoteRegion};
//! use petrel::{Client, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let regions = Regions::new();
//! let table = regions.register(RegionMemory::private(1 << 20)?, Access::READ | Access::ATOMIC)?;
//! table.write(0, b"petrel")?;
//!
//! let served = regions.clone();
//! let server = Server::bind("127.0.0.1:0").serve(|_| (), move |endpoint| endpoint.serve_regions(&served)).start()?;
//!
//! let client = Client::connect_wait(server.local_addr())?;
//! let remote = RemoteRegion::new(&client, table.key());
//! assert_eq!(remote.read(0, 6).wait()?, b"petrel");
//! assert_eq!(remote.fetch_add(8, 5).wait()?, 0);
//! assert_eq!(table.load(8)?, 5);
//! # Ok(())
//! # }
//! ```
//!
//! `docs/regions.md` has the memory model, and the rules for mapped regions. The requests are in section 15 of
//! `docs/wire-protocol.md`.
//!
//! | file | contents |
//! | --- | --- |
//! | `access` | [`Access`]: the rights that a key grants |
//! | `key` | [`RegionKey`]: the name and secret of a region |
//! | `memory` | [`RegionMemory`]: memory for words, with versioned values |
//! | `registry` | [`Regions`] and [`Region`]: registration and revocation |
//! | `wire` | the requests of operations |
//! | `agent` | the execution of operations, one agent for each endpoint |
//! | `door` | the thread that hands memory files to processes of the same host |
//! | `remote` | [`RemoteRegion`]: operations of a client |

mod access;
mod agent;
mod copier;
mod door;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod key;
mod memory;
mod owner_lock;
mod registry;
mod remote;
#[cfg(test)]
mod vectors;
mod wire;

pub use access::Access;
pub(crate) use agent::{Writing, serve};
pub use key::{ParseKeyError, RegionKey};
pub use memory::RegionMemory;
pub(crate) use registry::View;
pub use registry::{Region, RegionStats, Regions};
pub use remote::{RemoteRegion, Versioned};
pub use wire::PIECES_MAX;

pub use petrel_transport::words::MappedRights;
