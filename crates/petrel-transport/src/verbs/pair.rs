//! A queue pair for datagrams (UD), with its rings of sent and received packets.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::card::{Ground, Handle, Owned, is_of_ipv4};
use super::error::VerbsError;
use super::table::{
    ACCESS_LOCAL_WRITE, Capacity, Channel, Completion, CompletionQueue, Domain, Event,
    FATAL_EVENTS, Pair, PairSettings, PairState, Piece, QP_PKEY_INDEX, QP_PORT, QP_QKEY, QP_SQ_PSN,
    QP_STATE, QPS_INIT, QPS_RTR, QPS_RTS, QPT_UD, ReceiveRequest, Registration, SEND_INLINE,
    SEND_SIGNALED, SendRequest, Table, WC_GRH, WC_SUCCESS, WR_SEND,
};
use super::{Address, VerbsConfig};
use crate::buf::Region;

/// Bytes before each received packet: its global route header, or its IPv4 header behind 20 unused bytes.
const ROUTE_BYTES: usize = 40;

/// Sent packets between two completions: cards complete in order, and each completion costs a write by the card.
const SENDS_OF_A_COMPLETION: u64 = 32;

/// Completions that one poll takes.
const POLL_MAX: usize = 32;

/// Sizes up to which cards copy the packet with the request, the largest first: asked for until the card agrees.
const INLINE_BYTES: [u32; 3] = [220, 60, 0];

/// The largest payload of a packet (InfiniBand).
const MTU_MAX: usize = 4_096;

/// The origin of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) pair: u32,
    /// The address; zero within an InfiniBand subnet.
    pub(super) gid: [u8; 16],
    /// The local identifier; zero over Ethernet.
    pub(super) lid: u16,
}

/// A received packet.
pub(super) struct Arrived<'a> {
    pub(super) origin: Origin,
    pub(super) bytes: &'a [u8],
    /// Whether a switch marked the packet.
    pub(super) is_marked: bool,
}

/// A queue pair, its memory and its completions.
pub(super) struct QueuePair {
    table: Table,
    /// The places of removed peers, and the packets after which the card does not need them.
    retired: Vec<(u64, Handle)>,
    pair: Owned<Pair>,
    sent: Owned<CompletionQueue>,
    received: Owned<CompletionQueue>,
    channel: Owned<Channel>,
    /// Held so that the card reaches the memory.
    _registration: Owned<Registration>,
    ground: Arc<Ground>,
    // The card writes here until the registration is gone.
    memory: Region,
    key: u32,
    inline_bytes: usize,
    /// Bytes of a place in the memory: the receive places stand before the send places.
    place_bytes: usize,
    receives: Box<[(ReceiveRequest, Piece)]>,
    sends: Box<[(SendRequest, Piece)]>,
    /// Packets staged, posted and completed since the beginning: each at most the one before.
    staged: u64,
    posted: u64,
    completed: u64,
    /// Receive places without a request: handled, and not posted yet.
    idle: Vec<u32>,
    /// Events of the channel that have not been acknowledged.
    events: u32,
    /// Whether the card has refused a packet that it had taken.
    has_failed: bool,
    /// Completions of received packets: those from `seen` on have not been handled.
    completions: [Completion; POLL_MAX],
    seen: usize,
    polled: usize,
}

// SAFETY: the pointers of the requests lead to memory of this value, which no other value uses.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Opens the card, and makes a queue pair that receives.
    pub(super) fn open(table: Table, config: &VerbsConfig) -> Result<Self, VerbsError> {
        let ground = Ground::open(table, config)?;
        let (context, domain) = (ground.port.context.get(), ground.domain.get());
        let (receives, sends) = (config.receives.max(1), config.sends.max(1));
        // Cards take packets of the largest size that InfiniBand has, whatever the port's MTU: a longer one than its place would end the pair.
        let place_bytes = (ROUTE_BYTES + MTU_MAX).next_multiple_of(64);
        let memory = Region::zeroed((receives as usize + sends as usize) * place_bytes, false)
            .map_err(|why| VerbsError::refused("mmap", why))?;
        let start = memory.start().as_ptr();
        // SAFETY: the region is mapped until the registration is gone.
        let registration =
            unsafe { (table.register)(domain, start.cast(), memory.bytes(), ACCESS_LOCAL_WRITE) };
        let registration = Owned::new(registration, table.deregister, "ibv_reg_mr")?;
        // SAFETY: the context is open.
        let channel = unsafe { (table.create_channel)(context) };
        let channel = Owned::new(channel, table.destroy_channel, "ibv_create_comp_channel")?;
        let queue = |length: u32, channel: *mut Channel| {
            // SAFETY: the context is open, and the channel is null or outlives the queue.
            let queue = unsafe {
                (table.create_queue)(context, length as c_int, ptr::null_mut(), channel, 0)
            };
            Owned::new(queue, table.destroy_queue, "ibv_create_cq")
        };
        let (sent, received) = (queue(sends, ptr::null_mut())?, queue(receives, channel.get())?);
        let (pair, inline_bytes) =
            create_pair(&table, domain, (sent.get(), received.get()), (receives, sends))?;
        // SAFETY: a registration is a structure with its key.
        let local_key = unsafe { (*registration.get()).local_key };
        let mut this = Self {
            key: config.key,
            inline_bytes: inline_bytes as usize,
            place_bytes,
            receives: requests(receives, |id| ReceiveRequest {
                id,
                next: ptr::null_mut(),
                pieces: ptr::null_mut(),
                count: 1,
            }),
            sends: requests(sends, |id| SendRequest::of(id, WR_SEND)),
            staged: 0,
            posted: 0,
            completed: 0,
            idle: (0..receives).collect(),
            events: 0,
            has_failed: false,
            completions: [EMPTY; POLL_MAX],
            seen: 0,
            polled: 0,
            retired: Vec::new(),
            table,
            pair,
            sent,
            received,
            channel,
            _registration: registration,
            ground,
            memory,
        };
        this.name_places(local_key);
        this.start()?;
        Ok(this)
    }

    /// Gives each request its place in the memory.
    fn name_places(&mut self, local_key: u32) {
        let length = self.place_bytes as u32;
        let base = self.memory.start().as_ptr() as u64;
        let address = |place: usize| base + (place * self.place_bytes) as u64;
        let receives = self.receives.len();
        for (place, (request, piece)) in self.receives.iter_mut().enumerate() {
            *piece = Piece { address: address(place), length, local_key };
            request.pieces = piece;
        }
        for (place, (request, piece)) in self.sends.iter_mut().enumerate() {
            *piece = Piece { address: address(receives + place), length, local_key };
            request.pieces = piece;
        }
    }

    /// Posts all receives, and lets the pair send.
    fn start(&mut self) -> Result<(), VerbsError> {
        let set_up = QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_QKEY;
        for (state, mask) in
            [(QPS_INIT, set_up), (QPS_RTR, QP_STATE), (QPS_RTS, QP_STATE | QP_SQ_PSN)]
        {
            if state == QPS_RTR {
                self.post_receives();
                assert!(self.idle.is_empty(), "a new pair takes a request for each place");
            }
            // SAFETY: zero is a value of each field.
            let mut settings: PairState = unsafe { std::mem::zeroed() };
            settings.state = state;
            settings.key = self.key;
            settings.port = self.ground.port.number;
            // SAFETY: the pair is this value's, and the mask names fields that are set.
            let error = unsafe { (self.table.modify_pair)(self.pair.get(), &mut settings, mask) };
            if error != 0 {
                return Err(VerbsError::refused(
                    "ibv_modify_qp",
                    io::Error::from_raw_os_error(error),
                ));
            }
        }
        for fd in self.fds() {
            let set = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
            set.map_err(|why| VerbsError::refused("fcntl", why.into()))?;
        }
        Ok(())
    }

    /// The largest packet, in bytes.
    pub(super) fn mtu(&self) -> usize {
        self.ground.port.mtu
    }

    /// Packets that the receive queue holds.
    pub(super) fn receives(&self) -> usize {
        self.receives.len()
    }

    /// The address by which peers reach the pair.
    pub(super) fn address(&self) -> Address {
        // SAFETY: a queue pair is a structure with its number.
        let pair = unsafe { (*self.pair.get()).number };
        Address { pair, key: self.key, ..self.ground.port.address() }
    }

    /// Returns the origin of packets from an address.
    pub(super) fn origin_of(&self, address: &Address) -> Origin {
        let (gid, lid) = match self.ground.port.is_ethernet {
            true => (address.gid, 0),
            false => ([0; 16], address.lid),
        };
        Origin { pair: address.pair, gid, lid }
    }

    /// The objects that handles to peers need.
    pub(super) fn ground(&self) -> &Arc<Ground> {
        &self.ground
    }

    /// Copies a packet behind those to be posted. Returns false if the ring is full.
    #[inline]
    pub(super) fn stage(&mut self, to: &Handle, head: &[u8], body: &[u8]) -> bool {
        let bytes = head.len() + body.len();
        assert!(
            bytes <= self.ground.port.mtu,
            "the caller has compared the frame with the peer's limit"
        );
        let ring = self.sends.len() as u64;
        if self.staged - self.completed == ring {
            self.complete_sends();
            if self.staged - self.completed == ring {
                return false;
            }
        }
        let index = (self.staged % ring) as usize;
        let place = (self.receives.len() + index) * self.place_bytes;
        // SAFETY: the place lies within the memory and is not the card's: its last packet is completed.
        unsafe {
            let to = self.memory.start().as_ptr().add(place);
            ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
            ptr::copy_nonoverlapping(body.as_ptr(), to.add(head.len()), body.len());
        }
        let is_signaled = (self.staged + 1).is_multiple_of(SENDS_OF_A_COMPLETION.min(ring));
        let (request, piece) = &mut self.sends[index];
        piece.length = bytes as u32;
        request.id = self.staged;
        request.flags = if is_signaled { SEND_SIGNALED } else { 0 };
        if bytes <= self.inline_bytes {
            request.flags |= SEND_INLINE;
        }
        request.handle = to.handle.get();
        (request.pair, request.key) = (to.pair, to.key);
        self.staged += 1;
        true
    }

    /// Posts the staged packets: one call of the card for all. The rest waits for the next call if the card has no room.
    ///
    /// # Errors
    /// If the card refuses a packet for another reason. All staged packets are then dropped; the count is returned.
    pub(super) fn post(&mut self) -> Result<u64, (u64, io::Error)> {
        let count = self.staged - self.posted;
        if count == 0 {
            return Ok(0);
        }
        let ring = self.sends.len() as u64;
        for at in self.posted..self.staged {
            let next = match at + 1 < self.staged {
                true => &raw mut self.sends[((at + 1) % ring) as usize].0,
                false => ptr::null_mut(),
            };
            self.sends[(at % ring) as usize].0.next = next;
        }
        let first = &raw mut self.sends[(self.posted % ring) as usize].0;
        let mut refused: *mut SendRequest = ptr::null_mut();
        let post = self.operations().post_send.expect("a provider sends");
        // SAFETY: the requests and their pieces stay in place; the memory behind them is registered.
        let error = unsafe { post(self.pair.get(), first, &mut refused) };
        if error == 0 {
            self.posted = self.staged;
            // In time, so that the next burst finds room.
            if self.posted - self.completed > ring / 2 {
                self.complete_sends();
            }
            return Ok(count);
        }
        // SAFETY: the refused request is one of the chain.
        let reached = if refused.is_null() { self.posted } else { unsafe { (*refused).id } };
        let taken = reached - self.posted;
        self.posted = reached;
        if error.abs() == libc::ENOMEM {
            return Ok(taken);
        }
        // The card may have taken some of the dropped packets: later completions are not believed.
        self.has_failed = true;
        let dropped = self.staged - self.posted;
        self.staged = self.posted;
        Err((dropped, io::Error::from_raw_os_error(error.abs())))
    }

    /// Returns true if packets wait for the card.
    pub(super) fn has_staged(&self) -> bool {
        self.staged > self.posted
    }

    /// Keeps the place of a removed peer until its packets are completed.
    pub(super) fn retire(&mut self, handle: Handle) {
        self.complete_sends();
        if self.completed < self.staged {
            self.retired.push((self.staged, handle));
        }
    }

    /// Takes the completions of sent packets.
    fn complete_sends(&mut self) {
        let mut completions = [EMPTY; POLL_MAX];
        let count = self.poll(self.sent.get(), &mut completions);
        for completion in &completions[..count] {
            // After a failed packet the card sends nothing any more.
            self.has_failed |= completion.status != WC_SUCCESS;
            if self.has_failed {
                return;
            }
            let done = completion.id + 1;
            assert!(
                (self.completed + 1..=self.posted).contains(&done),
                "a card completes packets once, in the order in which they were posted"
            );
            self.completed = done;
        }
        let completed = self.completed;
        self.retired.retain(|(last, _)| *last > completed);
    }

    /// Returns true if a received packet waits.
    pub(super) fn has_received(&mut self) -> bool {
        if self.seen == self.polled {
            self.poll_received(POLL_MAX);
        }
        self.seen < self.polled
    }

    fn poll_received(&mut self, budget: usize) {
        let mut completions = self.completions;
        self.polled = self.poll(self.received.get(), &mut completions[..budget.min(POLL_MAX)]);
        self.completions = completions;
        self.seen = 0;
    }

    /// Takes completions of a queue, and returns their number. A lost card has none.
    fn poll(&self, queue: *mut CompletionQueue, into: &mut [Completion]) -> usize {
        let poll = self.operations().poll_cq.expect("a provider has completions");
        // SAFETY: the queue is this value's, and the result has room for this number.
        let count = unsafe { poll(queue, into.len() as c_int, into.as_mut_ptr()) };
        count.max(0) as usize
    }

    /// Delivers up to `budget` received packets. Returns the number of completions.
    #[inline]
    pub(super) fn receive(&mut self, budget: usize, mut deliver: impl FnMut(Arrived<'_>)) -> usize {
        if self.seen == self.polled {
            self.poll_received(budget);
        }
        let end = self.polled.min(self.seen + budget);
        let count = end - self.seen;
        let mut has_failed = false;
        for completion in &self.completions[self.seen..end] {
            let place = completion.id as usize;
            assert!(place < self.receives.len(), "a completion names a request of the ring");
            // SAFETY: the place lies within the memory, and the card has given the place back.
            let bytes = unsafe {
                let start = self.memory.start().as_ptr().add(place * self.place_bytes);
                std::slice::from_raw_parts(start, self.place_bytes)
            };
            if completion.status != WC_SUCCESS {
                // The pair is in its final state, in which the card would give each posted place back at once.
                has_failed = true;
                continue;
            }
            if let Some(arrived) = self.arrived(completion, bytes) {
                deliver(arrived);
            }
            self.idle.push(place as u32);
        }
        self.seen = end;
        self.has_failed |= has_failed;
        if count > 0 {
            self.post_receives();
        }
        count
    }

    fn arrived<'a>(&self, completion: &Completion, place: &'a [u8]) -> Option<Arrived<'a>> {
        let (route, rest) = place.split_at(ROUTE_BYTES);
        let bytes = rest.get(..(completion.bytes as usize).checked_sub(ROUTE_BYTES)?)?;
        let (mut gid, mut lid, mut is_marked) = ([0; 16], 0, false);
        if self.ground.port.is_ethernet {
            if completion.flags & WC_GRH == 0 {
                return None;
            }
            (gid, is_marked) = route_of(route, is_of_ipv4(&self.ground.port.gid))?;
        } else {
            lid = completion.source_lid;
        }
        let origin = Origin { pair: completion.source_pair, gid, lid };
        Some(Arrived { origin, bytes, is_marked })
    }

    /// Gives the idle places to the card again.
    fn post_receives(&mut self) {
        let Some(&first) = self.idle.first() else { return };
        for pair in self.idle.windows(2) {
            let next = &raw mut self.receives[pair[1] as usize].0;
            self.receives[pair[0] as usize].0.next = next;
        }
        let last = self.idle[self.idle.len() - 1];
        self.receives[last as usize].0.next = ptr::null_mut();
        let first = &raw mut self.receives[first as usize].0;
        let mut refused: *mut ReceiveRequest = ptr::null_mut();
        let post = self.operations().post_recv.expect("a provider receives");
        // SAFETY: the requests and their pieces stay in place; nothing reads or writes the memory until the completion.
        let error = unsafe { post(self.pair.get(), first, &mut refused) };
        if error == 0 {
            return self.idle.clear();
        }
        // A lost card takes nothing; the rest is offered again with the next packet.
        // SAFETY: the refused request is one of the chain.
        let at = (!refused.is_null()).then(|| unsafe { (*refused).id } as u32);
        let taken = self.idle.iter().position(|place| Some(*place) == at).unwrap_or(0);
        self.idle.drain(..taken);
    }

    /// Asks for an event when a packet arrives. Returns false if a packet may have arrived already.
    pub(super) fn arm(&mut self) -> bool {
        let notify = self.operations().req_notify_cq.expect("a provider has events");
        // SAFETY: the queue is this value's.
        unsafe { notify(self.received.get(), 0) == 0 }
    }

    /// Takes the events of the channel.
    pub(super) fn disarm(&mut self) {
        let (mut queue, mut owner) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel does not block; the results have room.
        while unsafe { (self.table.take_event)(self.channel.get(), &mut queue, &mut owner) } == 0 {
            self.events += 1;
        }
        self.acknowledge();
    }

    /// Acknowledges all taken events: a queue with others cannot be destroyed.
    fn acknowledge(&mut self) {
        if self.events > 0 {
            // SAFETY: these events were taken from the channel of the queue.
            unsafe { (self.table.acknowledge_events)(self.received.get(), self.events) };
            self.events = 0;
        }
    }

    /// Returns true if the card has refused a packet that it had taken, or has given a place back unused.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns true if the card has told of its end, or of the pair's.
    pub(super) fn has_ended(&mut self) -> bool {
        let mut event = Event { element: ptr::null_mut(), kind: 0 };
        let mut has_ended = self.has_failed;
        // SAFETY: the descriptor does not block; each event that was taken is acknowledged.
        unsafe {
            while (self.table.async_event)(self.ground.port.context.get(), &mut event) == 0 {
                has_ended |= FATAL_EVENTS.contains(&event.kind);
                (self.table.acknowledge_async)(&mut event);
            }
        }
        has_ended
    }

    /// The descriptors that become readable with an event of [`QueuePair::arm`], and with news of the card.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        // SAFETY: the channel and the context, and their descriptors, stay open as long as this value.
        unsafe {
            [(*self.channel.get()).fd, (*self.ground.port.context.get()).async_fd]
                .map(|fd| BorrowedFd::borrow_raw(fd))
        }
    }

    /// Has a card in memory tell of its end.
    pub(super) fn tell_of_the_end(&self) {
        rustix::io::write(self.fds()[1], &1_u64.to_ne_bytes()).expect("an event of the card");
    }

    fn operations(&self) -> &super::table::Operations {
        // SAFETY: the context stays open as long as this value, and its operations do not change.
        unsafe { &(*self.ground.port.context.get()).operations }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.acknowledge();
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("address", &self.address()).finish_non_exhaustive()
    }
}

pub(super) const EMPTY: Completion = Completion {
    id: 0,
    status: 0,
    operation: 0,
    vendor_error: 0,
    bytes: 0,
    immediate: 0,
    pair: 0,
    source_pair: 0,
    flags: 0,
    key_index: 0,
    source_lid: 0,
    service_level: 0,
    path_bits: 0,
};

/// Returns requests with numbers, and places for their pieces.
fn requests<R>(count: u32, make: impl Fn(u64) -> R) -> Box<[(R, Piece)]> {
    let piece = Piece { address: 0, length: 0, local_key: 0 };
    (0..u64::from(count)).map(|id| (make(id), piece)).collect()
}

/// Makes a queue pair with the largest inline size that the card has. Returns this size.
fn create_pair(
    table: &Table,
    domain: *mut Domain,
    (send_queue, receive_queue): (*mut CompletionQueue, *mut CompletionQueue),
    (receives, sends): (u32, u32),
) -> Result<(Owned<Pair>, u32), VerbsError> {
    let mut failed = None;
    for inline_bytes in INLINE_BYTES {
        let mut settings = PairSettings {
            owner: ptr::null_mut(),
            send_queue,
            receive_queue,
            shared_queue: ptr::null_mut(),
            capacity: Capacity { sends, receives, send_pieces: 1, receive_pieces: 1, inline_bytes },
            kind: QPT_UD,
            signal_all: 0,
        };
        // SAFETY: the queues and the domain are the caller's, and outlive the pair.
        let pair = unsafe { (table.create_pair)(domain, &mut settings) };
        match Owned::new(pair, table.destroy_pair, "ibv_create_qp") {
            Ok(pair) => return Ok((pair, inline_bytes)),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.expect("at least one size was tried"))
}

/// Returns the source address of a packet over Ethernet, and whether a switch marked the packet: from an IPv6 header, or from an IPv4 header
/// in the last 20 bytes (InfiniBand specification, annex A17).
fn route_of(route: &[u8], is_ipv4: bool) -> Option<([u8; 16], bool)> {
    const MARKED: u8 = 3;
    let header = if is_ipv4 { &route[20..] } else { route };
    match (is_ipv4, header[0] >> 4) {
        (true, 4) => {
            let mut gid = [0; 16];
            gid[10..12].fill(0xFF);
            gid[12..].copy_from_slice(&header[12..16]);
            Some((gid, header[1] & 3 == MARKED))
        }
        (false, 6) => Some((header[8..24].try_into().ok()?, header[1] >> 4 & 3 == MARKED)),
        _ => None,
    }
}
