//! Datagrams through rings in shared memory, between processes of one host and user.
//!
//! | item | meaning |
//! | --- | --- |
//! | [`Segment`] | the memory that a pair of endpoints shares: a ring for each direction |
//! | [`ShmLink`] | a segment, our [`Side`] of it, and the means to wake the peer |
//! | [`Shm`] | the [`Transport`](crate::Transport): all links of one endpoint |
//! | [`ShmConfig`] | sizes and limits |
//! | [`Rendezvous`], [`connect`] | where two processes meet to exchange descriptors |
//! | [`MeetingDir`], [`connect_in`] | the same in a directory, between network namespaces |
//! | [`send_with_fds`], [`recv_with_fds`] | the exchange of descriptors |
//! | [`host_identity`] | whether two processes can meet at all |
//! | `detached` | all of it within one process, for simulators |
//!
//! # Setting up
//!
//! ```
//! use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side};
//! use petrel_transport::wake::Waker;
//! use petrel_transport::{Transport, TxFrame};
//! use std::os::fd::AsFd;
//! use std::os::unix::net::UnixStream;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = ShmConfig::default();
//! let (waker_a, waker_b) = (Waker::new()?, Waker::new()?);
//!
//! // One side makes the segment and sends its descriptor to the other over a connection, which later
//! // carries their wake-ups. (Here, both sides are in one process.)
//! let (bell_a, bell_b) = UnixStream::pair()?;
//! let segment = Segment::create(&config)?;
//! let sent = segment.as_fd().try_clone_to_owned()?;
//! let link_a = ShmLink::new(segment, Side::Creator, bell_a);
//!
//! let segment = Segment::from_fd(sent)?;
//! let link_b = ShmLink::new(segment, Side::Opener, bell_b);
//!
//! let (mut a, mut b) = (Shm::new(&config, waker_a), Shm::new(&config, waker_b));
//! let (to_b, _to_a) = (a.add_peer(link_a)?, b.add_peer(link_b)?);
//! a.tx_burst(&[TxFrame { peer: to_b, head: b"he", body: b"llo" }]);
//! assert_eq!(b.rx_burst(16, |_, frame| assert_eq!(frame, b"hello")), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Nothing is left behind
//!
//! Segments are memory files without a name, wake-ups go over a connection, and the rendezvous is a
//! socket in the abstract namespace. All of them live in descriptors and mappings, which the kernel
//! closes for a killed process. The survivor of a pair keeps its side until the control plane
//! removes the peer. Meanwhile its frames go nowhere, and records the dead process had not
//! published are never seen.
//!
//! # Trust
//!
//! Only processes of our user get a segment: the file's mode and the rendezvous exclude all others.
//! Among processes of one user, the module protects against peers that crash, have bugs, or run a
//! different version, within the means of a process.
//!
//! A peer **cannot**
//! - change bytes the application or the protocol core has seen: both get private copies, or
//!   [`SharedBytes`](crate::SharedBytes) without any `&[u8]`;
//! - make us access memory outside the segment, loop, panic or allocate: every value read from the
//!   rings is checked first (see [`ring`]), and a ring with an impossible value is abandoned and
//!   counted in `rx_broken_rings`;
//! - make us fault by truncating the file: it is sealed, and unsealed files are refused. A punched
//!   hole reads as zeros. Files in huge pages, where a hole may not be refillable, are refused
//!   where [`ShmConfig::huge_pages`] is off, as it is by default;
//! - hold us up: every call for a wake-up is non-blocking by its own argument, over a socket whose
//!   near end is ours alone (`bell.rs` describes the designs that fail). Received descriptors are
//!   closed where a close may block (`fds.rs`). All this holds after the peer's death too;
//! - take or forge wake-ups or frames of another peer: every pair has its own segment and socket;
//! - wake us more often than we sleep: we abandon the rings of a peer that tries.
//!
//! A malicious peer **can**
//! - send garbage in well-formed frames, as on any network;
//! - leave the ring full for ever: the frames stay with their sessions, which retry and end by
//!   timeout; meanwhile our event loop does not sleep, and serves the rest;
//! - end each of our sleeps by one frame or wake-up: the CPU time of one thread is lost, but no
//!   progress;
//! - not wake us: its frames wait until another event wakes us;
//! - make us map up to two rings of [`MAX_RING_BYTES`] in every link, and pay for the pages touched
//!   by either side until the link ends;
//! - queue descriptors until the kernel refuses ours (`ETOOMANYREFS`, a limit per user): new links
//!   then use UDP;
//! - with [`ShmConfig::huge_pages`], punch holes into the file and exhaust the pool of huge pages,
//!   so that we fault;
//! - block one thread of ours, up to [`CLOSING_MAX`] in all, by a descriptor whose close blocks;
//!   then no further rendezvous is accepted. While this process has no free descriptor, the kernel
//!   drops descriptors in the nexus' own thread, where such a close may block: leave the limit of
//!   descriptors well above the number of connections;
//! - attach to us as a debugger and kill us, where the system lets processes of one user do so.
//!
//! # Large frames
//!
//! A message in one frame is copied once, into the ring. A receiver that opts in can read it in
//! place ([`FrameHandler::handle_shared`](crate::FrameHandler::handle_shared)). A message in
//! several frames is copied again by the receiver, but the two sides work concurrently and the ring
//! stays in their caches. Measured between two cores that copy 8 MiB at 14 GB/s, with a receiver
//! that reads the whole message afterwards:
//!
//! | message | in flight | small frames, copied twice | one frame, read in place |
//! | --- | --- | --- | --- |
//! | 64 KiB | 1 | 7.4 GB/s | 8.4 GB/s |
//! | 256 KiB | 1 | 10.2 | 10.1 |
//! | 8 MiB | 1 | 9.4 | 9.5 |
//! | 8 MiB | 2 | 9.7 | 14.4 |
//!
//! (Small frames are of 16 KiB, and for 8 MiB of 8 KiB, where 64 KiB made no difference.)
//!
//! So one large frame pays where several messages are in flight, to compensate for working by
//! turns. The ring should then hold four frames, and not much more: with eight, 8 MiB went at 8.4
//! GB/s instead of 9.5. Huge pages changed nothing.
//!
//! # Memory
//!
//! A segment of the default size takes 2 MiB and a page, page by page during the first lap of the
//! rings. Huge pages are used if configured and available.

mod bell;
mod config;
mod credentials;
#[doc(hidden)]
pub mod detached;
mod endpoint;
mod error;
mod fds;
mod file_size;
mod host;
mod layout;
mod link;
mod mapping;
mod peer;
mod rendezvous;
mod rings;
// For the model checks, fuzz targets and benches of the ring alone; no part of the API.
#[doc(hidden)]
pub mod ring;
mod schedule;
mod segment;
mod sync;

pub use config::{
    DEFAULT_MAX_FRAME_BYTES, DEFAULT_MAX_PEERS, DEFAULT_RING_BYTES, MAX_RING_BYTES, MIN_RING_BYTES,
    ShmConfig,
};
pub use endpoint::Shm;
pub(crate) use endpoint::UNSTAMPED_PAUSE_NS;
pub use error::ShmError;
pub use fds::{
    CLOSING_MAX, MAX_FDS, PeerFds, PeerStream, can_close, discard, hang_up, recv_with_fds,
    send_with_fds,
};
pub(crate) use file_size::set_size;
pub use host::{HOST_IDENTITY_BYTES, host_identity, host_identity_in};
pub use link::ShmLink;
pub use peer::Outgoing;
pub use rendezvous::{MeetingDir, NAME_BYTES, Rendezvous, connect, connect_in};
pub use segment::{Segment, Side};
pub(crate) use segment::{is_in_huge_pages, new_memory_file};
