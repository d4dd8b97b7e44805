//! Message memory: regions, a pool by size class, and [`PacketBuf`].
//!
//! A message is contiguous, with room for packet headers around the data. Every packet can thus be
//! sent in place (eRPC §4.2.1):
//!
//! ```text
//! block             +64            +64+capacity   rounded up to 8
//! | head room       | data         | pad          | tail                                  |
//! | meta | header 0 | 0 1 2 ...    |              | header 1 | header 2 | ... 32 B each   |
//! | 32 B | 32 B     |
//! ```
//!
//! A message for several destinations is *shared* ([`SharedBuf`]): the message stays unchanged.
//! Every send has a separate block for headers, followed by a reference to the message
//! ([`BufPool::reference`]).
//!
//! The header of packet 0 stands directly before the data. A single-packet message is thus one
//! contiguous piece. Later packets are sent as two pieces. Before the first header lies the pool's
//! meta data of the block: its free list, length and limits, and for an idle block the link to the
//! next idle block. The meta data fits one cache line, and a [`PacketBuf`] is just the pointer to
//! it.
//!
//! # Ownership
//!
//! - A [`Region`] owns a mapping, unmapped when the region is dropped.
//! - A [`BufPool`] owns all regions and cuts them into blocks. A block belongs to one size class
//!   and is aligned to 64 bytes. Every block is either on the free list of the class or in exactly
//!   one [`PacketBuf`].
//! - A [`SharedBuf`] owns a [`PacketBuf`] together with all clones and references; the bytes are
//!   never written. A reference is a [`PacketBuf`]. The block of a reference holds a count of the
//!   message until the block returns.
//! - A [`PacketBuf`] owns its block like a `Box`. Dropping it returns the block to the free list
//!   the block names. The pool's memory outlives the last pool handle while a block is lent out:
//!   the handle leaves the pool to the buffers, and the last buffer frees the pool.
//! - A returned block that a device still reads stays aside, unchanged, and counts as lent out
//!   ([`RegionWatch`]).
//!
//! The unsafe code here is sound for four reasons. Blocks never overlap: `pool` cuts each off a
//! region's rest once. A block's bytes are always initialised: regions begin zeroed, or with an
//! earlier pool's bytes, and only `&mut [u8]` and plain copies write to them. Slices borrow from
//! the `PacketBuf`, so Rust's rules for references to its parts are those for a `Vec`. Every type
//! that could hand a block to another thread is `!Send` through the pool's [`Rc`] and the block's
//! pointer. The meta data is written when the block is made or lent out, and no slice from a
//! `PacketBuf` reaches there.
//!
//! A reused block still holds the bytes of its last user, from the same pool. Only a caller that
//! raises the length without writing sees these bytes. A pool that *poisons*
//! ([`PoolConfig::poison`]) overwrites the message when the block returns, to expose frames sent
//! from freed memory; the simulator's pools do. A later poisoning pool of the thread reuses the
//! memory.
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
mod watch;

pub use class::LARGEST_BLOCK_BYTES;
pub use packet::{
    FIRST_HEADER_BYTES, Growth, HEAD_ROOM_BYTES, POISON_BYTE, PacketBuf, TAIL_HEADER_BYTES,
    append_message,
};
pub use pool::{BufPool, InUse, PoolConfig, PoolExhausted};
pub use region::Region;
pub use shared::SharedBuf;
pub use watch::{READ_IN_PLACE_BYTES_MIN, RegionWatch};
