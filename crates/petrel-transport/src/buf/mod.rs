//! Message memory: regions, a pool by size class, and [`PacketBuf`].
//!
//! A message lies in one piece, with room for the headers of its packets around it, so that each
//! packet can be sent from where it lies (eRPC §4.2.1):
//!
//! ```text
//! block             +64            +64+capacity   rounded up to 8
//! | head room       | data         | pad          | tail                                  |
//! | meta | header 0 | 0 1 2 ...    |              | header 1 | header 2 | ... 32 B each   |
//! | 32 B | 32 B     |
//! ```
//!
//! A message that is sent to many is *shared* ([`SharedBuf`]): its memory is not written any more, and
//! each of those who send it has a block for its headers, with a reference to the message behind them
//! ([`BufPool::reference`]).
//!
//! The header of packet 0 stands directly before the data, so that a single-packet message is
//! one contiguous piece. Packets after the first are sent as two pieces. Before that header lies
//! what the pool has to know about the block: where it goes back to, its length, its limits, and
//! while it is idle the link to the next idle block. All this is in one cache line, and a
//! [`PacketBuf`] is just the pointer to it.
//!
//! # Who owns what
//!
//! - A [`Region`] owns one mapping and unmaps it when dropped.
//! - A [`BufPool`] owns all regions and cuts them into blocks, each of one size class and aligned
//!   to 64 bytes. A block is either on its class's free list or in exactly one [`PacketBuf`].
//! - A [`SharedBuf`] owns a [`PacketBuf`] together with its clones and references; nobody writes to it.
//!   A reference is a [`PacketBuf`] whose block holds one count of it, until it comes back.
//! - A [`PacketBuf`] owns its block like a `Box`. Dropping it puts the block back on the list. The
//!   block knows its list. The pool's memory outlives its last handle by as long as a block is lent
//!   out: that handle leaves the pool to its buffers, and the last of them frees it.
//!
//! Why the unsafe code in here is sound: blocks never overlap (each is cut off a region's rest
//! once, in `pool`); a block's bytes are initialised from the start since regions begin
//! zeroed, or as a pool before this one left them, and stay so since only `&mut [u8]` and plain copies write to them; slices borrow from
//! the `PacketBuf`, so that Rust's rules for references to its parts are those for a `Vec`; and
//! everything that could hand a block to another thread is `!Send` through the pool's [`Rc`] and
//! the block's pointer. The meta data is written when the block is made or lent out, and no slice
//! that a `PacketBuf` gives out reaches there.
//!
//! A reused block still holds the bytes of its last user, from the same pool. A `PacketBuf` shows
//! them only to who raises its length without writing. A pool that *poisons*
//! ([`PoolConfig::poison`]) overwrites the message when the block comes back, so that a frame sent from
//! memory that was given back shows; the simulator's pools do. Its memory serves later pools of its thread that poison.
//!
//! [`Rc`]: std::rc::Rc

mod class;
mod packet;
mod pool;
mod region;
mod shared;
mod spare;
#[cfg(test)]
mod tests;

pub use class::LARGEST_BLOCK_BYTES;
pub use packet::{FIRST_HEADER_BYTES, HEAD_ROOM_BYTES, POISON_BYTE, PacketBuf, TAIL_HEADER_BYTES};
pub use pool::{BufPool, InUse, PoolConfig, PoolExhausted};
pub use region::Region;
pub use shared::SharedBuf;
