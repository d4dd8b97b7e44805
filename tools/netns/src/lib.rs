//! Networks of one machine: namespaces, virtual Ethernet devices and packet rules, for tests, checkers and benchmarks.
//!
//! | item | use |
//! | --- | --- |
//! | [`Namespaces`] | starts a program again in new namespaces, which disappear with the program |
//! | [`Host`] | a further network namespace, held by a process |
//! | [`leave`] | moves a single thread to a new network namespace |
//! | [`ip`], [`nft`], [`run`] | configure devices and rules of the calling thread's namespace |
//! | [`switch_off_offloads`] | makes a device carry a packet per datagram |
//! | [`switch_off_checksums`] | makes a device carry complete checksums |
//! | [`switch_on_joining`] | makes a device join received packets |
//! | [`in_guest`] | runs a script in an emulated machine with an RDMA card |
//!
//! The kernel removes namespaces with their devices and rules when the last process or thread inside ends, however
//! it ends. All functions need the right to create namespaces, and the programs `unshare`, `nsenter`, `ip` and `nft`.
//!
//! ```no_run
//! use std::net::Ipv4Addr;
//!
//! petrel_netns::leave()?;
//! let host = petrel_netns::Host::new()?;
//! host.join("here", "there")?;
//! petrel_netns::bring_up("here", Ipv4Addr::new(10, 0, 0, 1))?;
//! host.bring_up("there", Ipv4Addr::new(10, 0, 0, 2))?;
//! petrel_netns::ip("link set here down")?;
//! # Ok::<(), petrel_netns::Error>(())
//! ```

mod guest;
mod host;
mod namespaces;
mod offloads;
mod tool;

pub use guest::in_guest;
pub use host::{Host, bring_up, command_within, enter, leave};
pub use namespaces::{Isolation, Namespaces, end_with_parent};
pub use offloads::{switch_off_checksums, switch_off_offloads, switch_on_joining};
pub use tool::{Error, ip, nft, run};
