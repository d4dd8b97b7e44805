//! The pool: free lists by size class over regions, mapped on demand.
//!
//! Small classes share regions of 64 KiB that grow to 2 MiB. A large block has a separate region,
//! unmapped while idle if a different class needs the room. The [parent module](super) explains
//! ownership.
//!
//! A free list runs through the meta data of its blocks. With `Vec`s in a `RefCell` instead, a loop
//! that allocates and frees a small buffer took 105 instructions a round; now it takes 33. The
//! lists are sound because a block on a list belongs to the pool alone, and because no foreign code
//! runs while a list changes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;

use super::class::{CLASS_COUNT, Class, LARGEST_BLOCK_BYTES, class_of};
use super::packet::{self, Meta, OnReturn, PacketBuf, Shelf};
use super::region::Region;
use super::shared::{self, SharedBuf};
use super::spare;
use super::watch::{READ_IN_PLACE_BYTES_MIN, RegionWatch};

/// Blocks above this size get their own region.
const LARGEST_CARVED_BLOCK_BYTES: usize = 256 << 10;

/// The first region of a small class. Later regions double up to [`CHUNK_BYTES_MAX`]: a process
/// with few buffers stays small, and a process with many makes few system calls.
const CHUNK_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 2 << 20;

/// Shelves of a pool. References have separate shelves: the extra work at a reference's return
/// costs ordinary buffers nothing.
const SHELF_COUNT: usize = 2 * CLASS_COUNT;

/// The part of the memory reserved for small blocks: calls with small messages find buffers however
/// many large messages there are.
const SMALL_SHARE: usize = 8;

/// Largest small block: room for a message in the largest datagram.
const SMALL_BLOCK_BYTES_MAX: usize = 96 << 10;

/// With this much memory not mapped yet, a burst of small buffers of any size succeeds.
const SMALL_ROOM_BYTES: usize = 4 << 20;

/// Failed requests for memory between a vain search for idle chunks and the next search. A search
/// reads the meta data of all idle blocks of a class.
const SEARCH_PAUSE: u8 = 16;

/// Regions consist of pages; a limit that leaves less than a page leaves nothing.
const PAGE_BYTES: usize = 4096;

const _: () = assert!(LARGEST_CARVED_BLOCK_BYTES <= CHUNK_BYTES_MAX);

/// Settings of a [`BufPool`].
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Most bytes of memory the pool maps: 1 GiB by default. The pool grows in steps, as buffers
    /// are needed. An eighth is reserved for buffers of 64 KiB and less.
    pub max_bytes: usize,
    /// Whether to request transparent huge pages in regions of 2 MiB and more. They save TLB misses
    /// on large messages and cost memory where only part of a region is used. Off by default.
    pub huge_pages: bool,
    /// Whether to overwrite the message in a returned buffer with [`POISON_BYTE`] at once, to
    /// expose later reads of freed memory: for checks. Costs a write of the message. Later
    /// poisoning pools of the thread reuse the pool's memory, since checks make many pools.
    ///
    /// [`POISON_BYTE`]: super::POISON_BYTE
    pub poison: bool,
}

impl Default for PoolConfig {
    /// 1 GiB, in ordinary pages, without poison. Memory is mapped on demand.
    fn default() -> Self {
        Self { max_bytes: 1 << 30, huge_pages: false, poison: false }
    }
}

/// Why [`BufPool::alloc`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolExhausted {
    /// The pool has reached its limit.
    #[error(
        "no room for {requested_bytes} bytes more: {reserved_bytes} of at most {max_bytes} bytes \
         are mapped; raise the pool's limit or hold fewer buffers"
    )]
    Limit {
        /// Size of the requested block, headers included.
        requested_bytes: usize,
        /// Bytes the pool has mapped.
        reserved_bytes: usize,
        /// [`PoolConfig::max_bytes`].
        max_bytes: usize,
    },
    /// The message is larger than any block.
    #[error(
        "a message of {capacity_bytes} bytes in {packet_count} packets exceeds the largest \
         buffer of {largest_bytes} bytes"
    )]
    TooLarge {
        /// The requested capacity.
        capacity_bytes: usize,
        /// The requested number of packets.
        packet_count: usize,
        /// [`LARGEST_BLOCK_BYTES`](super::LARGEST_BLOCK_BYTES).
        largest_bytes: usize,
    },
    /// The operating system has no memory.
    #[error("the operating system has no {requested_bytes} bytes of memory left")]
    OutOfMemory {
        /// Size of the requested region.
        requested_bytes: usize,
    },
}

/// Live buffers of a pool. Both fields are 0 when no buffer is lent out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// The number of live buffers.
    pub count: usize,
    /// The memory they occupy, headers and rounding included.
    pub bytes: usize,
}

/// Lends out [`PacketBuf`]s. Clones share the pool. A pool belongs to a single thread.
#[derive(Clone, Debug)]
pub struct BufPool {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// A shelf per class, then a shelf per class of references.
    shelves: [Shelf; SHELF_COUNT],
    growth: RefCell<Growth>,
    poisons: bool,
    /// Whether the last handle is gone.
    is_orphan: Cell<bool>,
    watch: Option<Rc<dyn RegionWatch>>,
    /// Returned blocks that the device may still read, with the burst after which they are free.
    aside: RefCell<VecDeque<(u64, NonNull<Meta>)>>,
}

impl BufPool {
    /// Creates an empty pool. Memory is mapped at its first use.
    pub fn new(config: PoolConfig) -> Self {
        Self::watched(config, None)
    }

    /// Creates an empty pool whose regions are shown to `watch`.
    pub fn watched(config: PoolConfig, watch: Option<Rc<dyn RegionWatch>>) -> Self {
        let shelves = std::array::from_fn(|index| Shelf::new(Class((index % CLASS_COUNT) as u8)));
        let growth = RefCell::new(Growth::new(config, watch.clone()));
        let (poisons, is_orphan) = (config.poison, Cell::new(false));
        let first = if poisons || watch.is_some() { 0 } else { CLASS_COUNT };
        let aside = RefCell::default();
        let inner = Rc::new(Inner { shelves, growth, poisons, is_orphan, watch, aside });
        inner.call_on_return(first, NonNull::new(Rc::as_ptr(&inner).cast_mut()));
        Self { inner }
    }

    /// Allocates a buffer for a message of up to `capacity` bytes, sent in up to `packet_count`
    /// packets (0 counts as 1). Its initial length is `capacity`.
    ///
    /// # Errors
    /// See [`PoolExhausted`]. The pool is then unchanged.
    #[inline]
    pub fn alloc(&self, capacity: usize, packet_count: usize) -> Result<PacketBuf, PoolExhausted> {
        let packet_count = packet_count.max(1);
        let Some(bytes) = packet::block_bytes(capacity, packet_count) else {
            return Err(too_large(capacity, packet_count));
        };
        let block = self.lend(class_of(bytes).index())?;
        // SAFETY: the block is off its free list and at least as large as `block_bytes` requires.
        Ok(unsafe { PacketBuf::new(block, capacity, packet_count) })
    }

    /// Allocates a reference to `message`: a buffer without data memory, with room for the headers
    /// of up to `packet_count` packets. Every sender of a shared message thus writes its own
    /// headers. The message stays unchanged while any reference is left.
    ///
    /// The buffer looks empty and has a capacity of 0. Only [`PacketBuf::wire_len`],
    /// [`PacketBuf::packet`] and [`PacketBuf::part_24`] see the message.
    ///
    /// # Errors
    /// See [`PoolExhausted`]. The pool is then unchanged.
    ///
    /// # Panics
    /// When the message is empty.
    pub fn reference(
        &self,
        message: &SharedBuf,
        packet_count: usize,
    ) -> Result<PacketBuf, PoolExhausted> {
        let packet_count = packet_count.max(1);
        let Some(bytes) = shared::reference_bytes(packet_count) else {
            return Err(too_large(0, packet_count));
        };
        let block = self.lend(CLASS_COUNT + class_of(bytes).index())?;
        // SAFETY: the block is off its free list and large enough for a buffer of these needs,
        // followed by the count from `refer_to`.
        unsafe {
            let mut buf = PacketBuf::new(block, 0, packet_count);
            buf.refer_to(message);
            Ok(buf)
        }
    }

    /// Returns a block off its free list, or a new block.
    #[inline(always)]
    fn lend(&self, shelf_index: usize) -> Result<NonNull<Meta>, PoolExhausted> {
        let shelf = &self.inner.shelves[shelf_index];
        let block = match shelf.pop() {
            Some(block) => block,
            None => self.grow(shelf_index)?,
        };
        shelf.lend_one();
        Ok(block)
    }

    /// Returns true if some hundred more small buffers are available, whatever their sizes.
    #[inline]
    pub fn has_room_for_small(&self) -> bool {
        self.inner.growth.borrow().room_bytes() >= SMALL_ROOM_BYTES
    }

    /// The buffers that are lent out, or still read by the device.
    pub fn in_use(&self) -> InUse {
        self.inner.shelve_read();
        self.inner.in_use()
    }

    /// Waits until the device reads this message no more, if a device reads messages in place: the
    /// application will write to the buffer.
    pub fn await_reads(&self, message: &PacketBuf) {
        if let Some(watch) = &self.inner.watch
            && message.wire_len() >= READ_IN_PLACE_BYTES_MIN
        {
            watch.await_reads();
        }
    }

    /// Bytes mapped from the operating system, lent out or not.
    pub fn reserved_bytes(&self) -> usize {
        self.inner.growth.borrow().reserved_bytes
    }

    /// Creates a block when all blocks of the shelf are lent out.
    #[cold]
    #[inline(never)]
    fn grow(&self, shelf_index: usize) -> Result<NonNull<Meta>, PoolExhausted> {
        self.inner.shelve_read();
        if let Some(block) = self.inner.shelves[shelf_index].pop() {
            return Ok(block);
        }
        let class = self.inner.shelves[shelf_index].class();
        let block = self.inner.grow(class)?.cast::<Meta>();
        // Derived from the whole pool, not from a reference to the shelf: the pointer stays valid
        // whatever happens to such a reference.
        let pool = Rc::as_ptr(&self.inner);
        // SAFETY: the pool is alive, and has a shelf of this index.
        let shelf = unsafe { (&raw const (*pool).shelves).cast::<Shelf>().add(shelf_index) };
        let shelf = NonNull::new(shelf.cast_mut()).expect("a place in the pool");
        // SAFETY: the block is fresh, larger than its meta data, and aligned to 64 bytes.
        unsafe { block.write(Meta::new(shelf)) };
        Ok(block)
    }
}

impl Drop for BufPool {
    /// The last handle leaves the pool to the lent-out buffers, if there are any.
    fn drop(&mut self) {
        let is_last = Rc::strong_count(&self.inner) == 1;
        if is_last && let Some(watch) = &self.inner.watch {
            watch.await_reads();
        }
        if is_last && self.in_use().count > 0 {
            self.inner.is_orphan.set(true);
            let pool = NonNull::new(Rc::into_raw(Rc::clone(&self.inner)).cast_mut());
            self.inner.call_on_return(0, pool);
        }
    }
}

#[cold]
fn too_large(capacity_bytes: usize, packet_count: usize) -> PoolExhausted {
    let largest_bytes = LARGEST_BLOCK_BYTES;
    PoolExhausted::TooLarge { capacity_bytes, packet_count, largest_bytes }
}

impl Inner {
    fn in_use(&self) -> InUse {
        self.shelves.iter().fold(InUse::default(), |sum, shelf| {
            let count = shelf.lent_count();
            let bytes = count * shelf.block_bytes();
            InUse { count: sum.count + count, bytes: sum.bytes + bytes }
        })
    }

    /// Returns memory for a block.
    fn grow(&self, class: Class) -> Result<NonNull<u8>, PoolExhausted> {
        let mut growth = self.growth.borrow_mut();
        let bytes = class.block_bytes();
        if bytes > LARGEST_CARVED_BLOCK_BYTES {
            growth.ensure_room(class, bytes, &self.shelves)?;
            return Ok(growth.map(bytes)?.into_raw());
        }
        if growth.uncut[class.index()].bytes < bytes {
            growth.ensure_room(class, bytes.next_multiple_of(PAGE_BYTES), &self.shelves)?;
            growth.map_chunk(class)?;
        }
        growth.cut_count[class.index()] += 1;
        Ok(growth.uncut[class.index()].cut(bytes))
    }
}

impl Inner {
    /// Notifies the pool of blocks that return to the shelves from `first` on.
    fn call_on_return(&self, first: usize, pool: Option<NonNull<Self>>) {
        let on_return = pool.map(|pool| OnReturn { pool: pool.cast(), run: Self::after_return });
        self.shelves[first..].iter().for_each(|shelf| shelf.set_on_return(on_return));
    }

    /// Takes a returned block off its free list while the device reads its message. Returns false if
    /// the block stays on the list.
    ///
    /// # Safety
    /// The block is an idle block of the pool, and the first on its free list.
    unsafe fn sets_aside(&self, block: NonNull<Meta>) -> bool {
        // SAFETY: the block begins with its meta data.
        let meta = unsafe { block.as_ref() };
        let Some(watch) = &self.watch else { return false };
        if meta.capacity() < READ_IN_PLACE_BYTES_MIN {
            return false;
        }
        if self.is_orphan.get() {
            // No later call would put the block on its list.
            watch.await_reads();
            return false;
        }
        let Some(burst) = watch.unread() else { return false };
        // SAFETY: shelves live as long as their pool.
        let shelf = unsafe { meta.shelf.as_ref() };
        let is_first = shelf.take_off(block);
        assert!(is_first, "a returned block is the first on its free list");
        self.aside.borrow_mut().push_back((burst, block));
        true
    }

    /// Puts the blocks that the device has read on their free lists.
    fn shelve_read(&self) {
        let Some(watch) = &self.watch else { return };
        let mut aside = self.aside.borrow_mut();
        while let Some((_, block)) = aside.front().copied().filter(|next| watch.has_read(next.0)) {
            aside.pop_front();
            // SAFETY: the block was returned, and since then belongs to the pool.
            unsafe {
                Shelf::shelve(block);
                if self.poisons {
                    packet::poison(block);
                }
            }
        }
    }

    /// Poisons a returned block, releases the referenced message, and frees an orphaned pool after
    /// the last buffer has returned.
    ///
    /// # Safety
    /// `pool` is alive. If the last handle is gone, `pool` is the pointer from the handle's drop.
    /// The block is an idle block of the pool.
    #[cold]
    #[inline(never)]
    unsafe fn after_return(pool: NonNull<()>, block: NonNull<Meta>) {
        let pool = pool.cast::<Self>();
        // SAFETY: the pool is alive until freed below.
        let inner = unsafe { pool.as_ref() };
        // SAFETY: the block is idle, and the latest on its free list.
        if unsafe { inner.sets_aside(block) } {
            return;
        }
        if inner.poisons {
            // SAFETY: an idle block belongs to the pool alone.
            unsafe { packet::poison(block) };
        }
        // SAFETY: the block is idle, and was not lent out again since its return.
        let message = unsafe { shared::take_message(block) };
        if inner.is_orphan.get() && inner.in_use().count == 0 {
            // SAFETY: the pointer comes from an `Rc` given up for this purpose; no further `Rc`
            // exists, and no buffer is left.
            drop(unsafe { Rc::from_raw(pool.as_ptr().cast_const()) });
        }
        // Last: the message may be the last buffer of this pool, and then frees the pool. The
        // message was lent out until now, hence the lines above cannot have freed the pool already.
        drop(message);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Live buffers keep the pool alive, so all have returned by now.
        debug_assert_eq!(self.in_use(), InUse::default());
        let growth = self.growth.get_mut();
        while growth.unmap_idle_block(&self.shelves) {}
        growth.unmap_all_chunks();
    }
}

/// The rest of a class's newest chunk. Blocks are cut off one by one, to leave memory untouched
/// until needed.
#[derive(Debug)]
struct Uncut {
    start: NonNull<u8>,
    bytes: usize,
}

impl Uncut {
    const NOTHING: Self = Self { start: NonNull::dangling(), bytes: 0 };

    fn cut(&mut self, block_bytes: usize) -> NonNull<u8> {
        assert!(self.bytes >= block_bytes);
        let block = self.start;
        // SAFETY: the chunk has at least `block_bytes` left, hence the end of the block is at most
        // the chunk's end.
        self.start = unsafe { block.add(block_bytes) };
        self.bytes -= block_bytes;
        block
    }
}

/// State for obtaining more memory.
#[derive(Debug)]
struct Growth {
    uncut: [Uncut; CLASS_COUNT],
    next_chunk_bytes: [usize; CLASS_COUNT],
    /// Blocks cut from the present chunks.
    cut_count: [usize; CLASS_COUNT],
    /// Regions cut into blocks. At the limit, a chunk whose blocks are all idle is unmapped.
    chunks: Vec<Chunk>,
    reserved_bytes: usize,
    /// Failures left before the next search for idle chunks.
    search_pause: u8,
    config: PoolConfig,
    watch: Option<Rc<dyn RegionWatch>>,
}

/// A region cut into blocks of a class.
#[derive(Debug)]
struct Chunk {
    region: Region,
    class: Class,
}

impl Chunk {
    fn contains(&self, place: usize) -> bool {
        let start = self.region.start().as_ptr() as usize;
        (start..start + self.region.bytes()).contains(&place)
    }

    /// Blocks cut from the chunk so far; `uncut` is the rest of the class's newest chunk.
    fn cut_count(&self, uncut: &Uncut) -> usize {
        let is_newest = uncut.bytes > 0 && self.contains(uncut.start.as_ptr() as usize);
        let left = if is_newest { uncut.bytes } else { 0 };
        (self.region.bytes() - left) / self.class.block_bytes()
    }
}

impl Growth {
    fn new(config: PoolConfig, watch: Option<Rc<dyn RegionWatch>>) -> Self {
        Self {
            uncut: [Uncut::NOTHING; CLASS_COUNT],
            next_chunk_bytes: [CHUNK_BYTES_MIN; CLASS_COUNT],
            cut_count: [0; CLASS_COUNT],
            chunks: Vec::new(),
            reserved_bytes: 0,
            search_pause: 0,
            config,
            watch,
        }
    }

    /// Maps a chunk of the class's next size, or of the room below the limit. The room suffices for
    /// at least one block.
    fn map_chunk(&mut self, class: Class) -> Result<(), PoolExhausted> {
        let wanted = self.next_chunk_bytes[class.index()].max(class.block_bytes());
        let left = self.room_bytes() / PAGE_BYTES * PAGE_BYTES;
        let chunk = self.map(wanted.next_multiple_of(PAGE_BYTES).min(left))?;
        self.next_chunk_bytes[class.index()] = (wanted * 2).min(CHUNK_BYTES_MAX);
        self.uncut[class.index()] = Uncut { start: chunk.start(), bytes: chunk.bytes() };
        self.chunks.push(Chunk { region: chunk, class });
        Ok(())
    }

    fn map(&mut self, bytes: usize) -> Result<Region, PoolExhausted> {
        let spare = if self.config.poison { spare::take(bytes) } else { None };
        let region = spare
            .map_or_else(|| Region::zeroed(bytes, self.config.huge_pages), Ok)
            .map_err(|_| PoolExhausted::OutOfMemory { requested_bytes: bytes })?;
        let watch = self.watch.as_ref();
        if watch.is_some_and(|watch| !watch.register(region.start(), region.bytes())) {
            return Err(PoolExhausted::OutOfMemory { requested_bytes: bytes });
        }
        self.reserved_bytes += bytes;
        Ok(region)
    }

    /// Unmaps all chunks at the end of the pool.
    fn unmap_all_chunks(&mut self) {
        while let Some(chunk) = self.chunks.pop() {
            self.unmap(chunk.region);
        }
    }

    fn unmap(&mut self, region: Region) {
        if let Some(watch) = &self.watch {
            watch.unregister(region.start(), region.bytes());
        }
        self.reserved_bytes -= region.bytes();
        if self.config.poison {
            spare::keep(region);
        }
    }

    fn room_bytes(&self) -> usize {
        self.config.max_bytes.saturating_sub(self.reserved_bytes)
    }

    /// Bytes that may still be mapped for blocks of a class.
    fn room_bytes_of(&self, class: Class) -> usize {
        let is_small = class.block_bytes() <= SMALL_BLOCK_BYTES_MAX;
        let kept_bytes = if is_small { 0 } else { self.config.max_bytes / SMALL_SHARE };
        self.room_bytes().saturating_sub(kept_bytes)
    }

    /// Unmaps idle large blocks, and then idle chunks, until `bytes` fit under the limit.
    fn ensure_room(
        &mut self,
        class: Class,
        bytes: usize,
        shelves: &[Shelf],
    ) -> Result<(), PoolExhausted> {
        while self.room_bytes_of(class) < bytes {
            if !self.unmap_idle_block(shelves) && !self.unmap_idle_chunks(shelves) {
                return Err(PoolExhausted::Limit {
                    requested_bytes: bytes,
                    reserved_bytes: self.reserved_bytes,
                    max_bytes: self.config.max_bytes,
                });
            }
        }
        Ok(())
    }

    /// Unmaps the chunks whose blocks are all idle, of the class with the most idle memory.
    /// Otherwise a load with all memory in blocks of one size would leave nothing for the rest, for
    /// ever.
    #[cold]
    fn unmap_idle_chunks(&mut self, shelves: &[Shelf]) -> bool {
        if self.search_pause > 0 {
            self.search_pause -= 1;
            return false;
        }
        let idle_bytes = |class: usize| {
            let lent = shelves[class].lent_count() + shelves[CLASS_COUNT + class].lent_count();
            (self.cut_count[class] - lent.min(self.cut_count[class]))
                * Class(class as u8).block_bytes()
        };
        let last_carved = class_of(LARGEST_CARVED_BLOCK_BYTES).index();
        let most = (0..=last_carved).max_by_key(|class| idle_bytes(*class)).unwrap_or(0);
        if idle_bytes(most) < CHUNK_BYTES_MIN {
            return false;
        }
        let found = self.unmap_chunks_of(most, shelves);
        self.search_pause = if found { 0 } else { SEARCH_PAUSE };
        found
    }

    fn unmap_chunks_of(&mut self, class: usize, shelves: &[Shelf]) -> bool {
        // Sorted by address, for the search for a block's chunk.
        let start = |chunk: &Chunk| chunk.region.start().as_ptr() as usize;
        self.chunks.sort_unstable_by_key(|chunk| (chunk.class.index(), start(chunk)));
        let from = self.chunks.partition_point(|chunk| chunk.class.index() < class);
        let end = self.chunks.partition_point(|chunk| chunk.class.index() <= class);
        let chunks = &self.chunks[from..end];
        let chunk_of = |block: NonNull<Meta>| {
            let place = block.as_ptr() as usize;
            let at = chunks.partition_point(|chunk| start(chunk) <= place);
            assert!(
                at > 0 && chunks[at - 1].contains(place),
                "a block lies in a chunk of its class"
            );
            at - 1
        };
        let mut idle = vec![0; chunks.len()];
        let both = [&shelves[class], &shelves[CLASS_COUNT + class]];
        for shelf in both {
            shelf.for_each_idle(|block| idle[chunk_of(block)] += 1);
        }
        let uncut = &self.uncut[class];
        let is_idle: Vec<bool> =
            chunks.iter().zip(&idle).map(|(chunk, idle)| chunk.cut_count(uncut) == *idle).collect();
        if !is_idle.contains(&true) {
            return false;
        }
        both.iter().for_each(|shelf| shelf.retain_idle(|block| !is_idle[chunk_of(block)]));
        for at in (0..is_idle.len()).rev().filter(|at| is_idle[*at]) {
            let chunk = self.chunks.remove(from + at);
            let uncut = &mut self.uncut[class];
            self.cut_count[class] -= chunk.cut_count(uncut);
            if uncut.bytes > 0 && chunk.contains(uncut.start.as_ptr() as usize) {
                *uncut = Uncut::NOTHING;
            }
            self.unmap(chunk.region);
        }
        true
    }

    /// Unmaps an idle block with a separate region, of the largest class, if there is any.
    fn unmap_idle_block(&mut self, shelves: &[Shelf]) -> bool {
        let first_mapped = class_of(LARGEST_CARVED_BLOCK_BYTES).index() + 1;
        let mapped = |shelf: &&Shelf| shelf.class().index() >= first_mapped;
        for shelf in shelves.iter().filter(mapped).rev() {
            if let Some(block) = shelf.pop() {
                // SAFETY: blocks of these classes come from `into_raw` in `grow`; this block was
                // idle and is now on no list.
                let region = unsafe { Region::from_raw(block.cast(), shelf.block_bytes()) };
                self.unmap(region);
                return true;
            }
        }
        false
    }
}
