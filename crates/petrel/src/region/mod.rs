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
//! | `agent`, `copier` | the execution of operations, one agent for each endpoint |
//! | `remote` | [`RemoteRegion`]: operations of a client |
//! | `by_card`, `lendings` | [`RegionCard`], [`CardRegion`]: accesses by RDMA cards, and the memory that sessions have been lent |
//!
//! Registration, rights and memory are in `region_memory`, which knows neither endpoints nor clients.

mod agent;
mod by_card;
mod copier;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod lendings;
mod remote;
#[cfg(test)]
mod vectors;

pub use by_card::{CardRegion, RegionCard};
pub use remote::{RemoteRegion, Versioned};

pub use crate::region_memory::{
    Access, PIECES_MAX, ParseKeyError, Region, RegionKey, RegionMemory, RegionStats, Regions,
};
pub use petrel_transport::words::MappedRights;
